"""Your own images: a folder tree, a CSV or a JSON manifest, annotators with gaps, groups."""

import json

import numpy as np
import pytest
import torch
from children import run_l2d
from PIL import Image
from releases import write_tree

from l2d.config import build
from l2d.data import ImageFiles, Loader
from l2d.errors import UserError
from l2d.experts import human
from l2d.place import Place

# path, label, split, two annotators; ada skipped two images.
ROWS = [
    ("a/1.png", "cat", "train", "cat", "dog"),
    ("a/2.png", "dog", "train", "", "dog"),
    ("a/3.png", "owl", "train", "owl", "cat"),
    ("b/4.png", "dog", "test", "cat", "dog"),
    ("b/5.png", "owl", "test", " ", "owl"),
]
HEADER = ["path", "label", "split", "ada", "bob"]
SMALL = ["dataset.size=32", "dataset.resize=36"]


def write_images(root):
    for n, row in enumerate(ROWS):
        (root / row[0]).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 50), (20 * n, 0, 0)).save(root / row[0])


def write_csv(root, rows=ROWS, header=HEADER):
    write_images(root)
    (root / "labels.csv").write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n")


@pytest.fixture
def load(composed, tmp_path):
    def from_overrides(*overrides):
        cfg = composed("dataset=folder", *SMALL, *overrides)
        cfg.dataset.root, cfg.dataset.cache = str(tmp_path / "data"), str(tmp_path / "cache")
        return build(cfg, "dataset")

    return from_overrides


def check_manifest_dataset(dataset):
    assert dataset.class_names == ["cat", "dog", "owl"]
    assert dataset.train.labels.tolist() == [0, 1, 2]
    assert dataset.test.labels.tolist() == [1, 2]
    answers = {name: {split: a.tolist() for split, a in of.items()} for name, of in dataset.annotators.items()}
    assert answers == {
        "ada": {"train": [0, -1, 2], "test": [0, -1]},
        "bob": {"train": [1, 1, 0], "test": [1, 2]},
    }
    assert dataset.test.inputs.pixels[:, 0].float().mean((1, 2)).tolist() == [60, 80]
    assert human(dataset, 2).answers("test", dataset.test.labels).tolist() == [[0, 1], [-1, 2]]


def test_a_csv_manifest_entry_by_entry(load, tmp_path):
    write_csv(tmp_path / "data")
    check_manifest_dataset(load("dataset.manifest=labels.csv"))


def test_a_long_manifest_entry_by_entry(load, tmp_path):
    """A row per answer; an image that nobody answered would have one row without an annotator."""
    header = ["path", "label", "split", "annotator", "answer"]
    rows = [(*row[:3], name, answer) for row in ROWS for name, answer in zip(HEADER[3:], row[3:], strict=True)]
    del rows[2]  # ada's empty answer to a/2.png
    write_csv(tmp_path / "data", [*rows, (*ROWS[1][:3], "", "")], header)
    check_manifest_dataset(load("dataset.manifest=labels.csv"))
    for row, named in (
        (rows[0], "two answers of ada to a/1.png"),
        (("a/1.png", "dog", "train", "eve", "cat"), "label of a/1.png"),
    ):
        write_csv(tmp_path / "data", [*rows, row], header)
        with pytest.raises(UserError, match=named):
            load("dataset.manifest=labels.csv")


def test_a_json_manifest_entry_by_entry(load, tmp_path):
    """A missing answer may be null, or not there at all."""
    write_images(tmp_path / "data")
    rows = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    rows[1]["ada"] = None
    del rows[4]["ada"]
    (tmp_path / "data/labels.json").write_text(json.dumps(rows))
    check_manifest_dataset(load("dataset.manifest=labels.json"))


def test_classes_may_be_listed_and_labels_be_numbers(load, tmp_path):
    """The order is then the list's; 1.0 is how a column of integers with gaps is often written."""
    number = {"owl": "0", "cat": "1.0", "dog": "2"}
    write_csv(tmp_path / "data", [(p, number[y], s, number.get(a, ""), b) for p, y, s, a, b in ROWS])
    dataset = load("dataset.manifest=labels.csv", "dataset.classes=[owl,cat,dog]")
    assert dataset.class_names == ["owl", "cat", "dog"]
    assert dataset.train.labels.tolist() == [1, 2, 0]
    assert dataset.annotators["ada"]["train"].tolist() == [1, -1, 0]
    assert dataset.annotators["bob"]["train"].tolist() == [2, 2, 1]  # by name, in the same file


