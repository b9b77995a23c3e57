"""Lists of images with labels and annotators' answers: read with suspicion, then made into a Dataset."""

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge

from l2d.data.augment import augmentation
from l2d.data.cache import load_images
from l2d.data.dataset import Dataset, Split
from l2d.data.files import ImageFiles
from l2d.errors import UserError, notice

MISSING = -1  # the answer of an annotator who did not answer
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
AtLeast1 = Annotated[int, Ge(1)]
Feed = Literal["auto", "resident", "stream"]
OnError = Literal["error", "skip"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels


@dataclass
class Listing:
    """One split as it is listed, before any image is opened."""

    paths: list[str] = field(default_factory=list)  # below the root
    labels: list[int] = field(default_factory=list)
    answers: dict[str, list[int]] = field(default_factory=dict)  # annotator -> answer to every path, or MISSING


def image_dataset(
    name: str,
    root: Path,
    class_names: list[str],
    splits: dict[str, Listing],
    groups: dict[str, list[int]],
    size: AtLeast1,
    resize: AtLeast1,
    augment: str,
    feed: Feed,
    cache: str | None,
    workers: AtLeast1 | None,
    on_error: OnError,
) -> Dataset:
    """The dataset of a checked listing; images that `on_error: skip` leaves out take their labels and answers along."""
    augmentation(augment)  # refuses an unknown name before anything is decoded
    if size > resize:
        raise UserError(f"dataset.size={size} must be at most dataset.resize={resize}.")
    _check_files(root, splits)
    files = {split: ImageFiles(root, listed.paths, resize, workers, on_error) for split, listed in splits.items()}
    made: dict[str, Split] = {}
    annotators: dict[str, dict[str, np.ndarray]] = {}
    for split, (images, kept) in load_images(files, resize, feed, cache, workers, on_error).items():
        if not kept:
            raise UserError(f"No image of the {split} split in {root} can be read; replace them.")
        made[split] = Split(images, torch.tensor(splits[split].labels)[kept])
        for annotator, answers in splits[split].answers.items():
            annotators.setdefault(annotator, {})[split] = np.asarray(answers)[kept]  # [N]
    return Dataset(
        name=name,
        class_names=class_names,
        train=made["train"],
        test=made["test"],
        image_shape=(3, size, size),
        groups=groups,
        annotators=annotators,
        augment=augment,
        mean=MEAN,
        std=STD,
    )


def existing_root(root: str, *needed: str) -> Path:
    """The dataset's folder, which must hold what is `needed`."""
    folder = Path(str(root))
    for path in (folder, *(folder / part for part in needed)):
        if not path.exists():
            raise UserError(
                f"dataset.root={root}: {path} does not exist; point dataset.root at the folder that holds "
                f"{', '.join(needed) or 'the images'}."
            )
    return folder


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its name and dataset.root.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}).") from error


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The records of a JSON list, or of a CSV file with a header; each has all of `columns`."""
    rows = _read_csv(path) if path.suffix.lower() == ".csv" else read_json(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} must be a list of records, each with {', '.join(columns)}.")
    for number, row in enumerate(rows, start=1):
        absent = [column for column in columns if column not in row]
        if absent:
            raise UserError(
                f"{path}, record {number}, has no {', '.join(absent)}; every record needs {', '.join(columns)}."
            )
    return rows


def class_index(value: Any, class_names: Sequence[str], where: str, indices: bool = True) -> int:
    """A class by its name or, if `indices`, by its number; `where` names the entry in the refusal."""
    text = str(value).strip()
    if text in class_names:
        return class_names.index(text)
    try:
        number = (
            float(text) if indices and not isinstance(value, bool) else -1.0
        )  # a column with gaps is often written as 1.0
    except ValueError:
        number = -1.0
    if number.is_integer() and 0 <= number < len(class_names):
        return int(number)
    known = ", ".join(class_names[:10]) + (", ..." if len(class_names) > 10 else "")
    numbers = f", or a number from 0 to {len(class_names) - 1}" if indices else ""
    raise UserError(f"{where}: '{text}' is not a class; the classes are {known}{numbers}.")


def _read_csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            header, rows = list(reader.fieldnames or []), list(reader)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its name and dataset.root.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8 ({error}).") from error
    if len(set(header)) < len(header):
        raise UserError(f"{path} has two columns of the same name; its header is {', '.join(header)}.")
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise UserError(f"{path}, record {number}, does not have the header's {len(header)} cells.")
    return rows


def _check_files(root: Path, splits: dict[str, Listing]) -> None:
    """Every listed image once, on disk, below the root; a word about images beside them that nobody lists."""
    inside, seen = root.resolve(), set()
    for split, listed in splits.items():
        if not listed.paths:
            raise UserError(f"The {split} split of {root} has no images; both train and test need some.")
        for name in listed.paths:
            try:
                path, present = Path(name), (root / name).is_file()
                leaves = path.is_absolute() or ".." in path.parts or not (root / name).resolve().is_relative_to(inside)
            except (
                TypeError,
                ValueError,
                OSError,
                RuntimeError,
            ) as error:  # no string, no name a file can have, a loop
                raise UserError(f"The {split} split lists {name!r}, which is not the path of an image.") from error
            if leaves:
                raise UserError(f"The {split} split lists '{name}', which leads out of {root}: refused.")
            if not present:
                raise UserError(
                    f"The {split} split lists '{name}', which is not in {root}; add the file or take the entry out."
                )
            if os.path.normpath(name) in seen:
                raise UserError(f"'{name}' is listed twice; every image may be in one split, once.")
            seen.add(os.path.normpath(name))
    extra = sorted(
        found
        for folder in {os.path.dirname(name) for name in seen}
        for entry in os.scandir(root / folder)
        if os.path.splitext(entry.name)[1].lower() in SUFFIXES
        and not entry.name.startswith(".")
        and (found := os.path.normpath(os.path.join(folder, entry.name))) not in seen
    )
    if extra:
        notice(f"Images in {root} that are not listed and not used: {len(extra)}, the first of them {extra[0]}.")
