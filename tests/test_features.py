"""Vectors from one file: what is read, how it is split, standardised and fed, and what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from l2d.cli import main
from l2d.data import MISSING, Loader, Preprocessing, Split, Vectors, features
from l2d.data.features import load_npz, statistics
from l2d.errors import UserError
from l2d.place import Place, Ranks

X = np.array([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 70]], dtype=np.float16)
Y = np.array([0, 1, 0, 1, 2, 1])
ANSWERS = np.array([[0, 1], [1, -1], [2, 0], [1, 1], [2, 2], [-1, 1]])
SPLIT = np.array(["train", "train", "train", "test", "test", "val"])
DEFAULTS = {
    "name": "features", "cache": None, "label": "label", "split": "split", "ids": "id", "columns": "x", "annotators": None,
    "classes": None, "groups": None, "test_share": 0.5, "split_seed": 0, "standardise": True,
}  # fmt: skip


def load(path, **settings):
    return features(path=str(path), **{**DEFAULTS, **settings})


def values(split) -> list:
    return np.concatenate(list(split.inputs.parts())).tolist()


def write(file: Path) -> Path:
    """The same six samples in every format."""
    if file.suffix == ".npz":
        np.savez(file, x=X, y=Y, answers=ANSWERS, split=SPLIT, names=["ada", "bob"], ids=list("abcdef"))
        return file
    given = np.where(ANSWERS == MISSING, np.nan, ANSWERS)
    columns = {"id": list("abcdef"), "x_1": X[:, 0], "x_2": X[:, 1], "label": Y, "split": SPLIT}
    frame = pd.DataFrame({**columns, "ada": given[:, 0], "bob": given[:, 1]})
    if file.suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
        frame.to_parquet(file)
    else:
        frame.to_csv(file, sep="\t" if file.suffix == ".tsv" else ",", index=False)
    return file


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv", ".tsv"])
def test_the_same_data_in_every_format(tmp_path, suffix):
    dataset = load(write(tmp_path / f"data{suffix}"))
    assert dataset.class_names == ["0", "1", "2"] and list(dataset.annotators) == ["ada", "bob"]
    assert {name: split.labels.tolist() for name, split in dataset.splits().items()} == {
        "train": [0, 1, 0],
        "test": [1, 2],
        "held_out": [1],
    }
    assert values(dataset.train) == X[:3].tolist() and values(dataset.held_out) == [[6, 70]]
    assert dataset.annotators["bob"]["train"].tolist() == [1, MISSING, 0]
    assert dataset.annotators["ada"]["held_out"].tolist() == [MISSING]
    assert dataset.test.inputs.ids() == ["d", "e"]
    assert dataset.preprocessing.shape == (2,) and dataset.train.inputs.values.flags.writeable  # or torch warns
    np.testing.assert_allclose(dataset.preprocessing.mean, [2, 20])
    np.testing.assert_allclose(dataset.preprocessing.std, np.array([1, 10]) * np.sqrt(2 / 3))


def test_arrays_are_mapped_and_stay_in_half_precision(tmp_path):
    arrays = load_npz(write(tmp_path / "data.npz"))
    assert isinstance(arrays["x"], np.memmap) and arrays["x"].dtype == np.float16
    vectors = load(tmp_path / "data.npz").train.inputs
    assert (
        np.shares_memory(vectors.values, vectors.take(torch.tensor([1])).values) and vectors.values.dtype == np.float16
    )
    np.savez_compressed(tmp_path / "small.npz", x=X, y=Y)
    assert not isinstance(load_npz(tmp_path / "small.npz")["x"], np.memmap)
    np.testing.assert_array_equal(load_npz(tmp_path / "small.npz")["x"], X)
    np.savez(tmp_path / "fortran.npz", x=np.asfortranarray(X), y=Y)
    np.testing.assert_array_equal(load_npz(tmp_path / "fortran.npz")["x"], X)


def test_a_split_is_drawn_by_seed_where_the_file_has_none(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.arange(200.0)[:, None], y=np.arange(200) % 3)

    def drawn(**settings):
        dataset = load(tmp_path / "data.npz", **settings)
        assert dataset.held_out is None
        return [sorted(row[0] for row in values(split)) for split in (dataset.train, dataset.test)]

    train, test = drawn(test_share=0.25)
    assert len(test) == 50 and sorted(train + test) == list(range(200))
    assert drawn(test_share=0.25) == [train, test] and drawn(test_share=0.25, split_seed=1)[1] != test


def test_names_of_classes_gaps_and_probabilities(tmp_path):
    np.savez(
        tmp_path / "a.npz", x=X, y=np.array(list("bacbab")), split=SPLIT,
        probabilities=np.eye(4)[[[0, 3], [1, 1], [2, 2], [0, 0], [3, 1], [1, 1]]], classes=list("abcd"),
    )  # fmt: skip
    dataset = load(tmp_path / "a.npz", groups={"vowels": ["a"], "rest": ["b", "d"]})
    assert dataset.class_names == ["a", "b", "c", "d"] and dataset.train.labels.tolist() == [1, 0, 2]
    assert dataset.annotators["expert_1"]["train"].tolist() == [3, 1, 2]
    assert dataset.groups == {"vowels": [0], "rest": [1, 3]}
    frame = pd.DataFrame(
        {"x": range(4), "label": ["cat", "dog", "cat", "dog"], "split": ["train", "train", "test", "test"]}
    )
    frame["eve"] = ["dog", None, "NA", "owl"]
    frame.to_csv(tmp_path / "b.csv", index=False)
    dataset = load(tmp_path / "b.csv")
    assert dataset.class_names == ["cat", "dog", "owl"]
    assert {split: given.tolist() for split, given in dataset.annotators["eve"].items()} == {
        "train": [1, -1],
        "test": [-1, 2],
    }
    assert load(tmp_path / "b.csv", annotators=[]).class_names == ["cat", "dog"]


def test_a_column_without_a_name_is_no_annotator(tmp_path):
    pd.read_csv(write(tmp_path / "data.csv")).to_csv(tmp_path / "index.csv")
    dataset = load(tmp_path / "index.csv")
    assert list(dataset.annotators) == ["ada", "bob"] and dataset.num_classes == 3


def test_the_separator_is_seen_in_the_header(tmp_path):
    file = write(tmp_path / "data.csv")
    comma, semicolon = load(file), tmp_path / "semicolon.csv"
    semicolon.write_text(file.read_text().replace(",", ";"))
    assert values(load(semicolon).train) == values(comma.train) and list(load(semicolon).annotators) == ["ada", "bob"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "x0,x1,label,ada\n1,2,0,1,0\n2,3,1,1,1\n",
            "more cells than the header",
        ),  # else a column would slide to the next
        ("x0,x1,label,ada\n1,2,0,1\n2,3,1,1,1\n", "cannot be read"),
        (
            "x0,x1,label,label\n1,2,0,1\n2,3,1,1\n",
            "two columns of the same name",
        ),  # else the second would be an annotator
    ],
)
def test_tables_whose_columns_are_in_doubt_are_refused(tmp_path, text, named):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=f"a.csv .*{named}"):
        load(tmp_path / "a.csv")


def test_none_is_a_class_and_minus_one_is_not_whatever_the_type_of_the_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("x,label,ada\n1,None,polyp\n2,polyp,None\n3,None,\n4,polyp,NA\n")
    dataset = load(tmp_path / "a.csv")
    assert dataset.class_names == ["None", "polyp"]
    assert sorted(np.concatenate(list(dataset.annotators["ada"].values())).tolist()) == [-1, -1, 0, 1]
    np.savez(tmp_path / "b.npz", x=X, y=Y.astype(np.float32), split=SPLIT, answers=ANSWERS.astype(np.float32))
    assert load(tmp_path / "b.npz").annotators["expert_1"]["train"].tolist() == [1, MISSING, 0]


@pytest.mark.parametrize(
    ("said", "splits", "sizes"),
    [
        (["train", "train", "val"], None, {"train": 4, "test": 2}),
        (["train", "exam", "val"], {"test": "exam"}, {"train": 2, "test": 2, "held_out": 2}),
        (["train", "test", "val"], {"test": "val", "val": "test"}, {"train": 2, "test": 2, "held_out": 2}),
    ],
)
def test_splits_by_whatever_name(tmp_path, said, splits, sizes, capfd):
    np.savez(tmp_path / "a.npz", x=X, y=Y, split=np.repeat(said, 2), ids=np.repeat(said, 2))
    dataset = load(tmp_path / "a.npz", splits=splits)
    assert {name: len(split) for name, split in dataset.splits().items()} == sizes
    assert set(dataset.test.inputs.ids()) == {(splits or {"test": "val"})["test"]}
    assert ("validation split is what is reported" in capfd.readouterr().err) == (splits is None)


def test_an_expert_without_a_probability_has_no_answer(tmp_path):
    probabilities = np.eye(3)[ANSWERS]  # [N, J, K]
    probabilities[2, 1, 0] = np.nan
    np.savez(tmp_path / "a.npz", x=X, y=Y, split=SPLIT, probabilities=probabilities)
    assert load(tmp_path / "a.npz").annotators["expert_1"]["train"].tolist() == [1, 2, MISSING]


def test_statistics_are_those_of_float64_and_a_constant_feature_stays():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(1000, 3)) * [1, 1e-3, 0] + [1e4, 0, 7]).astype(np.float32)
    mean, std = statistics(iter([x[:300], x[300:]]))
    np.testing.assert_allclose(mean, x.astype(float).mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(std[:2], x.astype(float).std(0)[:2], rtol=1e-9)
    assert std[2] == 1


@pytest.mark.parametrize("train", [True, False])
def test_batches_are_the_rows_of_the_file_in_float32(composed, train):
    values = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float16)
    rows = torch.arange(49, 9, -1)  # forty rows, backwards
    split = Split(Vectors(values, Preprocessing((3,)), rows), torch.arange(40))
    loader = Loader(split, Place.open(composed().trainer, 0, Ranks()), 16, seed=3, train=train)
    seen = []
    for batch in loader.epoch(1):
        assert batch.inputs.dtype == torch.float32
        np.testing.assert_array_equal(batch.inputs.numpy(), values[49 - batch.samples.numpy()].astype(np.float32))
        seen += batch.labels.tolist()
    assert len(set(seen)) == (32 if train else 40)
    late = [batch.samples.tolist() for batch in loader.epoch(1, start=1)]
    assert late == [batch.samples.tolist() for batch in loader.epoch(1)][1:]


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x": X}, "needs x and y"),
        ({"x": X, "y": Y, "answer": ANSWERS}, "answer"),
        ({"x": X[0], "y": Y}, r"x has shape \[2\]"),
        ({"x": X, "y": Y[:3]}, r"y has shape \[3\]"),
        ({"x": X, "y": Y, "answers": ANSWERS[:, 0]}, r"answers has shape \[6\]"),
        ({"x": X, "y": Y, "answers": ANSWERS, "names": ["ada"]}, "names has 1"),
        ({"x": X, "y": np.where(Y == 2, -1, Y)}, "row 5, has no label"),
        ({"x": np.where(X == 3, np.nan, X), "y": Y}, "row 3, feature 1"),
        ({"x": np.where(X == 3, 1e50, X.astype(float)), "y": Y}, "row 3, feature 1, .*float32"),
        ({"x": X, "y": Y, "answers": ANSWERS, "probabilities": np.ones((6, 3, 3))}, "2 experts .*of 3"),
        ({"x": X, "y": Y, "split": ["train"] * 5 + ["exam"]}, "split 'exam'"),
        ({"x": X, "y": Y, "split": ["train"] * 6}, "no sample in its test split"),
        ({"x": X, "y": np.array([{}] * 6)}, "plain arrays"),
        ({"x": X, "y": Y, "answers": np.full((6, 1), 9), "classes": list("abc")}, "'9' is not a class"),
        ({"x": X, "y": Y, "probabilities": np.ones((6, 3))}, r"probabilities has shape \[6, 3\]"),
        ({"x": X, "y": Y, "classes": list("aba")}, "classes a, b, a"),
        ({"x": X, "y": np.array(list("abcabc")), "answers": ANSWERS}, "expert_0: '0' .*classes are a, b, c"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(tmp_path, arrays, named):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(UserError, match=named):
        load(tmp_path / "data.npz")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"label": "class"}, r"dataset\.label=class .*label, split"),
        ({"columns": "pixel"}, r"dataset\.columns=pixel"),
        ({"columns": ["x_1", "x_9"]}, r"dataset\.columns=x_9"),
        ({"annotators": ["eve"]}, r"dataset\.annotators=eve"),
        ({"columns": "l"}, r"dataset\.columns=l"),
        ({"columns": ["x_1", "label"]}, r"dataset\.columns=label"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_their_name(tmp_path, settings, named):
    with pytest.raises(UserError, match=named):
        load(write(tmp_path / "data.csv"), **settings)


@pytest.mark.parametrize(
    ("name", "content"), [("a.npz", b"PK\3\4 nonsense"), ("a.csv", b""), ("a.xls", b""), ("b.csv", None)]
)
def test_files_that_cannot_be_read_are_refused_by_their_name(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        load(tmp_path / name)


def make(file: Path, shift: float, seed: int, names=("net", "nurse")) -> None:
    """Three classes around three points, the second feature far away and wide; two experts of 90 and 70 percent."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 600)
    x = np.stack([y + 0.4 * rng.normal(size=600) + shift, 1e4 * rng.normal(size=600)], 1)
    wrong = (y[:, None] + rng.integers(1, 3, (600, 2))) % 3
    answers = np.where(rng.random((600, 2)) < (0.9, 0.7), y[:, None], wrong)
    np.savez(file, x=x, y=y, answers=answers, names=names)