def test_numbers_without_a_list_are_names_in_numerical_order(load, tmp_path):
    number = {"cat": "10", "dog": "9", "owl": "2"}
    write_csv(tmp_path / "data", [(p, number[y], s, "", "") for p, y, s, _, _ in ROWS])
    dataset = load("dataset.manifest=labels.csv")
    assert dataset.class_names == ["2", "9", "10"]
    assert dataset.train.labels.tolist() == [2, 1, 0]


def test_annotators_are_the_columns_named(load, tmp_path):
    write_csv(tmp_path / "data", [(*row, n) for n, row in enumerate(ROWS)], [*HEADER, "patient"])
    with pytest.raises(UserError, match=r"labels\.csv, a/1\.png, patient: '0' is not a class"):
        load("dataset.manifest=labels.csv")
    assert list(load("dataset.manifest=labels.csv", "dataset.annotators=[bob]").annotators) == ["bob"]
    with pytest.raises(UserError, match="names eve, which is no column"):
        load("dataset.manifest=labels.csv", "dataset.annotators=[bob,eve]")


def test_a_folder_tree(load, tmp_path):
    write_tree(tmp_path / "data")
    (tmp_path / "data/train/cat/deeper").mkdir()
    Image.new("RGB", (40, 40), (0, 0, 7)).save(tmp_path / "data/train/cat/deeper/x.png")
    (tmp_path / "data/train/cat/notes.txt").write_text("no image")
    (tmp_path / "data/train/.hidden").mkdir()
    dataset = load()
    assert dataset.class_names == ["cat", "dog"]
    assert dataset.train.labels.tolist() == [0] * 5 + [1] * 4
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    colours = [tuple(image[:, 18, 18].tolist()) for image in dataset.train.inputs.pixels]
    assert colours == [(0, 20 * n, 0) for n in range(4)] + [(0, 0, 7)] + [(100, 20 * n, 0) for n in range(4)]
    assert dataset.annotators == {}
    with pytest.raises(UserError, match="has none"):
        human(dataset, 2)


def test_groups_are_class_names_in_their_order(load, tmp_path):
    write_csv(tmp_path / "data")
    dataset = load("dataset.manifest=labels.csv", "dataset.groups={pets:[dog,cat],birds:[owl]}")
    assert dataset.groups == {"pets": [1, 0], "birds": [2]}
    with pytest.raises(UserError, match=r"dataset\.groups\.pets: 'emu' is not a class; the classes are cat, dog, owl"):
        load("dataset.manifest=labels.csv", "dataset.groups={pets:[emu]}")


def test_streaming_keeps_the_files_on_disk(load, tmp_path):
    write_csv(tmp_path / "data")
    dataset = load("dataset.manifest=labels.csv", "dataset.feed=stream", "dataset.workers=1", "dataset.on_error=skip")
    images = dataset.train.inputs
    assert isinstance(images, ImageFiles)
    assert (images.paths, images.preprocessing.resize, images.workers) == (["a/1.png", "a/2.png", "a/3.png"], 36, 1)
    assert images.on_error == "skip"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (("a/1.png", "", "train", "cat", "dog"), r"a/1\.png, label: '' is not a class"),
        (("a/1.png", "cat", "exam", "cat", "dog"), "split 'exam' must be train, test, val"),
        (("a/1.png", "cat", "train", "lion", "dog"), "ada: 'lion' is not a class"),
        (("a/1.png", "cat", "test", "owl", "dog"), "Class cat has test images .* no training images"),
        (("a/2.png", "cat", "train", "cat", "dog"), "'a/2.png' is listed twice"),
        (("a/./2.png", "cat", "test", "cat", "dog"), "is listed twice"),
        (("../x.png", "cat", "train", "cat", "dog"), "'../x.png', which leads out of"),
        (("a", "cat", "train", "cat", "dog"), "'a', which is not in"),
        (("a/1.png", "cat", "train", "cat"), "record 1, does not have the header's 5 cells"),
        (("a/1.png", "cat", "train", "cat", "dog", "dog"), "record 1, does not have the header's 5 cells"),
    ],
)
def test_invalid_rows_are_rejected(load, tmp_path, changed, sentence):
    write_csv(
        tmp_path / "data", [changed, *ROWS[1:], ("a/1.png", "cat", "train", "", "")][: 5 + ("2.png" in changed[0])]
    )
    with pytest.raises(UserError, match=sentence):
        load("dataset.manifest=labels.csv")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"path,label\na/1.png,cat\n", "record 1, has no split"),
        (b"path,label,split,ada,ada\na/1.png,cat,train,cat,cat\n", "two columns of the same name"),
        (b"", "train split of .* has no images"),
        (b"path,label,split\na/1.png,cat,train\n", "test split of .* has no images"),
        (b"path,label,split\n\xff\xfe,cat,train\n", "not a CSV file in UTF-8"),
        (b'path,label,split\n"a/1.png,cat,train\n', "not a CSV file"),
    ],
)
def test_invalid_manifests_are_rejected(load, tmp_path, content, sentence):
    write_images(tmp_path / "data")
    (tmp_path / "data/labels.csv").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        load("dataset.manifest=labels.csv")


