"""What several test files share: composing a config, and a small dataset held in memory."""

import json
import logging
import os
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

import children  # noqa: F401  says what the server of child processes imports
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from PIL import Image

from l2d.cli import main
from l2d.config import config_dir
from l2d.data import Dataset, Images, Preprocessing, Split
from l2d.data.load import _data_digest, _load
from l2d.evaluation.evaluator import Evaluator
from l2d.identity import register_resolvers
from l2d.source import _folders, source_digest

EMBEDDED = (
    "dataset.num_train=300", "dataset.num_test=90", "dataset.num_classes=6", "dataset.group_size=6", "backbone.hidden=16",
    "trainer.epochs=8", "trainer.batch_size=16", "experts.num=3", "held_out=0.3",
)  # fmt: skip
LONG = [
    ("test_distributed.py",), ("test_documentation.py",), ("test_slurm.py", "test_fuzz.py", "test_examples.py", "test_parallel.py"),
]  # files, about as long in all  # fmt: skip
FEATURES = ("experts.num=null", "trainer.epochs=4", "trainer.batch_size=32", "backbone.hidden=8", "loss=picce_ova")

torch.set_num_threads(1)
forkserver.ensure_running()  # before a test of the streaming loader starts it with less


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every process begins with files whose tests take long, so that none of them is left when all others are done."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    others = [item for item in items if not any(item.path.name in files for files in LONG)]
    share = -(-len(others) // processes)
    ordered: list[pytest.Item] = []
    for number in range(processes):
        first = [name for files in LONG[number::processes] for name in files]
        ordered += [item for item in items if item.path.name in first]
        ordered += others[number * share : (number + 1) * share]
    items[:] = ordered


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """A run inside a test adds handlers to the root logger, whose file or captured stream is closed after the test."""
    yield
    logging.getLogger("l2d").disabled = False
    logging.root.setLevel(logging.WARNING)
    for handler in [h for h in logging.root.handlers if type(h) in (logging.FileHandler, logging.StreamHandler)]:
        logging.root.removeHandler(handler)
        handler.close()


@pytest.fixture(autouse=True)
def no_remembered_data():
    """A process remembers the last dataset and what identifies it; tests write other files to the same place."""
    yield
    _data_digest.cache_clear()
    _load.cache_clear()
    source_digest.cache_clear()
    _folders.cache_clear()


@cache
def compose_once(*overrides: str) -> DictConfig:
    register_resolvers()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        return compose("train", overrides=list(overrides))


@pytest.fixture
def composed():
    """composed("loss=ova", "seed=1") is the config of that command line, a copy of its own for every caller."""
    return lambda *overrides: compose_once(*overrides).copy()


def finished(root: str) -> tuple[Path, dict]:
    """The folder and the result.json of the only run below."""
    (file,) = Path(root).glob("*/*/result.json")
    return file.parent, json.loads(file.read_text())


@pytest.fixture
def command(capfd):
    """command(*words) runs `l2d WORDS` and returns (exit code, stdout, stderr)."""

    def run(*words) -> tuple[int, str, str]:
        capfd.readouterr()  # what was printed before
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capfd.readouterr()

    return run


def refused(answer: tuple[int, str, str]) -> str:
    """The sentence of a command that refused what it was given, and printed nothing else."""
    code, out, err = answer
    assert code == 2 and out == "" and err.startswith("l2d: ") and len(err.splitlines()) == 1, answer
    return err


@pytest.fixture
def cut_and_continued(monkeypatch):
    """cut_and_continued("train", ...) starts a run that fails in its last epoch, starts it again and returns its result."""

    def run(*words: str) -> dict:
        row = Evaluator.row
        with monkeypatch.context() as stopped, pytest.raises(FileNotFoundError):
            stopped.setattr(Evaluator, "row", lambda *a, final: os.stat("nothing") if final else row(*a, final=final))
            main([*words, "output_dir=cut", "trainer.checkpoint_epochs=1"])
        main([*words, "output_dir=cut"])
        _, result = finished("cut")
        assert result["attempts"] == 2
        return result

    return run


@pytest.fixture
def tiny_dataset():
    """tiny_dataset(classes, groups, annotators): 8 training and 6 test images of 3 x 8 x 8 noise."""

    def make(
        num_classes: int, groups: dict[str, list[int]] | None = None, annotators: int = 0, augment: str = "none"
    ) -> Dataset:
        rng = np.random.default_rng(0)
        preprocessing = Preprocessing((3, 8, 8), (0.5, 0.4, 0.3), (0.2, 0.25, 0.5), augment=augment)
        splits = {
            split: Split(
                Images(torch.from_numpy(rng.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)), preprocessing),
                torch.from_numpy(rng.integers(0, num_classes, count)),
            )
            for split, count in (("train", 8), ("test", 6))
        }
        return Dataset(
            name="tiny",
            class_names=[f"class_{k}" for k in range(num_classes)],
            **splits,
            groups=groups or {},
            annotators={
                f"annotator_{j}": {s: rng.integers(0, num_classes, len(d)) for s, d in splits.items()}
                for j in range(annotators)
            },
        )

    return make


