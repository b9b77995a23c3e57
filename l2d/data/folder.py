"""Your own images: a folder per class, or a manifest with labels and annotators' answers."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Unpack

from l2d.data.dataset import MISSING, Dataset, listed_by
from l2d.data.manifest import (
    SUFFIXES,
    ImageSettings,
    Listing,
    Manifest,
    cell_text,
    check_class_names,
    class_index,
    existing_root,
)
from l2d.data.tables import read_rows
from l2d.errors import UserError, notify

COLUMNS = ["path", "label", "split"]
LONG = {"annotator", "answer"}  # columns of a manifest with a row per answer
VALIDATION = ("val", "valid", "validation", "dev")  # names of the split that is neither trained on nor reported


def list_folder(
    root: str,
    manifest: str | None,
    classes: list[str | int] | None,
    groups: dict[str, list[str | int]] | None,
    annotators: list[str] | None = None,
    splits: dict[str, str] | None = None,
    cache: str | None = None,
) -> Manifest:
    """<root>/<split>/<class>/*, or the rows of <root>/<manifest>: path, label, split, and a column per annotator, or a row per
    answer with the columns annotator and answer.

    Classes are those found, sorted, unless `classes` lists them; then a label may also be a number, an index into it.
    `splits` says what a split is called here, as in {test: val}.
    """
    base = existing_root(root)
    names = split_names(splits)
    rows = read_rows(base / str(manifest), COLUMNS) if manifest else _walk(base, names)
    if rows and rows[0].keys() >= LONG:
        rows = _row_per_image(rows, str(manifest))
    if annotators is None:
        annotators = list(dict.fromkeys(column for row in rows for column in row if column not in COLUMNS))
    absent = [a for a in annotators if not any(a in row for row in rows)]
    if absent:
        raise UserError(
            f"dataset.annotators names {', '.join(absent)}, which is no column of {manifest or 'a folder tree'}."
        )
    known = (
        [str(c) for c in classes or []] if manifest else {row["label"] for row in rows}
    )  # folders have no empty cells
    found = {cell_text(row["label"], known) for row in rows} - {""}
    class_names = (
        sorted(found, key=lambda c: (int(c) if c.isdecimal() else -1, c))
        if classes is None
        else [str(c) for c in classes]
    )
    check_class_names(class_names)
    listings = {split: Listing(answers={a: [] for a in annotators}) for split in ("train", "test", "held_out")}
    for row in rows:
        where = f"{manifest or root}, {row['path']}"
        split = names.get(cell_text(row["split"]).lower())
        if split is None:
            raise UserError(f"{where}: split '{row['split']}' must be {', '.join(names)}.")
        listed = listings[split]
        listed.paths.append(row["path"])
        listed.labels.append(
            class_index(cell_text(row["label"], class_names), class_names, f"{where}, label", classes is not None)
        )
        for a in annotators:
            answer = cell_text(row[a], class_names) if a in row else ""
            listed.answers[a].append(
                class_index(answer, class_names, f"{where}, {a}", classes is not None) if answer else MISSING
            )
    if val_is_test([split for split, listed in listings.items() if listed.paths], base, splits):
        listings["test"] = listings.pop("held_out")
    listings = {split: listed for split, listed in listings.items() if listed.paths or split != "held_out"}
    if not set(listings["test"].labels) <= set(listings["train"].labels):
        unseen = next(k for k in listings["test"].labels if k not in listings["train"].labels)
        raise UserError(f"Class {class_names[unseen]} has test images in {root} but no training images; it needs both.")
    members = {
        group: [class_index(c, class_names, f"dataset.groups.{group}", indices=False) for c in chosen]
        for group, chosen in (groups or {}).items()
    }
    return Manifest(base, class_names, listings, members, cache)


def split_names(splits: dict[str, str] | None) -> dict[str, str]:
    """What a split is called -> train, test or held_out. `splits` = {test: val} takes val for the test split."""
    own = splits or {}
    if not own.keys() <= {"train", "test", "val"} or len(set(own.values())) < len(own):
        raise UserError(f"dataset.splits={own} must say what train, test and val are called here, as in {{test: val}}.")
    usual = {"train": "train", "test": "test", **dict.fromkeys(VALIDATION, "held_out")}
    usual = {name: split for name, split in usual.items() if ("val" if split == "held_out" else split) not in own}
    return usual | {name.lower(): "held_out" if split == "val" else split for split, name in own.items()}


def val_is_test(present: Collection[str], where: Path, splits: dict[str, str] | None) -> bool:
    """Whether the validation split is taken for the test split: where of these splits only the latter is absent."""
    if "held_out" not in present or "test" in present or "test" in (splits or {}):
        return False
    notify(
        f"{where} has a validation and no test split; the validation split is what is reported (dataset.splits={{test: val}})."
    )
    return True


@listed_by(list_folder)
def folder(
    name: str,
    root: str,
    manifest: str | None,
    classes: list[str | int] | None,
    groups: dict[str, list[str | int]] | None,
    annotators: list[str] | None = None,
    splits: dict[str, str] | None = None,
    **images: Unpack[ImageSettings],
) -> Dataset:
    """The task of the classes found; the other columns of the manifest are its annotators."""
    from l2d.data.images import image_dataset

    return image_dataset(name, list_folder(root, manifest, classes, groups, annotators, splits), images)


def _row_per_image(rows: list[dict[str, Any]], manifest: str) -> list[dict[str, Any]]:
    """The rows of a long manifest (path, label, split, annotator, answer) as those of a wide one."""
    wide: dict[str, dict[str, Any]] = {}
    for row in rows:
        image = wide.setdefault(row["path"], {column: row[column] for column in COLUMNS})
        differs = [column for column in COLUMNS if image[column] != row[column]]
        if differs:
            raise UserError(f"{manifest} has two entries for the {differs[0]} of {row['path']}; keep one.")
        annotator = cell_text(row.get("annotator"))
        if annotator in image:
            raise UserError(f"{manifest} has two answers of {annotator} to {row['path']}; keep one.")
        if annotator:  # an image that nobody answered has a row without one
            image[annotator] = row.get("answer")
    return list(wide.values())


def _walk(root: Path, names: dict[str, str]) -> list[dict[str, Any]]:
    """The rows that a manifest of this folder tree would have."""
    found = {names[path.name.lower()]: path for path in root.iterdir() if path.name.lower() in names and path.is_dir()}
    if "train" not in found or len(found) < 2:
        raise UserError(
            f"dataset.root={root} needs a folder for each split, train and test, with a folder per class in it; "
            "dataset.splits says what they are called, or dataset.manifest names a file that lists the images."
        )
    return [
        {"path": os.path.relpath(path, root), "label": kind.name, "split": folder.name}
        for folder in (found[split] for split in ("train", "test", "held_out") if split in found)
        for kind in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
        for path in image_files(kind)
    ]


def image_files(folder: str | Path, entered: set[str] | None = None) -> Iterator[str]:
    """All image files below a folder, sorted, also behind links to folders; a folder that contains itself is entered once."""
    entered = set() if entered is None else entered
    real = os.path.realpath(folder)
    if real in entered:
        return
    entered.add(real)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"{folder} cannot be listed ({error.strerror}); allow it, or move it away.") from error
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from image_files(path, entered)
        elif os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith("."):
            yield path
