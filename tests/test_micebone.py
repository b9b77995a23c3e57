"""MiceBone: fixtures in the layout of its release, labels and experts entry by entry."""

import json

import numpy as np
import pytest
import torch
from children import run_l2d
from PIL import Image
from releases import ANNOTATOR_ORDER as ORDER
from releases import ANNOTATORS as FULL
from releases import ANSWERS_BY_HAND as BY_HAND
from releases import ORIENTATIONS as CLASSES
from releases import write_micebone as write_release

from l2d.config import build
from l2d.errors import UserError


@pytest.fixture
def load(composed, tmp_path):
    """load("dataset.feed=stream") is the dataset below tmp_path/data with these overrides."""

    def from_overrides(*overrides):
        cfg = composed("dataset=micebone", "dataset.size=32", "dataset.resize=36", *overrides)
        cfg.dataset.root, cfg.dataset.cache = str(tmp_path / "data"), str(tmp_path / "cache")
        return build(cfg, "dataset")

    return from_overrides


def test_labels_and_experts_entry_by_entry(load, tmp_path):
    answers = write_release(tmp_path / "data")
    dataset = load()
    assert dataset.class_names == CLASSES
    assert list(dataset.annotators) == ORDER
    for split, folds in (("train", "1234"), ("test", "5")):
        paths = sorted(p for p in answers if p.split("/")[1][4:] in folds)
        data = getattr(dataset, split)
        assert data.inputs.pixels.shape == (len(paths), 3, 36, 36)
        assert data.inputs.pixels.dtype == torch.uint8
        for i, path in enumerate(paths):
            counts = [answers[path].count(c) for c in CLASSES]
            assert data.labels[i] == counts.index(max(counts)), path
            for j, annotator in enumerate(ORDER):
                assert CLASSES[dataset.annotators[annotator][split][i]] == answers[path][j]
            pixels = Image.open(tmp_path / "data" / path).resize((36, 36), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(data.inputs.pixels[i].numpy(), np.asarray(pixels).transpose(2, 0, 1))
            if "image_0000" in path:
                assert CLASSES[data.labels[i]] == BY_HAND[int(path.split("/")[1][4:])][1]


def test_the_defaults_are_the_recipe_of_the_paper(composed):
    cfg = composed("dataset=micebone")
    assert (cfg.backbone.name, cfg.optim.name, cfg.experts.name) == ("resnet18", "adamw", "human")
    assert (cfg.trainer.epochs, cfg.trainer.batch_size, cfg.optim.lr, cfg.optim.weight_decay) == (100, 128, 3e-4, 5e-4)
    assert (cfg.dataset.size, cfg.dataset.resize, cfg.dataset.augment) == (224, 256, "random_resized_crop_flip")


def test_damaged_images_are_left_out_with_their_answers(load, tmp_path):
    answers = write_release(tmp_path / "data")
    whole = load()
    train = sorted(p for p in answers if "fold5" not in p)
    (tmp_path / "data" / train[3]).write_bytes(b"")
    with pytest.raises(UserError, match=r"1 of 16 images cannot be read: MiceBone/fold1/"):
        load()
    dataset = load("dataset.on_error=skip")
    kept = [i for i in range(16) if i != 3]
    assert torch.equal(dataset.train.inputs.pixels, whole.train.inputs.pixels[kept])
    assert torch.equal(dataset.train.labels, whole.train.labels[kept])
    for annotator in ORDER:
        assert dataset.annotators[annotator]["train"].tolist() == whole.annotators[annotator]["train"][kept].tolist()
    assert len(dataset.test) == 4


def test_unlisted_images_are_reported(load, tmp_path, caplog):
    write_release(tmp_path / "data")
    Image.new("RGB", (4, 4)).save(tmp_path / "data/MiceBone/fold2/stray.png")
    assert len(load().train) == 16
    assert "not used: 1, the first of them MiceBone/fold2/stray.png" in caplog.text


def first(records):
    return records[0]["annotations"][0]


def without_label(records, image, names):
    """These annotators were shown the image and gave no answer."""
    for answer in (a for r in records if r["name"] in names for a in r["annotations"] if a["image_path"] == image):
        answer["class_label"] = None


def test_answers_without_a_label_are_skipped_and_counted(load, tmp_path, caplog):
    """Their annotators stay experts; the label is the majority of the others."""
    image, other = (f"MiceBone/fold{fold}/g#_Mouse{10 + fold}#image_0000#00.png" for fold in (1, 5))

    def edit(records):
        without_label(records, image, ["INVALID47", "INVALID290"])  # g g of g g g g ug ug ug ug
        without_label(records, other, ["INVALID745"])

    write_release(tmp_path / "data", edit=edit)
    dataset = load()
    assert "3 answers without a class_label" in caplog.text
    assert list(dataset.annotators) == ORDER
    row = dataset.train.inputs.ids().index(image)
    assert CLASSES[dataset.train.labels[row]] == "ug"
    assert [dataset.annotators[a]["train"][row] for a in ORDER] == [-1, -1, 0, 0, 1, 1, 1, 1]
    given = {a: {split: (answers >= 0).sum() for split, answers in dataset.annotators[a].items()} for a in ORDER}
    assert given["047"] == given["290"] == {"train": 15, "test": 4} and given["745"] == {"train": 16, "test": 3}


def test_an_image_that_nobody_labelled_and_a_person_who_labelled_none_are_left_out(load, tmp_path, caplog):
    image = "MiceBone/fold1/g#_Mouse11#image_0000#00.png"

    def edit(records):
        without_label(records, image, [f"INVALID{n}" for n in FULL])
        for answer in records[0]["annotations"]:
            answer["class_label"] = None
        records[2]["annotations"].append(
            {**records[2]["annotations"][0], "image_path": "MiceBone/fold1/x.png", "class_label": None}
        )

    write_release(tmp_path / "data", edit=edit)
    dataset = load()
    assert image not in dataset.train.inputs.ids() and len(dataset.train) == 15
    assert list(dataset.annotators) == [a for a in ORDER if a != "533"]
    assert f"not used: 1, the first of them {image}" in caplog.text


def test_a_second_answer_counts_where_the_first_has_no_label(load, tmp_path):
    def edit(records):
        records[0]["annotations"].append(dict(first(records)))
        first(records)["class_label"] = None

    answers = write_release(tmp_path / "data", edit=edit)
    image = next(iter(answers))
    dataset = load()
    row = dataset.train.inputs.ids().index(image)
    assert CLASSES[dataset.annotators["533"]["train"][row]] == answers[image][ORDER.index("533")]


def everywhere(path):
    """Move the first image of every full annotator to `path`."""

    def edit(records):
        old = first(records)["image_path"]
        for answer in (a for r in records for a in r["annotations"] if a["image_path"] == old):
            answer["image_path"] = path

    return edit


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda r: first(r).update(class_label="x"), "INVALID533, MiceBone/fold1/.*'x' is not a class"),
        (lambda r: first(r).pop("class_label"), "class_label"),
        (lambda r: first(r).update(image_path=["a"]), "must be a list of records"),
        (lambda r: r.clear(), "no annotator who labelled every image"),
        (lambda r: [x["annotations"].pop(i) for i, x in enumerate(r)], "no annotator who labelled every image"),
        (lambda r: r[0]["annotations"].append(first(r)), "two answers of annotator 533"),
        (lambda r: r.append(r[0]), "two answers of annotator 533"),
        (everywhere("MiceBone/fold9/a.png"), "none of the folders fold1 to fold5"),
        (everywhere("MiceBone/fold1/gone.png"), "'MiceBone/fold1/gone.png', which is not in"),
        (everywhere("../fold1/a.png"), "'../fold1/a.png', which leads out of"),
    ],
)
def test_invalid_annotations_are_rejected(load, tmp_path, edit, sentence):
    write_release(tmp_path / "data", edit=edit)
    with pytest.raises(UserError, match=sentence):
        load()


