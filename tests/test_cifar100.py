"""CIFAR-100: files in the distributed layout, read after their checksum or by an unpickler that runs nothing."""

import hashlib
import os
import pickle

import numpy as np
import pytest
import torch
from children import run_l2d
from releases import COARSE, FINE
from releases import cifar100_parts as contents
from releases import write_cifar100 as write

from l2d.data import cifar100 as read_cifar100
from l2d.data.cifar import CIFAR100
from l2d.errors import UserError

ANIMALS = [  # worked by hand: superclass by superclass, then by label
    *(4, 30, 55, 72, 95),  # beaver dolphin otter seal whale
    *(1, 32, 67, 73, 91),  # aquarium_fish flatfish ray shark trout
    *(6, 7, 14, 18, 24),  # bee beetle butterfly caterpillar cockroach
    *(3, 42, 43, 88, 97),  # bear leopard lion tiger wolf
    *(15, 19, 21, 31, 38),  # camel cattle chimpanzee elephant kangaroo
    *(34, 63, 64, 66, 75),  # fox porcupine possum raccoon skunk
    *(26, 45, 77, 79, 99),  # crab lobster snail spider worm
    *(2, 11, 35, 46, 98),  # baby boy girl man woman
    *(27, 29, 44, 78, 93),  # crocodile dinosaur lizard snake turtle
    *(36, 50, 65, 74, 80),  # hamster mouse rabbit shrew squirrel
]


def load(root, download=False, verify=False):
    return read_cifar100("cifar100", str(root), download, verify)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_images_and_labels_are_those_of_the_files(tmp_path, protocol):
    parts = contents()
    write(tmp_path, parts, protocol)
    dataset = load(tmp_path)
    assert dataset.class_names == FINE.split() and dataset.preprocessing.shape == (3, 32, 32)
    for split, count in ((dataset.train, 200), (dataset.test, 100)):
        assert split.inputs.pixels.shape == (count, 3, 32, 32) and split.inputs.pixels.dtype == torch.uint8
    raw = parts["train"]
    assert dataset.train.labels.tolist() == raw[b"fine_labels"]
    for channel, row, column in ((0, 0, 0), (1, 4, 7), (2, 31, 30)):  # planes R, G, B; rows of 32
        pixel = raw[b"data"][5, 1024 * channel + 32 * row + column]
        assert dataset.train.inputs.pixels[5, channel, row, column] == pixel


def test_the_groups_are_every_superclass_and_the_fifty_biological_classes(tmp_path):
    write(tmp_path, contents())
    groups = load(tmp_path).groups
    assert groups["animal"] == ANIMALS and len(set(ANIMALS)) == 50
    assert set(groups) == {*COARSE.split(), "animal"}
    assert groups["vehicles_1"] == [8, 13, 48, 58, 90]  # bicycle bus motorcycle pickup_truck train
    assert all(len(classes) == 5 for name, classes in groups.items() if name != "animal")


def test_a_file_with_another_checksum_is_refused_and_one_with_the_right_checksum_is_not(tmp_path, monkeypatch):
    write(tmp_path, contents())
    with pytest.raises(UserError, match=r"is not the file that CIFAR-100 distributes.*dataset\.verify=false"):
        load(tmp_path, verify=True)
    for part in CIFAR100.md5:
        content = (tmp_path / "cifar-100-python" / part).read_bytes()
        monkeypatch.setitem(CIFAR100.md5, part, hashlib.md5(content).hexdigest())
    assert len(load(tmp_path, verify=True).train) == 200


class Foreign:
    """Unpickling it would make a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("part", ["train", "meta"])
def test_a_foreign_class_in_a_pickle_is_refused_and_not_run(tmp_path, part):
    parts = contents()
    parts[part][b"extra"] = Foreign(tmp_path / "ran")
    write(tmp_path, parts)
    pickle.loads((tmp_path / "cifar-100-python" / part).read_bytes())
    assert (tmp_path / "ran").exists()  # it does run where nothing stops it
    (tmp_path / "ran").rmdir()
    with pytest.raises(UserError, match=rf"{part} is not CIFAR-100's \(it asks to load (posix|nt)\.mkdir: refused"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def change(part: str, key: bytes, value):
    def apply(parts):
        parts[part][key] = value(parts[part][key])

    return apply


@pytest.mark.parametrize(
    "damage, sentence",
    [
        (change("train", b"fine_labels", lambda v: [100, *v[1:]]), "train does not hold one label from 0 to 99"),
        (change("test", b"fine_labels", lambda v: [-1, *v[1:]]), "test does not hold one label from 0 to 99"),
        (change("train", b"coarse_labels", lambda v: [20, *v[1:]]), "label from 0 to 19 .* in its coarse_labels"),
        (change("train", b"fine_labels", lambda v: v[1:]), "does not hold one label"),
        (change("train", b"fine_labels", lambda v: ["cat"] * len(v)), "does not hold one label"),
        (change("train", b"data", lambda v: v[:, :3000]), "train does not hold 3072 bytes an image"),
        (change("train", b"data", lambda v: v.astype(np.float32)), "train does not hold 3072 bytes an image"),
        (lambda parts: parts["test"].pop(b"data"), "test is not CIFAR-100's"),
        (lambda parts: parts["meta"].pop(b"fine_label_names"), "meta is not CIFAR-100's"),
    ],
)
def test_wrong_contents_end_in_a_sentence(tmp_path, damage, sentence):
    parts = contents()
    damage(parts)
    write(tmp_path, parts)
    with pytest.raises(UserError, match=sentence):
        load(tmp_path)


def test_missing_and_truncated_files_end_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"has no folder cifar-100-python.*dataset\.download=true"):
        load(tmp_path)
    write(tmp_path, contents())
    meta = tmp_path / "cifar-100-python" / "meta"
    whole = meta.read_bytes()
    for content in (whole[:-20], b""):
        meta.write_bytes(content)
        with pytest.raises(UserError, match="meta is not CIFAR-100's"):
            load(tmp_path)
    meta.unlink()
    with pytest.raises(UserError, match=r"meta cannot be read .*dataset\.root"):
        load(tmp_path)


def test_download_is_torchvisions(tmp_path, monkeypatch):
    asked = []

    def fetch(root, download):
        asked.append((root, download))
        write(tmp_path, contents())

    monkeypatch.setattr("torchvision.datasets.CIFAR100", fetch)
    assert len(load(tmp_path, download=True).test) == 100
    assert asked == [(str(tmp_path), True)]

    def offline(root, download):
        raise OSError("no route")

    monkeypatch.setattr("torchvision.datasets.CIFAR100", offline)
    with pytest.raises(UserError, match=r"CIFAR-100 cannot be fetched \(no route\)"):
        load(tmp_path, download=True)


@pytest.mark.slow
def test_a_whole_run_through_the_command_line(tmp_path):
    write(tmp_path, contents())
    command = [
        "train", "dataset=cifar100", f"dataset.root={tmp_path}", "dataset.verify=false",
        "backbone.depth=10", "backbone.width=1", "trainer.epochs=1", "trainer.batch_size=50",
        f"output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    done = run_l2d(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "system_error" in done.stdout and list((tmp_path / "out").rglob("result.json"))
