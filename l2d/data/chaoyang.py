"""Chaoyang as distributed, in three splits: JSON lists of images with the label and the pathologists' answers."""

from pathlib import Path
from typing import Any, Literal, Unpack

from l2d.data.dataset import MISSING, Dataset, listed_by
from l2d.data.manifest import ImageSettings, Listing, Manifest, class_index, existing_root
from l2d.data.tables import read_rows
from l2d.errors import UserError, notify

EXPERTS = ["label_A", "label_B"]  # label_C is nearly always right
CLASSES = ["normal", "serrated", "adenocarcinoma", "adenoma"]
FOLDERS = {
    "official": "",
    "lecodu": "setting",
    "pl2d": "annotations_3",
}  # below the root, as their own readers expect them

SplitName = Literal["official", "lecodu", "pl2d", "pl2d_0.3", "pl2d_0.5", "pl2d_0.7"]


def list_chaoyang(
    root: str,
    train_json: str | None,
    test_json: str | None,
    annotators: list[str] = EXPERTS,
    split: SplitName = "official",
    cache: str | None = None,
) -> Manifest:
    """The manifest of one list per split with all answers, or (pl2d) of one with the labels and one per annotator."""
    folder = existing_root(root)
    publisher, _, missing = split.partition("_")
    default = folder / FOLDERS[publisher]
    files = {
        "train": folder / train_json if train_json else default / "train.json",
        "test": folder / test_json if test_json else default / "test.json",
    }
    other_name = files["train"].with_name("train_label.json")  # that the official list is distributed under, too
    if files["train"].name == "train.json" and not files["train"].exists() and other_name.exists():
        files["train"] = other_name
    for part, file in files.items():
        if not file.exists():
            raise UserError(
                f"{file} does not exist; name the {part} list of dataset.split={split} with dataset.{part}_json, "
                "and the folder that holds it with dataset.root."
            )
    splits = {}
    for part, file in files.items():
        if publisher == "pl2d":
            suffix = f"_{missing}" if missing and part == "train" else ""
            splits[part] = _read_apart(file, {a: file.with_name(f"{a}_{part}{suffix}.json") for a in annotators})
        else:
            splits[part] = _read_together(file, annotators)
    return Manifest(folder, CLASSES, splits, cache=cache)


@listed_by(list_chaoyang)
def chaoyang(
    name: str,
    root: str,
    train_json: str | None,
    test_json: str | None,
    annotators: list[str] = EXPERTS,
    split: SplitName = "official",
    **images: Unpack[ImageSettings],
) -> Dataset:
    """The four-class task; notifies if a pathologist is right on the whole test split."""
    from l2d.data.images import image_dataset

    dataset = image_dataset(name, list_chaoyang(root, train_json, test_json, annotators, split), images)
    perfect = [a for a, answers in dataset.annotators.items() if (answers["test"] == dataset.test.labels.numpy()).all()]
    if perfect:
        notify(
            f"{', '.join(perfect)} is right on every test image, so deferring costs nothing there and the test error "
            "says little; dataset.split=lecodu and pl2d are other published splits."
        )
    return dataset


def _read_together(path: Path, annotators: list[str]) -> Listing:
    """Records with name, label and an answer per annotator."""
    rows = read_rows(path, ["name", "label", *annotators])
    answers = {a: [_class(row[a], path, row["name"], a, MISSING) for row in rows] for a in annotators}
    return Listing(
        [row["name"] for row in rows], [_class(row["label"], path, row["name"], "label") for row in rows], answers
    )


def _read_apart(path: Path, annotators: dict[str, Path]) -> Listing:
    """Records with file and label: the labels in one list, every annotator's answers in one of their own, which may lack images."""
    truth = read_rows(path, ["file", "label"])
    images = [str(row["file"]) for row in truth]
    answers: dict[str, list[int]] = {}
    for annotator, file in annotators.items():
        given: dict[str, int] = {}
        for row in read_rows(file, ["file", "label"]):
            image = str(row["file"])
            if image in given:
                raise UserError(f"{file} has two answers to {image}; keep one.")
            given[image] = _class(row["label"], file, image, "label", MISSING)
        unknown = given.keys() - set(images)
        if unknown:
            raise UserError(f"{file} lists {min(unknown)}, which is not in {path}; use files of the same split.")
        answers[annotator] = [given.get(image, MISSING) for image in images]
    labels = [_class(row["label"], path, row["file"], "label") for row in truth]
    return Listing([row["file"] for row in truth], labels, answers)


def _class(value: Any, path: Path, image: str, key: str, absent: int | None = None) -> int:
    """The number of a class; `absent` where there is none, if that is allowed."""
    if value is None and absent is not None:
        return absent
    return class_index(value, CLASSES, f"{path}, {image}, {key}")
