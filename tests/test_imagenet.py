"""ImageNet: its folder layout and the dog classes, the cached index of files, and what must be refused."""

import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from releases import WNIDS, picture
from releases import write_imagenet as write_release
from timm.data import ImageNetInfo

import l2d.data.imagenet as module
from l2d.config import build
from l2d.data.imagenet import DOGS
from l2d.errors import UserError


@pytest.fixture
def root(tmp_path):
    write_release(tmp_path / "imagenet")
    return tmp_path / "imagenet"


def load(root, **changed):
    settings = {
        "name": "imagenet_dogs", "root": str(root), "subset": None, "size": 32, "resize": 36,
        "augment": "random_resized_crop_flip", "cache": str(root.parent / "cache"), "workers": 0, "on_error": "error",
    }  # fmt: skip
    cfg = OmegaConf.create({"dataset": {"_target_": "l2d.data.imagenet_dogs", **settings, **changed}})
    return build(cfg, "dataset")


def test_the_dogs_are_classes_151_to_268_without_251_and_273_to_275_of_the_thousand():
    thousand = ImageNetInfo().label_names()
    assert len(thousand) == 1000 and thousand == sorted(thousand)
    expected = [k for k in range(151, 269) if k != 251] + [273, 274, 275]
    assert [thousand.index(wnid) for wnid in DOGS] == expected and len(DOGS) == 120


def test_a_class_is_the_rank_of_its_wnid_and_the_dogs_are_a_group(root):
    dataset = load(root)
    assert dataset.class_names == WNIDS and dataset.groups == {"dog": [1, 2, 3]}
    assert (len(dataset.train), len(dataset.test)) == (20, 10)
    for split, folder in ((dataset.train, "train"), (dataset.test, "val")):
        for path, label in zip(split.inputs.paths, split.labels.tolist(), strict=True):
            assert path.startswith(f"{folder}/{WNIDS[label]}/") and (split.inputs.root / path).is_file()


def test_the_dogs_alone_are_a_task_of_their_own(root):
    dataset = load(root, subset="dogs")
    assert dataset.class_names == WNIDS[1:4] and dataset.groups == {"dog": [0, 1, 2]}
    assert sorted(set(dataset.train.labels.tolist())) == [0, 1, 2] and len(dataset.test) == 6


def forbid_listing(monkeypatch):
    def refuse(root, folder):
        raise AssertionError(f"{folder} was listed again")

    monkeypatch.setattr(module, "_images", refuse)


def test_the_index_is_kept_and_only_changed_folders_are_listed_again(root, monkeypatch):
    before = load(root).train.inputs.paths
    with monkeypatch.context() as patch:
        forbid_listing(patch)
        assert load(root).train.inputs.paths == before
        load(root, subset="dogs")
    changed = root / "train" / WNIDS[1]
    (changed / f"{WNIDS[1]}_0.JPEG").rename(changed / "new.JPEG")
    listed = []
    real = module._images
    monkeypatch.setattr(
        module, "_images", lambda root, folder, *rest: listed.append(folder) or real(root, folder, *rest)
    )
    after = load(root).train.inputs.paths
    assert set(before) ^ set(after) == {f"train/{WNIDS[1]}/{WNIDS[1]}_0.JPEG", f"train/{WNIDS[1]}/new.JPEG"}
    assert listed == [f"train/{WNIDS[1]}"]


def test_a_recently_modified_folder_is_listed_again(root):
    folder = root / "val" / WNIDS[0]
    picture(folder / "a.JPEG", 3)
    assert len(load(root).test) == 11
    now = folder.stat()
    picture(folder / "b.JPEG", 3)
    os.utime(folder, ns=(now.st_atime_ns, now.st_mtime_ns))  # within the clock's resolution of the first
    assert len(load(root).test) == 12


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-9], lambda c: b"", lambda c: c.replace(b"n01440764_1", b"n01440764_9")]
)
def test_a_damaged_index_is_made_again(root, damage):
    before = load(root).train.inputs.paths
    (index,) = (root.parent / "cache").glob("*.index2")
    index.write_bytes(damage(index.read_bytes()))
    assert load(root).train.inputs.paths == before
    assert [f.name for f in (root.parent / "cache").iterdir()] == [index.name]