@pytest.mark.parametrize(
    ("called", "splits", "held_out"),
    [
        ({"train": "train", "test": "test", "val": "val"}, None, 3),
        ({"train": "train", "test": "val"}, None, None),
        ({"train": "train", "test": "valid"}, {"test": "valid"}, None),
        ({"train": "Training", "test": "val", "val": "test"}, {"train": "training", "test": "val", "val": "test"}, 3),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_splits_by_whatever_name(load, tmp_path, called, splits, held_out, listed):
    """3 images a split and class; as a folder tree, and as a manifest of the same."""
    rows = []
    for split, folder in called.items():
        for name in ("cat", "NA"):
            (tmp_path / "data" / folder / name).mkdir(parents=True)
            for n in range(3 if split == "val" else 4):
                path = f"{folder}/{name}/{n}.png"
                Image.new("RGB", (40, 40), (n, 0, 0)).save(tmp_path / "data" / path)
                rows.append((path, name, folder))
    words = []
    if listed:
        text = "\n".join("\t".join(row) for row in [("path", "label", "split"), *rows])
        (tmp_path / "data/labels.tsv").write_text(text)
        words = ["dataset.manifest=labels.tsv", "dataset.classes=[NA,cat]"]
    dataset = load(*words, *([f"dataset.splits={splits}".replace("'", "")] if splits else []))
    assert dataset.class_names == ["NA", "cat"]
    assert len(dataset.train) == len(dataset.test) == 8
    assert (dataset.held_out and len(dataset.held_out)) == (held_out and 2 * held_out)
    first = called["test"]
    assert all(name.startswith(f"{first}/") for name in dataset.test.inputs.ids())


@pytest.mark.parametrize("splits", ["{exam: val}", "{train: a, test: a}"])
def test_splits_that_make_no_sense_are_refused(load, tmp_path, splits):
    write_tree(tmp_path / "data")
    with pytest.raises(UserError, match=r"dataset\.splits="):
        load(f"dataset.splits={splits}")


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ";"), (".tsv", "\t"), (".csv", "\t"), (".txt", "|")])
def test_tables_with_other_delimiters_and_gaps_as_pandas_writes_them(load, tmp_path, suffix, mark):
    write_images(tmp_path / "data")
    numbers = {"cat": "0.0", "dog": "1.0", "owl": "2.0", "": "NA", " ": "nan"}
    rows = [HEADER, *((path, numbers[label], split, numbers[a], numbers[b]) for path, label, split, a, b in ROWS)]
    (tmp_path / f"data/labels{suffix}").write_text("\n".join(mark.join(row) for row in rows) + "\n")
    for classes, names in (
        ("null", ["0", "1", "2"]),
        ("[0,1,2]", ["0", "1", "2"]),
        ("[cat,dog,owl]", ["cat", "dog", "owl"]),
    ):
        dataset = load(f"dataset.manifest=labels{suffix}", f"dataset.classes={classes}")
        assert dataset.class_names == names and dataset.train.labels.tolist() == [0, 1, 2]
        assert dataset.annotators["ada"]["train"].tolist() == [0, -1, 2]


