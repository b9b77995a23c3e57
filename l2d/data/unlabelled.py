"""New samples from a file that need not have labels. Importing this does not import torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from l2d.data.features import SUFFIXES, load_npz, numbers_of
from l2d.data.tables import read_frame
from l2d.errors import UserError


class Unlabelled(NamedTuple):
    """Samples, and their names where they have names."""

    x: np.ndarray  # [N, ...]
    ids: list[str] | None


class Columns(NamedTuple):
    """Which columns of a table are what."""

    features: tuple[str, ...]  # the features by name; empty: not known
    prefix: str | list[str]  # then: the beginning of their names, or the names
    ids: str  # the name of a sample, where there is such a column


def read_unlabelled(file: Path, columns: Columns) -> Unlabelled:
    """The array x of an .npz, with `ids` if it has them, or the features of a table. What else a file holds is not looked at."""
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"{file} is not a file of features; give one that ends in {', '.join(SUFFIXES)}.")
    if file.suffix.lower() == ".npz":
        return _arrays(file)
    frame = read_frame(file)
    frame.columns = have = [str(column) for column in frame.columns]
    chosen = columns.features or _chosen(have, columns)
    absent = [column for column in chosen if column not in have]
    if absent or not chosen:
        needed = _some(absent) if absent else f"column that begins with {columns.prefix}"
        raise UserError(f"{file} has no {needed}, which this run reads; its columns are {_some(have)}.")
    ids = [str(i) for i in frame[columns.ids]] if columns.ids in have else None
    return Unlabelled(numbers_of(frame, chosen, file), ids)


def _arrays(file: Path) -> Unlabelled:
    arrays = load_npz(file)
    if "x" not in arrays:
        raise UserError(f"{file} holds {', '.join(sorted(arrays)) or 'nothing'}; it needs an array x.")
    x, ids = arrays["x"], arrays.get("ids")
    if ids is not None and ids.shape != x.shape[:1]:
        raise UserError(f"{file}: ids has shape {list(ids.shape)} and x {list(x.shape)}; give one id for each sample.")
    return Unlabelled(x, None if ids is None else [str(i) for i in ids])


def _chosen(have: list[str], columns: Columns) -> Sequence[str]:
    if isinstance(columns.prefix, str):
        return [column for column in have if column.startswith(columns.prefix) and column != columns.ids]
    return [str(column) for column in columns.prefix]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
