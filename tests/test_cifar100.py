"""CIFAR-100: files in the distributed layout, read after their checksum or by an unpickler that runs nothing."""

import hashlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from l2d.data import cifar100 as read_cifar100
from l2d.data.cifar import CIFAR100
from l2d.errors import UserError

# The distributed names, and the superclass of every fine label.
FINE = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm"""
COARSE = """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
vehicles_2"""
SUPERCLASS = [
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12,
    14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1,
    9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
]  # fmt: skip
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


def contents(images_per_class: int = 2) -> dict[str, dict]:
    """The three files' dictionaries, small: every class is there."""
    rng = np.random.default_rng(0)

    def part(name: str, each: int) -> dict:
        labels = [int(k) for k in rng.permutation(np.repeat(np.arange(100), each))]
        return {
            b"filenames": [f"{name}_{i}.png".encode() for i in range(len(labels))],
            b"batch_label": name.encode(),
            b"fine_labels": labels,
            b"coarse_labels": [SUPERCLASS[k] for k in labels],
            b"data": rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8),
        }

    meta = {
        b"fine_label_names": [n.encode() for n in FINE.split()],
        b"coarse_label_names": [n.encode() for n in COARSE.split()],
    }
    return {"train": part("train", images_per_class), "test": part("test", 1), "meta": meta}


def write(root, parts: dict[str, dict], protocol: int = 2) -> None:
    (root / "cifar-100-python").mkdir(exist_ok=True)
    for name, part in parts.items():
        (root / "cifar-100-python" / name).write_bytes(pickle.dumps(part, protocol))


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
        sys.executable, "-m", "l2d.train", "dataset=cifar100", f"dataset.root={tmp_path}", "dataset.verify=false",
        "backbone.depth=10", "backbone.width=1", "trainer.epochs=1", "trainer.batch_size=50",
        f"output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "system_error" in done.stdout and list((tmp_path / "out").rglob("result.json"))
