"""Chaoyang as distributed: two JSON lists of images, each with the label and three pathologists' answers."""

from pathlib import Path
from typing import Unpack

from l2d.data.dataset import MISSING, Dataset, listed_by
from l2d.data.manifest import ImageSettings, Listing, Manifest, class_index, existing_root, read_rows
from l2d.errors import UserError, notify

CLASSES = ["normal", "serrated", "adenocarcinoma", "adenoma"]


def list_chaoyang(
    root: str, train_json: str, test_json: str, annotators: list[str], cache: str | None = None
) -> Manifest:
    """The manifest of the two JSON files, one per split."""
    folder = existing_root(root)
    if train_json == "train.json" and not (folder / train_json).exists():
        train_json = "train_label.json"  # the other name it is distributed under
    files = {"train": train_json, "test": test_json}
    splits = {split: _read(folder / file, annotators, split) for split, file in files.items()}
    return Manifest(folder, CLASSES, splits, cache=cache)


@listed_by(list_chaoyang)
def chaoyang(
    name: str, root: str, train_json: str, test_json: str, annotators: list[str], **images: Unpack[ImageSettings]
) -> Dataset:
    """The four-class task; notifies if a pathologist is right on the whole test split."""
    from l2d.data.images import image_dataset

    dataset = image_dataset(name, list_chaoyang(root, train_json, test_json, annotators), images)
    perfect = [a for a, answers in dataset.annotators.items() if (answers["test"] == dataset.test.labels.numpy()).all()]
    if perfect:
        notify(
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
