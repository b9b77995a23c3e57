"""Which run is this: the settings and the data. Other data are another run, the same data elsewhere are the same run."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import test_chaoyang
import test_cifar10
import test_cifar100
import test_folder
import test_imagenet
import test_micebone
import torch
from children import run_l2d
from omegaconf import OmegaConf
from PIL import Image

from l2d.data import Dataset, ImageFiles, Preprocessing, Split, contents
from l2d.data.load import _data_digest, data_digest
from l2d.errors import UserError
from l2d.identity import fingerprint, run_name
from l2d.task import make_task

Edit = Callable[[Path], object]  # of the data below a root


def text(file: str, old: str, new: str) -> Edit:
    """Replace the first `old` in a file."""

    def edit(root: Path) -> None:
        content = (root / file).read_text()
        assert old in content
        (root / file).write_text(content.replace(old, new, 1))

    return edit


def swap_rows(file: str) -> Edit:
    """Exchange the first two rows after the header."""

    def edit(root: Path) -> None:
        header, first, second, *rest = (root / file).read_text().splitlines()
        (root / file).write_text("\n".join([header, second, first, *rest]))

    return edit


def longer(file: str) -> Edit:
    """Replace an image by a file of another size."""

    def edit(root: Path) -> None:
        (root / "new").write_bytes((root / file).read_bytes() + b"\0")
        (root / "new").replace(root / file)

    return edit


def move(file: str, to: str) -> Edit:
    return lambda root: (root / file).rename(root / to)


def repainted(file: str) -> Edit:
    """Replace the content in place; size and time stay."""

    def edit(root: Path) -> None:
        path = root / file
        stat, content = path.stat(), bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    return edit


def pickled(part: str, key: bytes, change: Callable) -> Edit:
    """Change an entry of one of CIFAR-100's files."""

    def edit(root: Path) -> None:
        parts = test_cifar100.contents()
        parts[part][key] = change(parts[part][key])
        test_cifar100.write(root, parts)

    return edit


def write_cifar100(root: Path) -> None:
    root.mkdir()
    test_cifar100.write(root, test_cifar100.contents())


class Kind(NamedTuple):
    write: Edit
    overrides: tuple[str, ...]
    edits: dict[str, Edit]


