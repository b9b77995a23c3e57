"""Chaoyang: fixtures in the layout of its release, splits and experts entry by entry."""

import json

import numpy as np
import pytest
import torch
from children import run_l2d
from PIL import Image
from releases import SLIDES as NAMES
from releases import write_chaoyang as write_release

from l2d.config import build
from l2d.errors import UserError


@pytest.fixture
def load(composed, tmp_path):
    def from_overrides(*overrides):
        cfg = composed("dataset=chaoyang", "dataset.size=32", "dataset.resize=36", *overrides)
        cfg.dataset.root, cfg.dataset.cache = str(tmp_path / "data"), str(tmp_path / "cache")
        return build(cfg, "dataset")

    return from_overrides


@pytest.mark.parametrize("train_json", ["train.json", "train_label.json"])
def test_labels_and_experts_entry_by_entry(load, tmp_path, train_json):
    write_release(tmp_path / "data", train_json)
    dataset = load()
    assert dataset.class_names == ["normal", "serrated", "adenocarcinoma", "adenoma"]
    assert list(dataset.annotators) == ["label_A", "label_B"]
    assert dataset.train.labels.tolist() == [0, 1, 2, 3] * 3
    assert dataset.test.labels.tolist() == [0, 1, 2, 3, 0, 1]
    assert dataset.annotators["label_A"]["train"].tolist() == [0, 2, 2, 3] * 3
    assert dataset.annotators["label_A"]["test"].tolist() == [0, 2, 2, 3, 0, 2]
    assert dataset.annotators["label_B"]["train"].tolist() == [3, 1, 2, 2, 0, 1, 1, 3, 0, 0, 2, 3]
    assert dataset.annotators["label_B"]["test"].tolist() == [3, 1, 2, 2, 0, 1]
    assert dataset.train.inputs.pixels.shape == (12, 3, 36, 36)
    red = dataset.train.inputs.pixels[:, 0].float().mean((1, 2))
    assert torch.allclose(red, 10.0 * torch.arange(12), atol=2)  # in the order of the list


def test_the_splits_are_those_of_the_files(load, tmp_path):
    """A test image that another list counts as training."""
    write_release(tmp_path / "data", edit=lambda lists: lists["train"].append(lists["test"].pop()))
    dataset = load()
    assert (len(dataset.train), len(dataset.test)) == (13, 5)


def write_lecodu(root):
    """The release, with two images of the official training split in the test list of setting/."""
    write_release(root)
    lists = {split: json.loads((root / f"{split}.json").read_text()) for split in ("train", "test")}
    lists["test"] += [lists["train"].pop(), lists["train"].pop()]
    (root / "setting").mkdir()
    for split, rows in lists.items():
        (root / f"setting/{split}.json").write_text(json.dumps(rows))
    return lists


def write_pl2d(root, edit=None):
    """The same images and answers, in a list per annotator; those of missing rate 0.3 have 8 of 10 training images."""
    lists = write_lecodu(root)
    files = {
        f"{prefix}{split}": [{"file": row["name"], "label": row[key]} for row in rows]
        for split, rows in lists.items()
        for prefix, key in {"": "label", "label_A_": "label_A", "label_B_": "label_B", "label_C_": "label_C"}.items()
    }
    files |= {"label_A_train_0.3": files["label_A_train"][::-1][2:], "label_B_train_0.3": files["label_B_train"][2:]}
    if edit:
        edit(files)
    (root / "annotations_3").mkdir()
    for name, rows in files.items():
        (root / f"annotations_3/{name}.json").write_text(json.dumps(rows))


@pytest.mark.parametrize("split", ["lecodu", "pl2d"])
def test_other_published_splits(load, tmp_path, split):
    {"lecodu": write_lecodu, "pl2d": write_pl2d}[split](tmp_path / "data")
    assert (len(load().train), len(load().test)) == (12, 6)
    dataset = load(f"dataset.split={split}")
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert dataset.test.labels.tolist() == [0, 1, 2, 3, 0, 1, 3, 2]
    assert list(dataset.annotators) == ["label_A", "label_B"]
    assert dataset.annotators["label_A"]["train"].tolist() == [0, 2, 2, 3, 0, 2, 2, 3, 0, 2]
    assert dataset.annotators["label_A"]["test"].tolist() == [0, 2, 2, 3, 0, 2, 3, 2]
    assert dataset.annotators["label_B"]["test"].tolist() == [3, 1, 2, 2, 0, 1, 3, 2]
    assert dataset.test.inputs.ids()[-1] == NAMES["train"][10]


