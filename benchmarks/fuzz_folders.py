"""Hostile folders: a good sweep or dataset is changed at random, then every command is run on it.

One bad run must not hide the good ones, nothing outside its folder may change, and no number may be wrong.
"""

import csv
import hashlib
import json
import math
import os
import random
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from fuzz_case import TINY, Ended, bad_output, is_control, one_sentence, run, start, wait
from PIL import Image

TAG = "<script>alert(1)</script>"
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 7, 0.5, 1e308, -1e308, 10**30, 10**400, math.nan, math.inf, "", "12.5", "abc", "finished", "running",
    "failed", [], {}, [1, 2], [None], [[1]], {"a": 1}, {"": None}, TAG, "\x1b[31mred\x07", "a\nb\rc\td", "\x9b31m\x85\x7f", "a$\\foo$b",
    "=1+1", "@SUM(A1)", "+1", "-1+1", "\ud800", "\u202eabc\u2028", "../../..", "/etc/passwd", "${oc.env:HOME}", "${seed}", "x" * 5000, "|a|b|",
    "# a", "`a`", "\\input{a}", "%", "\x00", "NaN", "1e999", "2026-01-01", "os.system", "subprocess.getoutput", "l2d.losses.DeferralLoss",
]  # fmt: skip
NAMES = [
    "bad",
    "bad\x1b[31m",
    "bad\nname",
    "bad" + TAG.replace("/", ""),
    "=bad",
    "bad$\\foo$",
    "bad 'x' \"y\"",
    "bad\udcff",
    "-bad",
    "b&d|",
]
RUN_FILES = [
    "result.json", "result.json", "result.json", "config.yaml", "config.yaml", "metrics.csv", "model.safetensors", "outcome.safetensors",
    "checkpoint.pt", "checkpoint.previous.pt", ".lock", ".owner", "train.log", "evaluation.json",
]  # fmt: skip
KINDS = ["cat", "dog", "owl"]
ROWS = [(f"a/{n}.png", KINDS[n % 3], "train" if n < 4 else "test", KINDS[n % 2], "") for n in range(7)]
HEADER = ["path", "label", "split", "ada", "bob"]
SMALL_IMAGES = [
    "dataset=folder",
    "dataset.root=data",
    "dataset.size=8",
    "dataset.resize=8",
    "backbone=mlp",
    "dataset.cache=cache",
]
HANGS_AFTER_S = 90  # a command that takes longer hangs; a report draws figures, on a machine that may be busy
GRID = ["loss=ce,picce_ce", "evaluation=full", "held_out=0.2", *TINY]


class Good(NamedTuple):
    """What cases are made from: a sweep of two runs, a finished and an interrupted run, and a dataset."""

    root: Path
    finished: dict[str, Any]  # the result of the run that is damaged
    words: list[str]  # that trained it
    interrupted: list[str]  # the words of the interrupted one


def make_good(scratch: Path) -> Good:
    root = scratch / "good"
    (root / "here" / "data").mkdir(parents=True)
    _expect(run(["train", "-m", *GRID], root))
    words = ["loss=ova", "evaluation=full", "held_out=0.2", *TINY]
    _expect(run(["train", *words, "hydra.run.dir=finished"], root))
    long = [*words, "trainer.epochs=150", "trainer.checkpoint_epochs=1"]
    child = start(["train", *long, "hydra.run.dir=interrupted"], root)
    wait(child, 60, until=(root / "here/interrupted/checkpoint.previous.pt").exists)
    os.kill(child, 15)
    os.waitpid(child, 0)
    _write_dataset(root / "here" / "data")
    return Good(root, json.loads((root / "here/finished/result.json").read_text()), words, long)


def _expect(end: Ended) -> None:
    assert end.code == 0, end