@pytest.mark.parametrize(("name", "named"), [("labels.xlsx", "spreadsheet"), ("labels.json", "not valid JSON")])
def test_a_file_that_is_no_table_is_named_for_what_it_is(load, tmp_path, name, named):
    write_images(tmp_path / "data")
    (tmp_path / "data" / name).write_bytes(b"PK\3\4")
    with pytest.raises(UserError, match=rf"{name} .*{named}"):
        load(f"dataset.manifest={name}")


def test_invalid_layouts_are_rejected(load, tmp_path):
    with pytest.raises(UserError, match=r"dataset\.root=.* does not exist"):
        load()
    write_images(tmp_path / "data")
    with pytest.raises(UserError, match=r"dataset\.root=.*needs a folder for each split, train and test"):
        load()
    with pytest.raises(UserError, match=r"none\.csv cannot be read"):
        load("dataset.manifest=none.csv")
    write_tree(tmp_path / "data", test=0)
    with pytest.raises(UserError, match=r"test split of .* has no images"):
        load()


def test_a_class_folder_that_is_a_link_to_elsewhere_is_refused(load, tmp_path):
    write_tree(tmp_path / "data")
    (tmp_path / "data/train/dog").rename(tmp_path / "dog")
    (tmp_path / "data/train/dog").symlink_to(tmp_path / "dog")
    with pytest.raises(UserError, match=r"'train/dog/0\.png', which leads out of"):
        load()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("dataset.classes=cat", r"^dataset\.classes=cat "),
        ("dataset.annotators=ada", r"^dataset\.annotators=ada "),
        ("dataset.groups=[cat]", r"^dataset\.groups=\['cat'\] "),
        ("dataset.groups={pets:cat}", r"^dataset\.groups\.pets=cat "),
    ],
)
def test_settings_of_the_wrong_kind_are_rejected(load, tmp_path, override, sentence):
    write_csv(tmp_path / "data")
    with pytest.raises(UserError, match=sentence):
        load("dataset.manifest=labels.csv", override)


def test_listed_classes_must_differ(load, tmp_path):
    write_tree(tmp_path / "data")
    with pytest.raises(UserError, match=r"^The classes cat, cat "):
        load("dataset.classes=[cat,cat]")
    with pytest.raises(UserError, match="'dog' is not a class; the classes are cat"):
        load("dataset.classes=[cat]")


def test_resident_and_stream_hold_the_same_images(load, tmp_path):
    """Stored at `resize`, so that nothing is resampled: the evaluated batches are equal bit by bit."""
    write_tree(tmp_path / "data")
    rng = np.random.default_rng(0)
    for path in (tmp_path / "data").rglob("*.png"):
        Image.fromarray(rng.integers(0, 256, (36, 40, 3), dtype=np.uint8)).save(path)
    batches = []
    for feed in ("resident", "stream"):
        dataset = load(f"dataset.feed={feed}", "dataset.workers=1")
        batches.append(list(Loader(dataset.test, Place(), batch_size=3).epoch()))
    for resident, stream in zip(*batches, strict=True):
        assert torch.equal(resident.labels, stream.labels)
        assert torch.equal(resident.inputs, stream.inputs)


def run(tmp_path, *overrides):
    settings = (
        f"dataset=folder dataset.root={tmp_path}/data dataset.cache={tmp_path}/cache output_dir={tmp_path}/out "
        "backbone=timm backbone.name=resnet10t trainer.epochs=1 trainer.batch_size=2"
    )
    return run_l2d("train", *SMALL, *overrides, *settings.split())


@pytest.mark.slow
def test_a_whole_run_through_the_command_line(tmp_path):
    write_csv(tmp_path / "data")
    done = run(tmp_path, "dataset.manifest=labels.csv", "experts=mixed", "experts.num=3")
    assert done.returncode == 0, done.stderr
    (result,) = (json.loads(path.read_text()) for path in (tmp_path / "out").rglob("result.json"))
    assert [expert["name"] for expert in result["experts"]] == ["ada", "bob", "ada_simulated_1"]


@pytest.mark.slow
def test_a_damaged_image_ends_the_command_with_a_sentence(tmp_path):
    write_csv(tmp_path / "data")
    (tmp_path / "data/b/4.png").write_bytes(b"")
    done = run(tmp_path, "dataset.manifest=labels.csv")
    assert done.returncode == 2
    assert done.stderr.strip().startswith("l2d: 1 of 2 images cannot be read: b/4.png;")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