MICE = "MiceBone/annotations.json"
DOG, TENCH = test_imagenet.WNIDS[1], test_imagenet.WNIDS[0]
KINDS = {
    "manifest": Kind(
        test_folder.write_csv,
        ("dataset=folder", "dataset.manifest=labels.csv"),
        {
            "label": text("labels.csv", "b/4.png,dog", "b/4.png,cat"),
            "answer": text("labels.csv", "train,cat,dog", "train,cat,owl"),
            "missing answer": text("labels.csv", "train,cat,dog", "train,,dog"),
            "split": text("labels.csv", "b/4.png,dog,test", "b/4.png,dog,train"),
            "annotator": text("labels.csv", "ada", "eve"),
            "order": swap_rows("labels.csv"),
            "image": longer("b/5.png"),
            "pixel": repainted("b/5.png"),
        },
    ),
    "tree": Kind(
        test_folder.write_tree,
        ("dataset=folder",),
        {
            "label": move("train/cat/3.png", "train/dog/4.png"),
            "class": lambda root: [move(f"{split}/cat", f"{split}/owl")(root) for split in ("train", "test")],
            "name": move("test/dog/0.png", "test/dog/9.png"),
            "image": longer("test/dog/0.png"),
            "pixel": repainted("test/dog/0.png"),
        },
    ),
    "micebone": Kind(
        test_micebone.write_release,
        ("dataset=micebone",),
        {
            "answer": text(MICE, '"class_label": "g"', '"class_label": "nr"'),
            "annotator": text(MICE, "INVALID533", "INVALID999"),
            "image": longer("MiceBone/fold5/g#_Mouse15#image_0000#00.png"),
            "pixel": repainted("MiceBone/fold5/g#_Mouse15#image_0000#00.png"),
        },
    ),
    "chaoyang": Kind(
        test_chaoyang.write_release,
        ("dataset=chaoyang",),
        {
            "label": text("train.json", '"label": 0', '"label": 1'),
            "answer": text("test.json", '"label_B": 3', '"label_B": 0'),
            "image": longer(test_chaoyang.NAMES["train"][5]),
            "pixel": repainted(test_chaoyang.NAMES["train"][5]),
        },
    ),
    "pl2d": Kind(
        test_chaoyang.write_pl2d,
        ("dataset=chaoyang", "dataset.split=pl2d"),
        {"answer": text("annotations_3/label_B_test.json", '"label": 3', '"label": 0')},
    ),
    "imagenet": Kind(
        test_imagenet.write_release,
        ("dataset=imagenet_dogs",),
        {
            "label": move(f"train/{DOG}/{DOG}_3.JPEG", f"train/{TENCH}/{DOG}_3.JPEG"),
            "name": move(f"val/{DOG}/{DOG}_0.JPEG", f"val/{DOG}/other.JPEG"),
            "image": longer(f"val/{DOG}/{DOG}_0.JPEG"),
        },
    ),
    "cifar100": Kind(
        write_cifar100,
        ("dataset=cifar100", "dataset.verify=false"),
        {
            "label": pickled("train", b"fine_labels", lambda labels: [(labels[0] + 1) % 100, *labels[1:]]),
            "class": pickled("meta", b"fine_label_names", lambda names: [b"pear_tree", *names[1:]]),
            "image": pickled("test", b"data", lambda pixels: pixels ^ np.uint8(1)),
        },
    ),
    "cifar10n": Kind(
        test_cifar10.cifar10n,
        ("dataset=cifar10n",),
        {
            "answer": lambda root: test_cifar10.cifar10n(root, edit=lambda human: human["random_label2"].put(3, 0)),
            "image": repainted("cifar-10-batches-py/data_batch_4"),
        },
    ),
    "cifar10h": Kind(
        test_cifar10.cifar10h,
        ("dataset=cifar10h",),
        {
            "answer": lambda root: test_cifar10.cifar10h(root, edit=lambda votes: votes + 1),
            "image": repainted("cifar-10-batches-py/test_batch"),
        },
    ),
}


@pytest.fixture
def identify(composed, tmp_path, monkeypatch):
    """identify(overrides, root) is the fingerprint that a new process would find."""

    def of(overrides: tuple[str, ...], root: Path | str) -> str:
        cfg = composed(*overrides)
        cfg.dataset.root = str(root)
        if "cache" in cfg.dataset:
            cfg.dataset.cache = str(tmp_path / "cache")
        _data_digest.cache_clear()
        return fingerprint(cfg)

    monkeypatch.setattr(contents, "SETTLED", -1)  # even a new file is remembered
    return of


@pytest.mark.parametrize(("name", "edit"), [(name, edit) for name, kind in KINDS.items() for edit in kind.edits])
def test_other_data_are_another_run_at_another_root_and_at_the_same(identify, tmp_path, name, edit):
    kind = KINDS[name]
    for root in ("a", "b"):
        kind.write(tmp_path / root)
    before = identify(kind.overrides, tmp_path / "a")
    assert identify(kind.overrides, tmp_path / "b") == before
    kind.edits[edit](tmp_path / "b")
    edited = identify(kind.overrides, tmp_path / "b")
    assert edited != before
    kind.edits[edit](tmp_path / "a")
    assert identify(kind.overrides, tmp_path / "a") == edited


@pytest.mark.parametrize("name", KINDS)
def test_the_same_data_elsewhere_or_with_other_times_are_the_same_run(identify, tmp_path, monkeypatch, name):
    kind = KINDS[name]
    kind.write(tmp_path / "data")
    expected = identify(kind.overrides, tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "far/copy")
    for path in (tmp_path / "far").rglob("*"):
        os.utime(path, (1.5e9, 1.5e9))
    (tmp_path / "link").symlink_to(tmp_path / "far/copy")
    monkeypatch.chdir(tmp_path / "far")
    for root in (tmp_path / "far/copy", tmp_path / "link", "copy"):
        assert identify(kind.overrides, root) == expected
    (tmp_path / "data").rename(tmp_path / "moved")
    assert identify(kind.overrides, tmp_path / "moved") == expected