def test_the_index_goes_to_the_users_cache_folder_unless_told_otherwise(root, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    load(root, cache=None)
    assert len(list((tmp_path / "xdg" / "l2d").glob("*.index2"))) == 1
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written .*dataset\.cache"):
        load(root, cache=str(tmp_path / "file"))


def test_a_missing_root_or_another_layout_is_refused(root, tmp_path):
    with pytest.raises(UserError, match=r"nowhere does not exist; point dataset\.root"):
        load(tmp_path / "nowhere")
    (root / "val" / WNIDS[0]).rename(root / "elsewhere")
    with pytest.raises(UserError, match=r"val lacks 1 class folders that train has, the first being n01440764"):
        load(root)
    (root / "val").rename(root / "sorted")
    with pytest.raises(UserError, match="val does not exist"):
        load(root)
    (root / "val").mkdir()
    picture(root / "val" / "ILSVRC2012_val_00000001.JPEG", 3)
    with pytest.raises(UserError, match="val has no class folders"):
        load(root)


def test_folders_without_images_or_without_dogs_are_refused(tmp_path):
    for split in ("train", "val"):
        (tmp_path / "empty" / split / "n01440764").mkdir(parents=True)
    with pytest.raises(UserError, match="train hold no images"):
        load(tmp_path / "empty")
    with pytest.raises(UserError, match=r"dataset\.subset=dogs: none of the class folders"):
        load(tmp_path / "empty", subset="dogs")


@pytest.mark.parametrize(
    "setting, value", [("subset", "cats"), ("on_error", "ignore"), ("size", 40), ("workers", -1), ("augment", "blur")]
)
def test_settings_that_cannot_work_are_refused_by_name(root, setting, value):
    with pytest.raises(UserError, match=f"dataset.{setting}={value}"):
        load(root, **{setting: value})


def test_links_that_leave_the_root_are_refused_and_others_are_not(root, tmp_path):
    picture(tmp_path / "secret.JPEG", 3)
    link = root / "train" / WNIDS[0] / "link.JPEG"
    link.symlink_to(root / "train" / WNIDS[0] / f"{WNIDS[0]}_3.JPEG")
    assert len(load(root).train) == 21
    link.unlink()
    link.symlink_to(tmp_path / "secret.JPEG")
    with pytest.raises(UserError, match=r"link\.JPEG leads out of"):
        load(root)
    link.unlink()
    (root / "val" / WNIDS[0]).rename(tmp_path / "outside")
    (root / "val" / WNIDS[0]).symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match=r"n01440764 leads out of"):
        load(root)


def train(root, *overrides: str) -> subprocess.CompletedProcess:
    command = [
        sys.executable, "-m", "l2d.train", "dataset=imagenet_dogs", f"dataset.root={root}", "dataset.size=32",
        "dataset.resize=36", f"dataset.cache={root.parent / 'cache'}", "dataset.workers=2", "experts.num=3",
        "experts.classes_per_expert=1", "trainer.epochs=1", "trainer.batch_size=8", "backbone=timm",
        "backbone.name=resnet10t", f"output_dir={root.parent / 'out'}", *overrides,
    ]  # fmt: skip
    return subprocess.run(
        command,
        cwd=root.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::ResourceWarning"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_whole_runs_through_the_command_line(root):
    done = train(root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "system_error" in done.stdout and list((root.parent / "out").rglob("result.json"))
    damaged = root / "val" / WNIDS[1] / f"{WNIDS[1]}_1.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:300])
    refused = train(root, "seed=1")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"l2d: {damaged} is not a readable image") and refused.stderr.count("\n") == 1