def _write_dataset(data: Path) -> None:
    for n, (name, label, split, *_) in enumerate(ROWS):
        for path in (data / name, data / split / label / Path(name).name, data / "train" / label / f"{n}.png"):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 9), (20 * n, 0, 0)).save(path)
    with (data / "labels.csv").open("w") as file:
        csv.writer(file).writerows([HEADER, *ROWS])
    (data / "labels.json").write_text(json.dumps([dict(zip(HEADER, row, strict=True)) for row in ROWS]))


def run_case(good: Good, rng: random.Random, folder: Path) -> tuple[str | None, list[Ended], list[str]]:
    """What a command did that none may do, how each ended, and what was done to the folder."""
    shutil.copytree(good.root, folder)
    outside = folder / "outside"
    outside.mkdir()
    (outside / "document.txt").write_text("precious")
    return (_data_case if rng.random() < 0.25 else _run_case)(good, rng, folder)


def _run_case(good: Good, rng: random.Random, folder: Path) -> tuple[str | None, list[Ended], list[str]]:
    here, done = folder / "here", []
    outputs = here / "outputs"
    kind, words = rng.choice((("finished", good.words), ("finished", good.words), ("interrupted", good.interrupted)))
    manifest = next((outputs / ".sweeps").glob("*.json"))
    manifest.write_text(manifest.read_text().replace(str(good.root), str(folder)))
    runs = [path.parent for path in sorted(outputs.rglob("result.json"))]
    bad = outputs / "synthetic" / rng.choice([NAMES[0], *NAMES])
    (here / kind).rename(bad)
    (bad / "evaluation.json").write_text("{}")
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        target = manifest if rng.random() < 0.12 else bad / rng.choice(RUN_FILES)
        done.append(f"{target.name!r}: {damage(target, rng, folder / 'outside')}")
    before = {path: digest(path) for path in (*runs, folder / "outside")}
    ends = []
    for name, *more in (["status", "outputs"], ["report", "outputs", "--out=report"]):
        ends.append(run([name, *more], folder, HANGS_AFTER_S))
        if wrong := bad_output(ends[-1]) or _hides_the_good_runs(name, ends[-1], runs, here / "report"):
            return f"{name} {wrong}", ends, done
        if digest(bad) != (before.setdefault(bad, digest(bad))):
            return f"{name} changes the run", ends, done
    for name, *more in (["evaluate", f"ckpt={bad}"], ["train", *words, f"hydra.run.dir={_quoted(bad)}"]):
        earlier = digest(bad)
        ends.append(run([name, *more], folder, HANGS_AFTER_S))
        wrong = bad_output(ends[-1]) or _not_whole(ends[-1], earlier == digest(bad))
        if name == "evaluate" and not wrong and ends[-1].code == 0 and kind == "finished":
            evaluated = json.loads((bad / "evaluation.json").read_text())["metrics"]
            wrong = None if evaluated == good.finished["metrics"] else "gives other numbers"
        if wrong:
            return f"{name} {wrong}", ends, done
    changed = [path.name for path in (*runs, folder / "outside") if digest(path) != before[path]]
    return (f"changes {changed}" if changed else None), ends, done


def _data_case(good: Good, rng: random.Random, folder: Path) -> tuple[str | None, list[Ended], list[str]]:
    data, done = folder / "here" / "data", []
    manifest = rng.choice((None, "labels.csv", "labels.json"))
    files = sorted(
        path for path in data.rglob("*.png") if ("train" in path.parts or "test" in path.parts) != bool(manifest)
    )
    for _ in range(rng.choice((1, 1, 2, 3))):
        target = data / manifest if manifest and rng.random() < 0.7 else rng.choice(files)
        if not manifest and rng.random() < 0.3 and target.parent.is_dir():
            renamed = target.parent.with_name(rng.choice(NAMES))
            if not renamed.exists():  # by an earlier round
                done.append(f"{target.parent.name!r} is now {renamed.name!r}")
                target.parent.rename(renamed)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            done.append(f"{target.name!r}: {damage(target, rng, folder / 'outside')}")
    before = digest(folder / "outside"), digest(data)
    end = run(["data", "check", *SMALL_IMAGES, *([f"dataset.manifest={manifest}"] if manifest else [])], folder)
    wrong = bad_output(end) or _not_whole(end, True)
    if not wrong and before != (digest(folder / "outside"), digest(data)):
        wrong = "changes the data"
    return (f"data {wrong}" if wrong else None), [end], done