def test_a_missing_root_and_a_broken_file(load, tmp_path):
    with pytest.raises(UserError, match=r"dataset\.root=.* does not exist"):
        load()
    write_release(tmp_path / "data")
    (tmp_path / "data/MiceBone/annotations.json").write_text('[{"name": ')
    with pytest.raises(UserError, match=r"annotations\.json is not valid JSON"):
        load()
    (tmp_path / "data/MiceBone/annotations.json").unlink()
    with pytest.raises(UserError, match=r"annotations\.json does not exist"):
        load()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("dataset.feed=fast", r"^dataset\.feed=fast .*auto, resident or stream"),
        ("dataset.on_error=ignore", r"^dataset\.on_error=ignore .*error or skip"),
        ("dataset.augment=blur", r"^dataset\.augment=blur "),
        ("dataset.size=64", r"^dataset\.size=64 .*dataset\.resize=36"),
        ("dataset.size=0", r"^dataset\.size=0 "),
        ("dataset.workers=0", r"^dataset\.workers=0 "),
    ],
)
def test_invalid_settings_are_rejected(load, tmp_path, override, sentence):
    write_release(tmp_path / "data")
    with pytest.raises(UserError, match=sentence):
        load(override)


@pytest.mark.slow
def test_a_whole_run_through_the_command_line(tmp_path):
    write_release(tmp_path / "data")
    settings = (
        f"dataset=micebone dataset.root={tmp_path}/data dataset.cache={tmp_path}/cache dataset.size=32 dataset.resize=36 "
        f"experts.num=4 backbone=timm backbone.name=resnet10t trainer.epochs=1 trainer.batch_size=8 output_dir={tmp_path}/out"
    )
    done = run_l2d("train", *settings.split())
    assert done.returncode == 0, done.stderr
    (result,) = (json.loads(path.read_text()) for path in (tmp_path / "out").rglob("result.json"))
    assert [expert["name"] for expert in result["experts"]] == ORDER[:4]
    assert 0 <= result["metrics"]["system_error"] <= 100