def test_lists_with_answers_missing(load, tmp_path):
    write_pl2d(tmp_path / "data", lambda files: files["label_B_test"][0].update(label=None))
    dataset = load("dataset.split=pl2d_0.3")
    assert dataset.annotators["label_A"]["train"].tolist() == [0, 2, 2, 3, 0, 2, 2, 3, -1, -1]
    assert dataset.annotators["label_B"]["train"].tolist() == [-1, -1, 2, 2, 0, 1, 1, 3, 0, 0]
    assert dataset.annotators["label_A"]["test"].tolist() == [0, 2, 2, 3, 0, 2, 3, 2]
    assert dataset.annotators["label_B"]["test"].tolist() == [-1, 1, 2, 2, 0, 1, 3, 2]


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda files: files.pop("label_B_train"), "label_B_train.json cannot be read"),
        (lambda files: files["label_A_test"].append(files["train"][0]), "label_A_test.json lists train/353042_4-IMG005x000"),
        (lambda files: files["label_A_test"].append(files["test"][0]), "label_A_test.json has two answers to test/"),
        (lambda files: files["label_A_train"][0].update(label=4), "label_A_train.json, .*'4' is not a class"),
        (lambda files: files["train"][0].update(label=None), "train.json, .*'None' is not a class"),
        (lambda files: files["train"][0].pop("file"), "train.json, record 1, has no file"),
        (lambda files: files["train"][0].update(file=["a"]), "not in|not the path"),
    ],
)  # fmt: skip
def test_lists_of_annotators_that_do_not_fit_are_refused(load, tmp_path, edit, sentence):
    write_pl2d(tmp_path / "data", edit)
    with pytest.raises(UserError, match=sentence):
        load("dataset.split=pl2d")


def test_a_split_whose_files_are_absent_or_unknown(load, tmp_path):
    write_release(tmp_path / "data")
    with pytest.raises(
        UserError, match=r"annotations_3/train\.json does not exist.*dataset\.split=pl2d .*dataset\.train_json"
    ):
        load("dataset.split=pl2d")
    with pytest.raises(UserError, match=r"^dataset\.split=mine .*official"):
        load("dataset.split=mine")
    write_pl2d(tmp_path / "other")
    (tmp_path / "other/annotations_3").rename(tmp_path / "data/pl2d")
    dataset = load("dataset.split=pl2d", "dataset.train_json=pl2d/train.json", "dataset.test_json=pl2d/test.json")
    assert (len(dataset.train), len(dataset.test)) == (10, 8)


def test_an_expert_who_is_always_right_on_the_test_split_is_reported(load, tmp_path, caplog):
    write_release(tmp_path / "data")
    load()
    assert not caplog.text
    dataset = load("dataset.annotators=[label_A,label_B,label_C]")
    assert dataset.annotators["label_C"]["train"].tolist() == [0, 1, 2, 3] * 3
    assert "label_C is right on every test image" in caplog.text


def test_eight_experts_are_two_recorded_and_six_modelled_on_them(load, composed, tmp_path):
    write_release(tmp_path / "data")
    dataset = load()
    cfg = composed("dataset=chaoyang")
    assert (cfg.experts.name, cfg.experts.num) == ("mixed", 2)
    panel = build(composed("dataset=chaoyang", "experts.num=8"), "experts", dataset=dataset, seed=0)
    assert panel.num == 8
    a = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]  # label_A: always 2 where the label is 1
    b = np.array([[2, 0, 0, 1], [1, 2, 0, 0], [0, 1, 2, 0], [0, 0, 1, 2]]) / 3
    np.testing.assert_allclose(panel.confusion, [a, b, a, b, a, b])
    table = panel.answers("test", dataset.test.labels)
    assert table[:, 0].tolist() == [0, 2, 2, 3, 0, 2]
    assert table[:, [2, 4, 6]].T.tolist() == [[0, 2, 2, 3, 0, 2]] * 3  # A's confusion leaves no choice