def _hides_the_good_runs(name: str, end: Ended, runs: list[Path], report: Path) -> str | None:
    """What is wrong with a status or report of a folder with good runs and a bad one."""
    if end.stopped or end.code != 0:
        return f"ends with exit code {end.code}"
    if name == "status":
        return None if "#" in end.stdout else "does not show the good runs"
    try:
        with (report / "runs.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, csv.Error) as error:
        return f"wrote no runs.csv: {error}"
    shown = {row["folder"] for row in rows if row["status"] == "finished"}
    if not {str(run) for run in runs} <= shown:
        return "does not list the good runs"
    for path in report.rglob("*"):
        if path.suffix in (".md", ".tex", ".html"):
            text = path.read_text()
            if path.suffix != ".tex" and TAG in text:
                return f"writes a tag into {path.name}"
            if any(is_control(c) and c != "\t" for c in text):
                return f"writes control characters into {path.name}"
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                cells = [cell for row in csv.reader(file) for cell in row]
            formulas = [cell for cell in cells if cell[:1] in ("=", "+", "-", "@") and not _is_number(cell)]
            if formulas:
                return f"writes the formula {formulas[0]!r} into {path.name}"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _not_whole(end: Ended, unchanged: bool) -> str | None:
    """What is wrong with the end of a command on one bad folder."""
    if end.stopped:
        return f"hangs (exit code {end.code} once told to stop)"
    if end.code not in (0, 2):
        return f"ends with exit code {end.code}"
    if end.code == 2 and not one_sentence(end):
        return "ends without a sentence"
    if end.code == 2 and not unchanged:
        return "is refused, and changed the folder"
    return None


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def digest(folder: Path) -> str:
    """Of the names, kinds and contents of all that is below a folder. Locks do not count: who looks at a run opens its lock,
    and writes and removes the note (.owner) that says who holds it."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.name == ".owner":
            continue
        mode = path.lstat().st_mode
        content = path.read_bytes() if stat.S_ISREG(mode) and path.name != ".lock" else b""
        if path.name != ".lock" or stat.S_ISLNK(mode):
            found.update(repr((str(path), stat.S_IFMT(mode), hashlib.sha256(content).digest())).encode())
    return found.hexdigest()


# -- damage ----------------------------------------------------------------------------------------------------------


def damage(path: Path, rng: random.Random, outside: Path) -> str:
    """Do something to a file at random, and say what."""
    readable = path.is_file() and not path.is_symlink()
    structured = path.suffix in (".json", ".yaml", ".csv") and readable
    kinds = [_tree] * 6 if structured else []
    action = rng.choice([*kinds, _bytes, _bytes, _replace, _replace] if readable else [_replace])
    return action(path, rng, outside)


def _tree(path: Path, rng: random.Random, outside: Path) -> str:
    """Change one entry of a JSON, YAML or CSV file."""
    text = path.read_text(errors="replace")
    try:
        if path.suffix == ".csv":
            tree: Any = list(csv.reader(text.splitlines()))
        else:
            tree = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, csv.Error, yaml.YAMLError, RecursionError):
        return _bytes(path, rng, outside)
    places = list(_places(tree))
    if not places:
        return _bytes(path, rng, outside)
    holder, key = rng.choice(places)
    value, kind = rng.choice(VALUES), rng.random()
    if kind < 0.2:
        del holder[key]
        done = f"without {key!r}"
    elif kind < 0.3 and isinstance(holder, dict):
        holder[str(value)] = holder.pop(key)
        done = f"{key!r} is now the key {str(value)[:40]!r}"
    else:
        if kind > 0.95:
            for _ in range(rng.choice((20, 100000 if path.suffix == ".json" else 300))):
                value = [value]
        holder[key] = value
        done = f"{key!r} is {str(value)[:40]!r}" if kind <= 0.95 else f"{key!r} is nested"
    try:
        if path.suffix == ".csv":
            with path.open("w", newline="", errors="surrogateescape") as file:
                csv.writer(file).writerows(tree)
        elif path.suffix == ".json":
            path.write_text(_dumps(tree), errors="surrogateescape")
        else:
            path.write_text(yaml.safe_dump(tree), errors="surrogateescape")
    except (RecursionError, ValueError, csv.Error):
        path.write_text("[" * 100000 + "]" * 100000)
        done = "deep"
    return done


def _dumps(tree: Any) -> str:
    return json.dumps(tree)


def _places(tree: Any) -> Any:
    """(container, key) of every entry of a tree, those near the root more often."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield tree, key
        if isinstance(value, dict) or (isinstance(value, list) and len(value) < 8):
            yield from _places(value)


def _bytes(path: Path, rng: random.Random, outside: Path) -> str:
    """Change the bytes of a file."""
    content = bytearray(path.read_bytes())
    size = len(content)
    cut = rng.randrange(size + 1)
    actions: dict[str, Callable[[], bytes]] = {
        "cut": lambda: content[:cut],
        "empty": lambda: b"",
        "flipped": lambda: bytes(
            b ^ (1 << rng.randrange(8)) if rng.random() < 3 / max(size, 1) else b for b in content
        ),
        "inserted": lambda: content[:cut] + rng.randbytes(rng.choice((1, 10, 1000))) + content[cut:],
        "garbage": lambda: rng.randbytes(rng.choice((1, 100, 10000))),
        "zeros": lambda: bytes(size),
        "UTF-16": lambda: bytes(content).decode(errors="replace").encode("utf-16"),
        "BOM": lambda: b"\xef\xbb\xbf" + content,
        "deep list": lambda: b"[" * 100000,
        "deep mapping": lambda: b'{"a":' * 100000 + b"1" + b"}" * 100000,
        "a number": lambda: b"1" * 5000,
        "null": lambda: b"null",
        "list": lambda: b"[]",
        "mapping": lambda: b"{}",
        "tag": lambda: TAG.encode(),
        "aliases": lambda: (
            b"a0: &a0 [x,x]\n"
            + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 12))
        ),
        "object": lambda: b"!!python/object/apply:os.system ['echo']\n",
        "crlf": lambda: bytes(content).replace(b"\n", b"\r\n"),
        "twice": lambda: bytes(content) * 2,
    }
    name = rng.choice(list(actions))
    changed = actions[name]()
    path.write_bytes(changed)
    return name


def _replace(path: Path, rng: random.Random, outside: Path) -> str:
    """Put something else in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)

    def a_socket() -> None:
        with socket.socket(socket.AF_UNIX) as made:
            before = os.getcwd()
            os.chdir(path.parent)  # a socket's address is short
            made.bind(path.name)
            os.chdir(before)

    actions: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "folder": path.mkdir,
        "full folder": lambda: (path / "a").mkdir(parents=True),
        "FIFO": lambda: os.mkfifo(path),
        "socket": a_socket,
        "link to a document": lambda: path.symlink_to(outside / "document.txt"),
        "link to nothing": lambda: path.symlink_to(outside / "nowhere"),
        "link to a folder": lambda: path.symlink_to(outside),
        "link to itself": lambda: path.symlink_to(path),
        "link to /dev/zero": lambda: path.symlink_to("/dev/zero"),
        "link to /dev/full": lambda: path.symlink_to("/dev/full"),
    }
    name = rng.choice(list(actions))
    actions[name]()
    return name