def test_another_tree_at_an_indexed_path_is_listed_again(identify, tmp_path):
    """Its folders may have the names and times of the old ones."""
    test_imagenet.write_release(tmp_path / "data")
    test_imagenet.write_release(tmp_path / "other")
    longer(f"val/{DOG}/{DOG}_0.JPEG")(tmp_path / "other")
    os.utime(tmp_path / "other/val" / DOG, (1e9, 1e9))
    before = identify(("dataset=imagenet_dogs",), tmp_path / "data")
    (tmp_path / "data").rename(tmp_path / "old")
    (tmp_path / "other").rename(tmp_path / "data")
    assert identify(("dataset=imagenet_dogs",), tmp_path / "data") != before


@pytest.mark.parametrize("name", KINDS)
def test_no_image_is_opened_to_identify_data(identify, tmp_path, monkeypatch, name):
    KINDS[name].write(tmp_path / "data")
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("an image was opened"))
    identify(KINDS[name].overrides, tmp_path / "data")


def test_data_are_identified_without_torch(tmp_path):
    commands = []
    for name, kind in KINDS.items():
        kind.write(tmp_path / name)
        commands.append([*kind.overrides, f"dataset.root={tmp_path / name}"])
    code = (
        "import json, sys; from l2d.compose import compose; from l2d.data.load import data_digest; from l2d.identity import run_name\n"
        "for overrides in json.loads(sys.argv[1]):\n"
        "    cfg = compose(overrides)\n"
        "    assert len(data_digest(cfg)) >= 64 and run_name(cfg)\n"
        "    assert 'torch' not in sys.modules, overrides\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("listed", ['"train/gone.JPG"', "3", "null", '"a\\u0000b"', '"' + 5000 * "x" + '"'])
def test_an_entry_that_is_no_file_is_refused_by_its_name(identify, tmp_path, listed):
    test_chaoyang.write_release(tmp_path)
    text("train.json", json.dumps(test_chaoyang.NAMES["train"][0]), listed)(tmp_path)
    with pytest.raises(UserError, match="is listed and cannot be found") as error:
        identify(("dataset=chaoyang",), tmp_path)
    assert str(error.value).startswith(repr(json.loads(listed)))


def own_images(name: str, root: str) -> Dataset:
    """A user's own dataset: arrays in a file."""
    arrays = np.load(Path(root) / "arrays.npz")
    splits = [
        Split(torch.from_numpy(arrays[f"{split}_pixels"]), torch.from_numpy(arrays[f"{split}_labels"]))
        for split in ("train", "test")
    ]
    answers = {split: arrays[f"{split}_answers"] for split in ("train", "test")}
    return Dataset(name, arrays["classes"].tolist(), *splits, annotators={"ada": answers})


def own_files(name: str, root: str) -> Dataset:
    """A user's own dataset: files that stay on disk."""
    preprocessing = Preprocessing((3, 32, 32), (0.5,) * 3, (0.5,) * 3, 36)
    files = ImageFiles(Path(root), ["a/1.png", "a/2.png"], preprocessing)
    return Dataset(name, ["cat", "dog"], *(Split(files, torch.tensor([0, 1])) for _ in range(2)))


@pytest.fixture
def identify_own(composed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def of(function: Callable, root: Path) -> str:
        cfg = composed("experts=human")
        cfg.dataset = OmegaConf.create(
            {"_target_": f"{__name__}.{function.__name__}", "name": "own", "root": str(root)}
        )
        _data_digest.cache_clear()
        return fingerprint(cfg)

    return of


@pytest.mark.parametrize(
    ("entry", "value"),
    [("train_pixels", 7), ("test_labels", 1), ("test_answers", -1), ("classes", "owl"), (None, None)],
)
def test_a_dataset_without_a_listing_is_identified_by_its_content(identify_own, tmp_path, entry, value):
    arrays = {
        "classes": np.array(["cat", "dog"]),
        **{f"{split}_pixels": np.zeros((4, 3, 8, 8), np.uint8) for split in ("train", "test")},
        **{f"{split}_{part}": np.zeros(4, np.int64) for split in ("train", "test") for part in ("labels", "answers")},
    }
    prints = []
    for root in ("a", "b"):
        (tmp_path / root).mkdir()
        np.savez(tmp_path / root / "arrays.npz", **arrays)
        prints.append(identify_own(own_images, tmp_path / root))
        if entry:
            arrays[entry][-1:] = value
    assert (prints[0] == prints[1]) == (entry is None)


def test_files_of_a_dataset_without_a_listing_are_identified_by_name_and_content(identify_own, tmp_path):
    for root in ("a", "b"):
        test_folder.write_images(tmp_path / root)
    assert identify_own(own_files, tmp_path / "a") == identify_own(own_files, tmp_path / "b")
    repainted("a/2.png")(tmp_path / "b")
    assert identify_own(own_files, tmp_path / "a") != identify_own(own_files, tmp_path / "b")
    (tmp_path / "b/a/2.png").unlink()
    with pytest.raises(UserError, match=r"^'a/2\.png' is listed and cannot be found"):
        identify_own(own_files, tmp_path / "b")


def test_data_that_follow_from_their_settings_need_no_digest(composed):
    assert data_digest(composed()) == ""
    assert fingerprint(composed("dataset.num_train=100")) != fingerprint(composed())


@pytest.mark.parametrize(
    "overrides",
    [
        ("evaluation=full",),
        ("evaluation=full", "evaluation.bins=20"),
        ("evaluation.metrics=[mine.METRIC]",),
        ("rule._target_=mine.decide", "rule.name=mine"),
        ("record=none", "record_mb=1"),
    ],
)
def test_settings_used_after_training_do_not_change_the_fingerprint(composed, overrides):
    assert fingerprint(composed(*overrides)) == fingerprint(composed())


def test_data_held_out_from_the_training_change_the_fingerprint(composed):
    assert fingerprint(composed("held_out=0.1")) != fingerprint(composed())


def test_a_run_with_all_annotators_says_so_in_its_name(composed):
    assert "-human-Jall-" in run_name(composed("experts=human", "experts.num=null"))


@pytest.mark.parametrize("experts", ["human", "mixed"])
@pytest.mark.parametrize(("named", "count"), [("[annotator_2,annotator_0,annotator_3]", 3), ("annotator_1", 1)])
def test_naming_annotators_says_how_many_they_are(composed, tiny_dataset, experts, named, count):
    cfg = composed(f"experts={experts}", f"experts.annotators={named}")
    task = make_task(cfg, tiny_dataset(4, annotators=5))
    assert task.expert_names == named.strip("[]").split(",") and task.num_experts == count
    assert f"-{experts}-J{count}-" in run_name(cfg)


@pytest.mark.slow
def test_the_command_line_trains_anew_on_other_data_and_only_then(tmp_path):
    def train(root: str) -> str:
        settings = (
            f"dataset=folder dataset.root={tmp_path / root} dataset.manifest=labels.csv dataset.size=32 dataset.resize=36 "
            f"dataset.cache={tmp_path}/cache backbone=mlp trainer.epochs=1 trainer.batch_size=4 output_dir={tmp_path}/out"
        )
        done = run_l2d("train", *settings.split())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def runs() -> int:
        return len(list((tmp_path / "out/folder").iterdir()))

    for root in ("a", "b"):
        test_folder.write_csv(tmp_path / root)
    longer("a/1.png")(tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "c", copy_function=shutil.copy)
    assert "finished before" not in train("a") and runs() == 1
    assert "finished before" not in train("b") and runs() == 2
    assert "finished before" in train("a") and runs() == 2
    assert "finished before" in train("c") and runs() == 2
    text("labels.csv", "train,cat,dog", "train,cat,owl")(tmp_path / "a")
    assert "finished before" not in train("a") and runs() == 3
    digests = [json.loads(path.read_text())["data"]["digest"] for path in (tmp_path / "out").rglob("result.json")]
    assert len(set(digests)) == 3
