"""Recorded answers in a file of their own: long or wide, joined by the ids of samples."""

import json
import sys

import numpy as np
import pytest
import test_cifar100
import torch
from test_folder import write_tree

from l2d.cli import main
from l2d.data import MISSING, Dataset, Images, Split
from l2d.data.answers import join_answers
from l2d.data.load import _data_digest, load_dataset
from l2d.errors import UserError
from l2d.identity import fingerprint

LONG = "path,annotator,answer\ntrain/a,ada,cat\ntrain/b,bob,1\n./train/b,ada,\ntest/a,bob,owl\ntest/z,bob,cat\n"
WIDE = (
    "\tid\tada\tbob\n0\ttrain/a\tcat\t\n1\ttrain/b\tNA\t1.0\n2\ttest/a\t\towl\n"  # as pandas writes it, with an index
)


@pytest.fixture
def dataset():
    def split(*names):
        return Split(Images(torch.zeros(len(names), 3, 4, 4), names=names), torch.zeros(len(names), dtype=torch.int64))

    own = {"eve": {"train": np.array([2, 1]), "test": np.array([0])}}
    return Dataset("own", ["cat", "dog", "owl"], split("train/a", "train/b"), split("test/a"), annotators=own)


@pytest.mark.parametrize(("name", "content"), [("long.csv", LONG), ("wide.tsv", WIDE)])
def test_answers_are_joined_by_id_and_added_to_the_datasets_own(dataset, tmp_path, name, content, capfd):
    (tmp_path / name).write_text(content)
    joined = join_answers(dataset, tmp_path / name).annotators
    assert {who: {split: given.tolist() for split, given in said.items()} for who, said in joined.items()} == {
        "eve": {"train": [2, 1], "test": [0]},
        "ada": {"train": [0, MISSING], "test": [MISSING]},
        "bob": {"train": [MISSING, 1], "test": [2]},
    }
    assert ("1 samples that are not in the dataset, such as test/z" in capfd.readouterr().err) == (name == "long.csv")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("path,annotator,answer\ntrain/a,ada,cow\n", "train/a, ada: 'cow' is not a class"),
        ("path,annotator,answer\ntrain/a,ada,cat\ntrain/a,ada,cat\n", "two answers of ada to train/a"),
        ("path,annotator,answer\na,ada,cat\n", "whose first is called train/a"),
        ("path,annotator,answer\ntrain/a,eve,cat\n", "eve"),
        ("picture,annotator,answer\ntrain/a,ada,cat\n", "no column id or path"),
        ("path,label\ntrain/a,cat\n", "column per annotator"),
        ("path,annotator,answer\ntrain/a,,cat\n", "answer to train/a without an annotator"),
    ],
)
def test_answers_that_cannot_be_meant_are_refused(dataset, tmp_path, content, named):
    (tmp_path / "answers.csv").write_text(content)
    with pytest.raises(UserError, match=named):
        join_answers(dataset, tmp_path / "answers.csv")


def test_a_dataset_without_ids_takes_none(composed, tmp_path):
    (tmp_path / "answers.csv").write_text(LONG)
    cfg = composed("+dataset.annotators=x")
    cfg.dataset.annotators = str(tmp_path / "answers.csv")
    with pytest.raises(UserError, match="have no ids"):
        load_dataset(cfg)
    cfg.dataset.annotators = str(tmp_path / "gone.csv")
    with pytest.raises(UserError, match=r"dataset\.annotators=.*gone\.csv is no file"):
        load_dataset(cfg)


def test_cifar100_takes_answers_by_the_names_of_its_images(composed, tmp_path):
    """And they are part of what identifies a run, wherever the file is."""
    parts = test_cifar100.contents()
    parts["train"][b"filenames"] = [b"apple.png"] * 2 + [b"%d.png" % i for i in range(len(parts["train"][b"data"]) - 2)]
    (tmp_path / "data").mkdir()
    test_cifar100.write(tmp_path / "data", parts)
    cfg = composed("dataset=cifar100", "dataset.verify=false", "experts=human")
    cfg.dataset.root = str(tmp_path / "data")
    (tmp_path / "a.csv").write_text(
        "id,annotator,answer\ntrain/apple.png,ada,3\ntrain/apple.png#2,ada,4\ntest/0,ada,5\n"
    )
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text())
    prints = {}
    for name in (None, "a.csv", "b.csv"):
        cfg.dataset.annotators = name and str(tmp_path / name)
        prints[name] = fingerprint(cfg)
    assert prints["a.csv"] == prints["b.csv"] != prints[None]
    assert load_dataset(cfg).annotators["ada"]["train"][:3].tolist() == [3, 4, MISSING]
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text().replace(",5", ",6"))
    _data_digest.cache_clear()
    assert fingerprint(cfg) != prints["a.csv"]


def test_a_crowd_trains_from_the_command_line(tmp_path, monkeypatch, capfd):
    """A folder per class, and a long file with forty people who answered a few images each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    write_tree(tmp_path / "pets", train=20, test=10)
    names = sorted(str(path.relative_to(tmp_path / "pets")) for path in (tmp_path / "pets").rglob("*.png"))
    rng = np.random.default_rng(0)
    rows = [f"{n},worker{w},{rng.choice(['cat', 'dog'])}" for n in names for w in rng.choice(40, 8, replace=False)]
    (tmp_path / "crowd.csv").write_text("\n".join(["path,annotator,answer", *rows]))
    main([
        "train", "dataset=folder", "dataset.root=pets", "dataset.annotators=crowd.csv", "dataset.size=16", "dataset.resize=16",
        "dataset.cache=cache", "backbone=mlp", "backbone.hidden=8", "trainer.epochs=1", "trainer.batch_size=8", "experts.num=null",
    ])  # fmt: skip
    (file,) = tmp_path.rglob("result.json")
    experts = json.loads(file.read_text())["experts"]
    assert len(experts) == 40 and sum(e["train_answered"] for e in experts) == pytest.approx(8 * 100)
