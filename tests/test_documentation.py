"""Every command and every Python block of the documentation runs, or says beside it why it is not tested.

A page is followed from its first block to its last in a folder of its own, as a reader would: bash runs the `sh` blocks, Python the
`python` blocks, and a block that names a file in its first lines becomes that file. What a page leaves to its reader (RUN, DIR) is
in `PREPARE`. To save time `l2d` is a fork of a process that has imported torch, and a training takes one epoch and one seed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Listener
from pathlib import Path

import children
import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file
from test_inference import photo_files

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for pattern in ("*.md", "docs/*.md") for path in ROOT.glob(pattern))
LANGUAGES = {"sh", "python", "yaml", "text", "csv"}
UNTESTED = re.compile(r"# .*\bnot tested: (.+)")
FILE_NAME = re.compile(r"^# (?:@package _global_\n# )?([\w/]+\.(?:py|yaml))\n")
LAUNCHER = """\
#!/bin/sh
exec "{python}" -SE "$0.py" "$@"
"""
CLIENT = """\
import os, sys
from multiprocessing.connection import Client
with Client({socket!r}) as server:
    server.send((sys.argv[1:], os.getcwd(), dict(os.environ), os.getpid()))
    sys.exit(server.recv())
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    language: str
    text: str

    def commands(self) -> list[str]:
        """Those that are tested; a reason on a line of its own holds for the rest of the block."""
        tested = []
        for command in re.findall(r"(?:.*\\\n)*.+\n", self.text):
            if not UNTESTED.search(command):
                tested.append(command)
            elif command.startswith("#"):
                break
        return tested


def blocks_of(page: Path) -> Iterator[Block]:
    fence = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)
    content = page.read_text()
    for found in fence.finditer(content):
        indent, language, text = found.groups()
        yield Block(
            content[: found.start()].count("\n") + 1, language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
        )


def shortened(arguments: list[str]) -> list[str]:
    """A training of one epoch, unless it says how many, and of the first of several seeds."""
    epochs = [] if any("trainer.epochs=" in word for word in arguments) else ["trainer.epochs=1"]
    return [re.sub(r"^seed=(\d+),.*", r"seed=\1", word) for word in arguments] + epochs


class Reader:
    """Follows pages in a folder of its own."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        self.folder, self.listener = folder, listener
        programs = folder / "programs"
        programs.mkdir(parents=True)
        (programs / "l2d").write_text(LAUNCHER.format(python=sys.executable))
        (programs / "l2d").chmod(0o755)
        (programs / "l2d.py").write_text(CLIENT.format(socket=listener.address))
        (folder / "examples").symlink_to(ROOT / "examples")
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "MPLBACKEND": "agg"}
        self.values: dict[str, str] = {}  # what else stands for something of the reader's

    def follow(self, block: Block) -> None:
        if named := FILE_NAME.match(block.text):
            file = self.folder / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "sh":
            for command in block.commands():
                self.start("bash", "-ec", self.filled_in(command))
        elif block.language == "python" and not block.text.startswith(">>>"):
            self.run_python(self.filled_in(block.text))

    def filled_in(self, text: str) -> str:
        """With what the page leaves to its reader."""
        for name, value in self.values.items():
            text = text.replace(name, value)
        return re.sub(r"(?:outputs/(\S+?)/)?\bRUN\b", self.run_folder, text)

    def run_folder(self, mentioned: re.Match) -> str:
        """What RUN stands for: the folder run/ if the reader has one, or the last run on the dataset that it is said to be of."""
        given = self.folder / "run"
        if given.exists() and mentioned[1] in (None, "..."):
            return "run"
        results = self.folder.glob(f"outputs/{(mentioned[1] or '*').replace('...', '*')}/*/result.json")
        return str(max(results, key=lambda file: file.stat().st_mtime).parent)

    def start(self, *command: str) -> None:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    def run_python(self, text: str) -> None:
        script = self.folder / "block.py"
        script.write_text(text)
        code = children.wait(children.start_script(script, folder=str(self.folder), environment=self.environment))
        assert code == 0, f"{text}\n{(self.folder / 'output.txt').read_text()}"

    def serve(self) -> None:
        """Start the children that the clients ask for."""
        while True:
            try:
                connection = self.listener.accept()
            except OSError:  # closed
                return
            with connection:
                arguments, folder, environment, client = connection.recv()
                arguments = shortened(arguments) if arguments[:1] == ["train"] else arguments
                places = (f"/proc/{client}/fd/{number}" for number in (1, 2))
                connection.send(children.wait(children.start_l2d(arguments, folder, environment, *places)))


@pytest.fixture
def reader(tmp_path):
    with Listener(family="AF_UNIX") as listener:
        reader = Reader(tmp_path / "page", listener)
        threading.Thread(target=reader.serve, daemon=True).start()
        yield reader


def write_vectors(file: Path, experts: list[str], classes: int, count: int, size: int = 8, seed: int = 0) -> None:
    """Vectors around the centre of their class, with the answers of experts who are right three times in four."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    wrong = rng.random((count, len(experts))) < 0.25
    answers = np.where(wrong, rng.integers(classes, size=wrong.shape), labels[:, None])
    x = rng.standard_normal((classes, size))[labels] + rng.standard_normal((count, size))
    np.savez(file, x=x.astype(np.float32), y=labels, answers=answers, names=np.array(experts), ids=np.array([f"case{i}" for i in range(count)]))  # fmt: skip


