"""Your own images: a folder per class, or a manifest with labels and annotators' answers."""

from pathlib import Path
from typing import Any, Unpack

from l2d.data.dataset import MISSING, Dataset, listed_by
from l2d.data.manifest import SUFFIXES, ImageSettings, Listing, Manifest, class_index, existing_root, read_rows
from l2d.errors import UserError

COLUMNS = ["path", "label", "split"]


def list_folder(
    root: str,
    manifest: str | None,
    classes: list[str] | None,
    groups: dict[str, list[str | int]] | None,
    annotators: list[str] | None,
    cache: str | None = None,
) -> Manifest:
    """<root>/{train,test}/<class>/*, or the rows of <root>/<manifest>: path, label, split, and a column per annotator.

    Classes are those found, sorted, unless `classes` lists them; then a label may also be a number, an index into it.
    """
    base = existing_root(root) if manifest else existing_root(root, "train", "test")
    rows = read_rows(base / str(manifest), COLUMNS) if manifest else _walk(base)
    if annotators is None:
        annotators = list(dict.fromkeys(column for row in rows for column in row if column not in COLUMNS))
    absent = [a for a in annotators if not any(a in row for row in rows)]
    if absent:
        raise UserError(
            f"dataset.annotators names {', '.join(absent)}, which is no column of {manifest or 'a folder tree'}."
        )
    found = sorted({_text(row["label"]) for row in rows} - {""}, key=lambda c: (int(c) if c.isdecimal() else -1, c))
    class_names = found if classes is None else [str(c) for c in classes]
    if len(set(class_names)) < len(class_names) or "" in class_names:
        raise UserError(f"The classes {', '.join(class_names)} must have names, and no name twice.")

    splits = {split: Listing(answers={a: [] for a in annotators}) for split in ("train", "test")}
    for row in rows:
        where = f"{manifest or root}, {row['path']}"
        listed = splits.get(_text(row["split"]))
        if listed is None:
            raise UserError(f"{where}: split '{row['split']}' must be train or test.")
        listed.paths.append(row["path"])
        listed.labels.append(class_index(_text(row["label"]), class_names, f"{where}, label", classes is not None))
        for a in annotators:
            answer = _text(row.get(a))
            listed.answers[a].append(
                class_index(answer, class_names, f"{where}, {a}", classes is not None) if answer else MISSING
            )
    if not set(splits["test"].labels) <= set(splits["train"].labels):
        unseen = next(k for k in splits["test"].labels if k not in splits["train"].labels)
        raise UserError(f"Class {class_names[unseen]} has test images in {root} but no training images; it needs both.")
    members = {
        group: [class_index(c, class_names, f"dataset.groups.{group}", indices=False) for c in chosen]
        for group, chosen in (groups or {}).items()
    }
    return Manifest(base, class_names, splits, members, cache)


@listed_by(list_folder)
def folder(
    name: str,
    root: str,
    manifest: str | None,
    classes: list[str] | None,
    groups: dict[str, list[str | int]] | None,
    annotators: list[str] | None,
    **images: Unpack[ImageSettings],
) -> Dataset:
    """The task of the classes found; the other columns of the manifest are its annotators."""
    from l2d.data.images import image_dataset

    return image_dataset(name, list_folder(root, manifest, classes, groups, annotators), images)


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _walk(root: Path) -> list[dict[str, Any]]:
    """The rows that a manifest of this folder tree would have."""
    return [
        {"path": str(path.relative_to(root)), "label": kind.name, "split": split}
        for split in ("train", "test")
        for kind in sorted(p for p in (root / split).iterdir() if p.is_dir() and not p.name.startswith("."))
        for path in sorted(kind.rglob("*"))
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