def test_the_defaults_are_the_recipe_of_the_paper(composed):
    cfg = composed("dataset=chaoyang")
    assert (cfg.backbone.name, cfg.optim.name) == ("resnet18", "adamw")
    assert (cfg.trainer.epochs, cfg.trainer.batch_size, cfg.optim.lr, cfg.optim.weight_decay) == (100, 128, 3e-4, 5e-4)
    assert (cfg.dataset.size, cfg.dataset.resize, cfg.dataset.augment) == (224, 256, "random_resized_crop_flip")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"label": 4}, r"353042_4-IMG005x000-1\.JPG, label: '4' is not a class"),
        ({"label_A": -1}, "label_A: '-1' is not a class"),
        ({"label_B": "polyp"}, "label_B: 'polyp' is not a class"),
        ({"label": True}, "'True' is not a class"),
        ({"name": NAMES["train"][1]}, "IMG005x001-1.JPG' is listed twice"),
        ({"name": NAMES["test"][1]}, "IMG017x001-0.JPG' is listed twice"),
        ({"name": "train/gone.JPG"}, "'train/gone.JPG', which is not in"),
        ({"name": "train/../../secret.JPG"}, "leads out of"),
        ({"name": "/etc/hostname"}, "'/etc/hostname', which leads out of"),
        ({"name": "train/link.JPG"}, "'train/link.JPG', which leads out of"),
        ({"name": "outside/secret.JPG"}, "'outside/secret.JPG', which leads out of"),
        ({"name": 3}, "lists 3, which is not the path"),
        ({"name": "a\0b"}, "is not the path|not in"),
        ({"name": "x" * 5000}, "is not the path"),
        ({"name": None}, "None, which is not the path"),
    ],
)
def test_invalid_entries_are_rejected(load, tmp_path, entry, sentence):
    write_release(tmp_path / "data", edit=lambda lists: lists["train"][0].update(entry))
    (tmp_path / "elsewhere").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "elsewhere/secret.JPG", format="JPEG")
    (tmp_path / "data/train/link.JPG").symlink_to(tmp_path / "elsewhere/secret.JPG")
    (tmp_path / "data/outside").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=sentence):
        load()


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda lists: lists["test"].clear(), "test split of .* has no images"),
        (lambda lists: lists["train"][2].pop("label_B"), "record 3, has no label_B"),
        (lambda lists: lists["train"][0].pop("name"), "record 1, has no name"),
        (lambda lists: lists.update(train={"name": "a"}), "must be a list of records"),
        (lambda lists: lists["train"].append("a"), "must be a list of records"),
    ],
)
def test_invalid_lists_are_rejected(load, tmp_path, edit, sentence):
    write_release(tmp_path / "data", edit=edit)
    with pytest.raises(UserError, match=sentence):
        load()


def test_files_that_are_missing_or_broken(load, tmp_path):
    with pytest.raises(UserError, match=r"dataset\.root=.* does not exist"):
        load()
    write_release(tmp_path / "data")
    with pytest.raises(UserError, match=r"other\.json does not exist; .*dataset\.train_json"):
        load("dataset.train_json=other.json")
    with pytest.raises(UserError, match=r"^dataset\.annotators=label_A "):
        load("dataset.annotators=label_A")
    with pytest.raises(UserError, match="record 1, has no label_D"):
        load("dataset.annotators=[label_A,label_D]")
    for broken in ('[{"name":', "[" * 100_000):
        (tmp_path / "data/test.json").write_text(broken)
        with pytest.raises(UserError, match=r"test\.json is not valid JSON"):
            load()
    (tmp_path / "data/test.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"test\.json is not valid JSON"):
        load()


def test_unlisted_images_are_reported(load, tmp_path, caplog):
    write_release(tmp_path / "data", edit=lambda lists: lists["train"].pop())
    assert len(load().train) == 11
    assert f"not used: 1, the first of them {NAMES['train'][-1]}" in caplog.text


def test_truncated_and_empty_images_are_named(load, tmp_path):
    write_release(tmp_path / "data")
    path = tmp_path / "data" / NAMES["train"][5]
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match=rf"1 of 12 images cannot be read: {NAMES['train'][5]}"):
        load()
    for name in NAMES["test"]:
        (tmp_path / "data" / name).write_bytes(b"")
    with pytest.raises(UserError, match="No image of the test split"):
        load("dataset.on_error=skip")


@pytest.mark.slow
def test_a_whole_run_through_the_command_line(tmp_path):
    write_release(tmp_path / "data")
    settings = (
        f"dataset=chaoyang dataset.root={tmp_path}/data dataset.cache={tmp_path}/cache dataset.size=32 dataset.resize=36 "
        f"experts.num=4 backbone=timm backbone.name=resnet10t trainer.epochs=1 trainer.batch_size=8 output_dir={tmp_path}/out"
    )
    done = run_l2d("train", *settings.split())
    assert done.returncode == 0, done.stderr
    (result,) = (json.loads(path.read_text()) for path in (tmp_path / "out").rglob("result.json"))
    names = ["label_A", "label_B", "label_A_simulated_1", "label_B_simulated_1"]
    assert [expert["name"] for expert in result["experts"]] == names
    assert [round(expert["train_accuracy"]) for expert in result["experts"]][:2] == [75, 67]
