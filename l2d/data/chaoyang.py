"""Chaoyang as distributed: two JSON lists of images, each with the label and three pathologists' answers."""

from pathlib import Path

from l2d.data.dataset import Dataset
from l2d.data.listing import (
    MISSING,
    AtLeast1,
    Feed,
    Listing,
    OnError,
    class_index,
    existing_root,
    image_dataset,
    read_rows,
)
from l2d.errors import UserError, notice

CLASSES = ["normal", "serrated", "adenocarcinoma", "adenoma"]


def chaoyang(
    name: str,
    root: str,
    train_json: str,
    test_json: str,
    annotators: list[str],
    size: AtLeast1,
    resize: AtLeast1,
    augment: str,
    feed: Feed,
    cache: str | None,
    workers: AtLeast1 | None,
    on_error: OnError,
) -> Dataset:
    """The splits are whatever the two JSON files say; a pathologist who is always right on the test split is pointed out."""
    folder = existing_root(root)
    if train_json == "train.json" and not (folder / train_json).exists():
        train_json = "train_label.json"  # the other name it is distributed under
    splits = {
        split: _read(folder / str(file), annotators, split)
        for split, file in (("train", train_json), ("test", test_json))
    }
    dataset = image_dataset(
        name, folder, CLASSES, splits, {}, size, resize, augment, feed, cache, workers, on_error
    )  # fmt: skip
    perfect = [a for a, answers in dataset.annotators.items() if (answers["test"] == dataset.test.labels.numpy()).all()]
    if perfect:
        notice(
            f"{', '.join(perfect)} is right on every test image, so deferring costs nothing there and the test error "
            "says little; another split may be given by dataset.train_json and dataset.test_json."
        )
    return dataset


def _read(path: Path, annotators: list[str], split: str) -> Listing:
    if not path.exists():
        raise UserError(
            f"{path} does not exist; name the {split} split's file with dataset.{split}_json, "
            "and the folder that holds it with dataset.root."
        )
    rows = read_rows(path, ["name", "label", *annotators])
    return Listing(
        paths=[row["name"] for row in rows],
        labels=[class_index(row["label"], CLASSES, f"{path}, {row['name']}, label") for row in rows],
        answers={
            a: [
                MISSING if row[a] is None else class_index(row[a], CLASSES, f"{path}, {row['name']}, {a}")
                for row in rows
            ]
            for a in annotators
        },
    )