def test_the_system_carries_the_statistics_of_its_training_data(tmp_path, monkeypatch, capfd):
    """On another file it standardises as it did in training, so that shifted inputs are shifted inputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    make(Path("data.npz"), 0, 0)
    make(Path("same.npz"), 0, 1)
    make(Path("shifted.npz"), 2, 1, names=("nurse", "net"))
    words = [
        "dataset=features",
        "dataset.path=data.npz",
        "backbone.hidden=16",
        "trainer.epochs=20",
        "trainer.batch_size=32",
        "optim.lr=0.01",
    ]
    main(["train", *words])
    (folder,) = (path.parent for path in Path("outputs").rglob("result.json"))
    result = json.loads((folder / "result.json").read_text())
    assert result["metrics"]["classifier_accuracy"] > 80  # the wide feature does not drown the other
    assert len(result["preprocessing"]["mean"]) == 2
    accuracy = {}
    for file in ("data", "same", "shifted"):
        main(["evaluate", str(folder), f"dataset.path={file}.npz"])
        accuracy[file] = json.loads((folder / "evaluation.json").read_text())["metrics"]["classifier_accuracy"]
    assert accuracy["data"] == pytest.approx(result["metrics"]["classifier_accuracy"])
    assert accuracy["same"] > 80 and accuracy["shifted"] < 60
    Path("data.npz").rename("moved.npz")
    capfd.readouterr()
    main(["train", *words, "dataset.path=moved.npz"])
    assert "finished before" in capfd.readouterr().out  # the same data under another name


@pytest.mark.parametrize("backbone", ["linear", "mlp", "resnet18"])
def test_backbones_take_vectors_or_say_that_they_need_images(tmp_path, monkeypatch, capfd, backbone):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    make(Path("data.npz"), 0, 0)
    words = ["train", "dataset=features", "dataset.path=data.npz", f"backbone={backbone}", "trainer.epochs=1"]
    if backbone != "resnet18":
        main(words)
        assert "system_error" in capfd.readouterr().out
        return
    with pytest.raises(SystemExit):
        main(words)
    assert "backbone=resnet18 needs images" in capfd.readouterr().err


def test_a_validation_split_of_the_file_is_the_held_out_one(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    make(Path("plain.npz"), 0, 0)
    arrays = dict(np.load("plain.npz"))
    np.savez("data.npz", **arrays, split=np.resize(["train", "train", "val", "test"], 600))
    words = ["train", "dataset=features", "dataset.path=data.npz", "trainer.epochs=1", "evaluation=full"]
    main(words)
    (file,) = Path("outputs").rglob("result.json")
    result = json.loads(file.read_text())
    assert (result["data"]["train"], result["data"]["test"], result["data"]["held_out"]) == (300, 150, 150)
    assert result["evaluation"]["budget"]
    with pytest.raises(SystemExit):
        main([*words, "held_out=0.1"])
    assert "held_out=0.1" in capfd.readouterr().err


def test_a_linear_model_takes_larger_steps(composed):
    features = ("dataset=features", "dataset.path=data.npz")
    assert composed(*features).optim.lr == composed("dataset=micebone").optim.lr == 3e-4
    assert (
        composed(*features, "backbone=linear").optim.lr == composed("optim=adamw", "backbone=linear").optim.lr == 3e-3
    )
    assert composed(*features, "backbone=linear", "optim.lr=0.1").optim.lr == 0.1
    assert composed(*features, "backbone=linear", "optim=sgd_cosine").optim.lr == 0.1
