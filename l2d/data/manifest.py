"""Lists of images with labels and annotators' answers, checked when they are read. Importing this does not import torch."""

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from annotated_types import Ge

from l2d.data.contents import file_digests
from l2d.errors import UserError, notify

AtLeast1 = Annotated[int, Ge(1)]
ABSENT = {"nan", "na", "<na>"}  # what tables write where there is nothing
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


class ImageSettings(TypedDict):
    """How image files are decoded and kept: settings that all datasets of image files share."""

    size: AtLeast1  # what the model sees
    resize: AtLeast1  # what is kept: the shorter side is resized to it, then the centre is cropped
    augment: str
    feed: Literal["auto", "resident", "stream"]
    cache: str | None
    workers: AtLeast1 | None
    on_error: Literal["error", "skip"]
    follow_links: NotRequired[bool]  # the configs of version 0.1 do not have it


@dataclass
class Listing:
    """One split as it is listed, before any image is opened."""

    paths: list[str] = field(default_factory=list)  # below the root
    labels: list[int] = field(default_factory=list)
    answers: dict[str, list[int]] = field(default_factory=dict)  # annotator -> answer to every path, or MISSING


@dataclass
class Manifest:
    """A dataset of image files as it is listed: both splits with their classes and annotators."""

    root: Path
    class_names: list[str]
    splits: dict[str, Listing]  # train, test
    groups: dict[str, list[int]] = field(default_factory=dict)
    cache: str | None = None  # the setting of this name, see `cache_folder`

    def digest(self) -> str:
        """Identifies the data: names and contents of the files, labels, answers, classes and annotators, in their order.

        The root and the files' times are not in it: a copy elsewhere is the same data.
        """
        digest = hashlib.sha256(json.dumps([self.class_names, self.groups]).encode())
        for split, listed in self.splits.items():
            contents = file_digests(self.root, listed.paths, cache_folder(self.cache))
            digest.update(json.dumps([split, listed.paths, contents, listed.labels, listed.answers]).encode())
        return digest.hexdigest()


def existing_root(root: str, *needed: str) -> Path:
    """The dataset's folder; UserError unless it holds all of `needed`."""
    folder = Path(str(root))
    for path in (folder, *(folder / part for part in needed)):
        if not path.exists():
            raise UserError(
                f"dataset.root={root}: {path} does not exist; point dataset.root at the folder that holds "
                f"{', '.join(needed) or 'the images'}."
            )
    return folder


def cache_folder(setting: str | None) -> Path:
    """`dataset.cache`, or l2d in the user's own cache folder."""
    if setting:
        return Path(setting).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "l2d"


def cell_text(cell: Any, class_names: Collection[str] = ()) -> str:
    """A cell of a table as the name of a class: a whole number without the `.0` that a column with gaps is often written
    with, and '' where there is nothing (NA, nan), unless a class is called so.

    >>> cell_text(" cat "), cell_text("2.0"), cell_text(None), cell_text("NA"), cell_text("NA", ["NA", "cat"])
    ('cat', '2', '', '', 'NA')
    """
    text = "" if cell is None else str(cell).strip()
    if text in class_names:
        return text
    if text.lower() in ABSENT:
        return ""
    return text.removesuffix(".0") if text.removesuffix(".0").isdecimal() else text


def check_class_names(class_names: Sequence[str]) -> None:
    if len(set(class_names)) < len(class_names) or "" in class_names:
        raise UserError(f"The classes {', '.join(class_names)} must have names, and no name twice.")


def class_index(value: Any, class_names: Sequence[str], where: str, indices: bool = True) -> int:
    """A class by its name or, if `indices`, by its number; `where` names the entry in the error."""
    text = str(value).strip()
    if text in class_names:
        return class_names.index(text)
    try:
        # float, because a column with gaps is often written as 1.0
        number = float(text) if indices and not isinstance(value, bool) else -1.0
    except ValueError:
        number = -1.0
    if number.is_integer() and 0 <= number < len(class_names):
        return int(number)
    known = ", ".join(class_names[:10]) + (", ..." if len(class_names) > 10 else "")
    numbers = f", or a number from 0 to {len(class_names) - 1}" if indices else ""
    raise UserError(f"{where}: '{text}' is not a class; the classes are {known}{numbers}.")


def check_files(root: Path, splits: dict[str, Listing], follow_links: bool) -> None:
    """UserError unless every listed image exists below the root and is listed once; notify about images that are not listed.

    A link that leads out of the root is refused unless `follow_links`.
    """
    inside, seen = root.resolve(), set()
    for split, listed in splits.items():
        if not listed.paths:
            raise UserError(f"The {split} split of {root} has no images; both train and test need some.")
        for name in listed.paths:
            try:
                path, present = Path(name), (root / name).is_file()
                outside = path.is_absolute() or ".." in path.parts
                linked = not outside and not follow_links and not (root / name).resolve().is_relative_to(inside)
            except (TypeError, ValueError, OSError, RuntimeError) as error:  # not a string, not a file name, a loop
                raise UserError(f"The {split} split lists {name!r}, which is not the path of an image.") from error
            if outside:
                raise UserError(
                    f"The {split} split lists '{name}', which leads out of {root}; list only images below it."
                )
            if linked:
                raise UserError(
                    f"The {split} split lists '{name}', which leads out of {root} through a link; "
                    "dataset.follow_links=true allows it."
                )
            if not present:
                raise UserError(
                    f"The {split} split lists '{name}', which is not in {root}; add the file or remove the entry."
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
        notify(f"Images in {root} that are not listed and not used: {len(extra)}, the first of them {extra[0]}.")