def write_images(folder: Path, classes: list[str], count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """A folder per split and class with images of noise in a tint; path, class and split of each."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(count):
        kind, split = number % len(classes), "test" if number // len(classes) % 3 == 2 else "train"
        file = folder / split / classes[kind] / f"{number:03}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((rng.integers(0, 120, (80, 80, 3)) + 40 * kind % 130).astype(np.uint8)).save(file)
        rows.append((str(file.relative_to(folder)), classes[kind], split))
    return rows


def train_before(reader: Reader, settings: str) -> None:
    """Make run/, a finished run."""
    reader.start("bash", "-ec", f"l2d train {settings} output_dir=before && mv before/*/* run")


def give_embedded(reader: Reader, request) -> None:
    """A finished run on the embedded data, inputs for it, and answers to them."""
    train_before(reader, "loss=ova held_out=0.2")
    shape = json.loads((reader.folder / "run" / "result.json").read_text())["preprocessing"]["shape"]
    np.savez(reader.folder / "new.npz", x=np.random.default_rng(0).standard_normal((40, *shape)).astype(np.float32))
    rows = "".join(f"{i},class_0,class_1\n" for i in range(40))
    (reader.folder / "answers.csv").write_text(f"id,answer,label\n{rows}")


def give_photos(reader: Reader, request) -> None:
    """A finished run on photos of three kinds with three annotators, and nine new photos in several forms; a run on vectors."""
    run = request.getfixturevalue("photo_run")("loss=ova")
    shutil.copytree(run, reader.folder / "run")
    names = [Path(file).name for file in photo_files(run)]
    for place in ("photos", "extra"):
        (reader.folder / place).mkdir()
    for file in photo_files(run):
        shutil.copy(file, reader.folder / "photos")
    shutil.copy(photo_files(run)[0], reader.folder / "extra/a.jpg")
    (reader.folder / "list.txt").write_text("".join(f"photos/{name}\n" for name in names))
    (reader.folder / "manifest.csv").write_text("path\n" + "".join(f"photos/{name}\n" for name in names))
    (reader.folder / "answers.csv").write_text("id,label\n" + "".join(f"photos/{name},cat\n" for name in names))
    write_vectors(reader.folder / "features.npz", ["ada", "bob"], 3, 300)
    reader.values["RUN features.npz"] = "vectors features.npz"
    reader.start(
        "bash",
        "-exc",
        "l2d train dataset=features dataset.path=features.npz loss=ova output_dir=before && mv before/*/* vectors",
    )
    reader.values["dataset.root=DIR"] = f"dataset.root={run.parents[3] / 'images'}"


def give_runs(reader: Reader, request) -> None:
    reader.start("bash", "-ec", "l2d train -m loss=ce,ova experts.num=1,2 seed=0,1")


def give_votes(reader: Reader, request) -> None:
    """The files of CIFAR-10H, of 300 images."""
    rng, folder = np.random.default_rng(0), reader.folder / "FOLDER"
    folder.mkdir()
    labels, votes = rng.integers(10, size=(300, 1)), rng.integers(1, 9, size=(300, 10))
    for name in ("resnet-110", "preresnet-110", "densenet-bc-L190-k40"):
        table = np.concatenate([labels, votes, rng.dirichlet(np.ones(10), 300)], axis=1)
        np.savetxt(folder / f"{name}.csv", table, delimiter=",")


def give_three_experts(reader: Reader, request) -> None:
    """The same; a run of two classes with three experts, and who of them is there."""
    give_votes(reader, request)
    write_vectors(reader.folder / "two.npz", ["alice", "bob", "carol"], 2, 600)
    train_before(reader, "dataset=features dataset.path=two.npz loss=ova held_out=0.2 experts.num=null")
    tested = json.loads((reader.folder / "run" / "result.json").read_text())["data"]["test"]
    (reader.folder / "rota.csv").write_text("alice,bob,carol\n" + "1,0,1\n" * tested)


def give_pets(reader: Reader, request) -> None:
    """Two folders of images with what two annotators said."""
    for place in ("pets", "pets2"):
        rows = write_images(reader.folder / place, ["cat", "dog", "owl"], 18)
        lines = [
            f"{path},{label},{split},{label},{'' if i % 4 == 0 else 'cat'}\n"
            for i, (path, label, split) in enumerate(rows)
        ]
        (reader.folder / place / "labels.csv").write_text("path,label,split,ada,bob\n" + "".join(lines))
    write_vectors(reader.folder / "votes.npz", ["ada", "bob"], 3, 300)
    (reader.folder / "weights").mkdir()
    save_file(timm.create_model("resnet18").state_dict(), reader.folder / "weights/resnet18.safetensors")


def give_crowd(reader: Reader, request) -> None:
    write_vectors(reader.folder / "crowd.npz", [f"person_{j}" for j in range(200)], 5, 2000)
    write_images(reader.folder / "zoo", ["cat", "dog", "owl", "jay", "car", "bus"], 60)


def give_answers(reader: Reader, request) -> None:
    """A finished run on the embedded data, and what two people said about these data."""
    train_before(reader, "")
    rng = np.random.default_rng(0)
    np.savez(
        reader.folder / "answers.npz", train=rng.integers(10, size=(10_000, 2)), test=rng.integers(10, size=(10_000, 2))
    )


PREPARE = {
    "README.md": give_embedded,
    "CONTRIBUTING.md": give_answers,
    "use.md": give_photos,
    "cifar10h.md": give_votes,
    "benchmark.md": give_votes,
    "decisions.md": give_three_experts,
    "your-data.md": give_pets,
    "experts.md": give_crowd,
    "report.md": give_runs,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(b.language in ("sh", "python") for b in blocks_of(page))],
    ids=lambda page: page.stem,
)
def test_a_page_can_be_followed(page, reader, request):
    if page.name in PREPARE:
        PREPARE[page.name](reader, request)
    blocks = list(blocks_of(page))
    for block in blocks:
        reader.follow(block)
    if session := "\n".join(block.text for block in blocks if block.text.startswith(">>>")):
        (reader.folder / "session.txt").write_text(session)
        reader.start(sys.executable, "-m", "doctest", "session.txt")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page):
    content, blocks = page.read_text(), list(blocks_of(page))
    assert content.count("```") == 2 * len(blocks)
    assert {block.language for block in blocks} <= LANGUAGES
    outside = re.sub(r"```(?:.|\n)*?```", "", content)
    assert not re.findall(r"\n\n    .*", outside), "an indented block: fence it"