@pytest.fixture(scope="session")
def photo_run(tmp_path_factory):
    """photo_run(*words): the folder of a finished run on 33 JPEGs of three kinds, with the answers of three people to each; the
    images are in images/ beside outputs/, the names of those of the test split in test.txt. Trained once for every setting."""
    place = tmp_path_factory.mktemp("photos")
    images, rng, rows = place / "images", np.random.default_rng(0), []
    images.mkdir()
    for i in range(33):
        kind, side = i % 3, 44 + i
        pixels = rng.integers(0, 120, (side, 60, 3))
        pixels[..., kind] += 130
        Image.fromarray(pixels.astype(np.uint8)).save(images / f"{i:02}.jpg")
        answers = [kind, (kind + i % 2) % 3, int(rng.integers(3))]
        rows.append((f"{i:02}.jpg", kind, "train" if i < 24 else "test", *answers))
    names = ("cat", "dog", "owl")
    lines = [f"{p},{names[y]},{split},{','.join(names[a] for a in said)}" for p, y, split, *said in rows]
    (images / "labels.csv").write_text("\n".join(["path,label,split,ada,bob,eve", *lines]) + "\n")
    (place / "test.txt").write_text("".join(f"images/{p}\n" for p, _, split, *_ in rows if split == "test"))

    @cache
    def train(*words: str) -> Path:
        return trained_in(place / f"run{len(list(place.glob('run*')))}", (
            "dataset=folder", f"dataset.root={images}", "dataset.manifest=labels.csv", "dataset.size=32", "dataset.resize=36",
            f"dataset.cache={place / 'cache'}", "backbone=mlp", "backbone.hidden=8", "experts.num=null", "trainer.epochs=4",
            "trainer.batch_size=6", "held_out=0.25", *words,
        ))  # fmt: skip

    return train


@pytest.fixture(scope="session")
def embedded_run(tmp_path_factory):
    """embedded_run(*words): the folder of a finished run on the embedded data, trained once for every setting."""
    place = tmp_path_factory.mktemp("embedded")
    return cache(lambda *words: trained_in(place / f"run{len(list(place.iterdir()))}", (*EMBEDDED, *words)))


@pytest.fixture(scope="session")
def features_run(tmp_path_factory) -> Path:
    """A run on a table of three features, an id, and two annotators; the rows of its test split are in test.csv, shuffled."""
    place, rng = tmp_path_factory.mktemp("features"), np.random.default_rng(0)
    lines = []
    for i in range(120):
        kind = i % 2
        x = (rng.standard_normal(3) + np.array([kind, -kind, 0])) * np.array([1, 100, 1e-3])
        cells = [f"row{i}", *x, "ab"[kind], "test" if i % 4 > 1 else "train", "ab"[kind], "ab"[int(rng.integers(2))]]
        lines.append(",".join(map(str, cells)))
    (place / "all.csv").write_text("\n".join(["id,x_a,x_b,x_c,label,split,ada,bob", *lines]) + "\n")
    return trained_in(place, ("dataset=features", f"dataset.path={place / 'all.csv'}", *FEATURES))


def trained_in(place: Path, words: tuple[str, ...]) -> Path:
    """Train what these words say, below this folder; the folder of the run."""
    before = Path.cwd()
    place.mkdir(exist_ok=True)
    os.chdir(place)
    try:
        main(["train", "verbose=false", *words])
        (result,) = Path.cwd().glob("outputs/*/*/result.json")
        return result.parent
    finally:
        os.chdir(before)
