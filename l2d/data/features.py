"""Inputs that are vectors, with labels and recorded answers, in one file: .npz, .parquet, .csv or .tsv."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Interval

from l2d.data.contents import file_digests
from l2d.data.dataset import MISSING, Dataset, Preprocessing, Split, listed_by
from l2d.data.folder import split_names, val_is_test
from l2d.data.manifest import cache_folder, cell_text, check_class_names, class_index
from l2d.data.tables import read_frame
from l2d.errors import UserError, notify

if TYPE_CHECKING:
    import pandas as pd

ARRAYS = ("x", "y", "answers", "split", "probabilities", "names", "ids", "classes")  # that an .npz may hold
SHAPES = {"y": "[N]", "answers": "[N, J]", "probabilities": "[N, J, K]", "split": "[N]", "ids": "[N]"}
SUFFIXES = (".npz", ".parquet", ".csv", ".tsv")
LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip member: lengths of its name and of its extra field
UNNAMED = "Unnamed: "  # what pandas calls a column without a name, such as the index that it wrote
NO_CLASS = {"", str(MISSING), str(float(MISSING))}


@dataclass(frozen=True)
class Listed:
    """The file of a dataset of vectors."""

    path: Path
    cache: str | None

    def digest(self) -> str:
        """Of the file's content, read once."""
        return file_digests(self.path.parent, [self.path.name], cache_folder(self.cache))[0]


@dataclass
class Table:
    """What a file holds, before classes are numbered."""

    x: np.ndarray  # [N, D] float16 or float32
    labels: np.ndarray  # [N] numbers or names
    split: np.ndarray | None = None  # [N] names
    answers: dict[str, np.ndarray] = field(default_factory=dict)  # expert -> [N] numbers or names
    ids: list[str] | None = None
    classes: list[str] | None = None
    columns: tuple[str, ...] = ()  # the names of the features, where they have names


def list_features(path: str, cache: str | None) -> Listed:
    """The file, which must exist."""
    file = Path(str(path)).expanduser()
    if not file.is_file() or file.suffix.lower() not in SUFFIXES:
        raise UserError(f"dataset.path={path} must be a file that exists and ends in {', '.join(SUFFIXES)}.")
    return Listed(file, cache)


@listed_by(list_features)
def features(
    name: str,
    path: str,
    cache: str | None,
    label: str,
    split: str,
    ids: str,
    columns: str | list[str],
    classes: list[str | int] | None,
    groups: dict[str, list[str | int]] | None,
    test_share: Annotated[float, Interval(gt=0, lt=1)],
    split_seed: int,
    standardise: bool,
    annotators: list[str] | None = None,
    splits: dict[str, str] | None = None,
) -> Dataset:
    """The task of one file. `label`, `split`, `ids` and `columns` (names, or the beginning of the names) say which columns of a
    table are what; all others are `annotators`, unless those are listed. An .npz has arrays of its own names."""
    import torch

    from l2d.data.vectors import Vectors

    file = list_features(path, cache).path
    if file.suffix.lower() == ".npz":
        table = read_arrays(file)
    else:
        table = read_table(file, label, split, ids, columns, annotators)
    if annotators is not None:
        absent = [a for a in annotators if a not in table.answers]
        if absent:
            raise UserError(
                f"dataset.annotators names {', '.join(absent)}; {file} has {', '.join(table.answers) or 'none'}."
            )
        table.answers = {a: table.answers[a] for a in annotators}
    named = None if classes is None else [str(c) for c in classes]
    class_names = named or table.classes or infer_classes(table, file)
    check_class_names(class_names)
    labels = encode(table.labels, class_names, f"{file}, label")  # [N]
    if (labels == MISSING).any():
        raise UserError(
            f"{file}, row {int((labels == MISSING).argmax()) + 1}, has no label; every row needs one, and classes are names or numbers from 0 on."
        )
    answers = {a: encode(given, class_names, f"{file}, {a}") for a, given in table.answers.items()}
    if table.split is None:
        rows = draw_rows(len(labels), test_share, split_seed)
    else:
        rows = split_rows(table.split, splits, file)
    for part in ("train", "test"):
        if not len(rows.get(part, ())):
            raise UserError(f"{file} has no sample in its {part} split; it needs both train and test.")
    whole = Vectors(table.x, Preprocessing((table.x.shape[1],), columns=table.columns), names=table.ids)
    check_finite(whole.values, file)
    mean, std = statistics(whole.take(torch.from_numpy(rows["train"])).parts()) if standardise else ((), ())
    whole.preprocessing = replace(whole.preprocessing, mean=mean, std=std)
    parts = {
        part: Split(whole.take(torch.from_numpy(index)), torch.from_numpy(labels[index]))
        for part, index in rows.items()
    }
    members = {
        group: [class_index(c, class_names, f"dataset.groups.{group}") for c in chosen]
        for group, chosen in (groups or {}).items()
    }
    recorded = {a: {part: given[index] for part, index in rows.items()} for a, given in answers.items()}
    return Dataset(name, class_names, parts["train"], parts["test"], members, recorded, held_out=parts.get("held_out"))


def read_arrays(file: Path) -> Table:
    """The arrays of an .npz: x [N, D], y [N], and perhaps answers [N, J] (-1: none) or probabilities [N, J, K], whose most
    likely class is the answer (NaN: none), split [N], names [J] of the experts, ids [N], classes [K]."""
    arrays = load_npz(file)
    unknown = sorted(arrays.keys() - set(ARRAYS))
    if unknown or not {"x", "y"} <= arrays.keys():
        raise UserError(
            f"{file} holds {', '.join(sorted(arrays))}; it needs x and y and may have {', '.join(ARRAYS[2:])}."
        )
    x, y = arrays["x"], arrays["y"]
    if x.ndim != 2 or x.dtype.kind not in "fiu" or not x.size:
        raise UserError(f"{file}: x has shape {list(x.shape)} and type {x.dtype}; it must be numbers [N, D].")
    for key, shape in SHAPES.items():
        array = arrays.get(key)
        if array is not None and (array.ndim != shape.count(",") + 1 or len(array) != len(x)):
            raise UserError(f"{file}: {key} has shape {list(array.shape)}; it must be {shape} with N = {len(x)}.")
    given, likely = arrays.get("answers"), arrays.get("probabilities")
    if given is not None and likely is not None and given.shape[1] != likely.shape[1]:
        raise UserError(f"{file}: answers are of {given.shape[1]} experts and probabilities of {likely.shape[1]}.")
    if given is None and likely is not None:
        given = np.where(np.isnan(likely).any(axis=-1), MISSING, likely.argmax(axis=-1))  # [N, J]
    answers: dict[str, np.ndarray] = {}
    if given is not None:
        names = arrays.get("names", np.array([f"expert_{j}" for j in range(given.shape[1])]))
        if len(names) != given.shape[1] or len(set(names.tolist())) < len(names):
            raise UserError(
                f"{file}: names has {len(names)} entries; it must name the {given.shape[1]} experts, each once."
            )
        answers = {str(name): given[:, j] for j, name in enumerate(names)}
    ids = [str(i) for i in arrays["ids"]] if "ids" in arrays else None
    classes = [str(c) for c in arrays["classes"]] if "classes" in arrays else None
    return Table(_floats(x), y, arrays.get("split"), answers, ids, classes)


def load_npz(file: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz, mapped into memory where they are not compressed."""
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(file) as archive, np.load(file, allow_pickle=False) as loaded, file.open("rb") as raw:
            for member in archive.infolist():
                key = member.filename.removesuffix(".npy")
                if member.compress_type != zipfile.ZIP_STORED:
                    arrays[key] = loaded[key]
                    continue
                raw.seek(member.header_offset)
                raw.seek(sum(LOCAL_HEADER.unpack(raw.read(LOCAL_HEADER.size))), 1)
                version = np.lib.format.read_magic(raw)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, fortran, dtype = read(raw)
                if dtype.hasobject or 0 in shape or not shape:
                    arrays[key] = loaded[key]  # refuses objects
                    continue
                # mode c: writing would change a copy; torch warns about arrays that cannot be written
                arrays[key] = np.memmap(file, dtype, "c", raw.tell(), shape, order="F" if fortran else "C")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, struct.error) as error:
        raise UserError(f"{file} cannot be read as an .npz of plain arrays ({error}).") from error
    return arrays


def read_table(
    file: Path, label: str, split: str, ids: str, columns: str | Sequence[str], annotators: Sequence[str] | None
) -> Table:
    """A table by the names of its columns."""
    frame = read_frame(file)
    have = [str(column) for column in frame.columns]
    frame.columns = have
    free = [c for c in have if c not in (label, split, ids)]  # a label among the features would be no task
    chosen = [c for c in free if c.startswith(columns)] if isinstance(columns, str) else [str(c) for c in columns]
    for key, needed in (("label", [label]), ("columns", chosen), ("annotators", list(annotators or []))):
        absent = [column for column in needed if column not in (have if key == "label" else free)]
        if absent or (key == "columns" and not chosen):
            named = ", ".join(absent) or columns
            shown = ", ".join(have[:12]) + (", ..." if len(have) > 12 else "")
            raise UserError(
                f"dataset.{key}={named} fits no column of {file} that is free for it; its columns are {shown}."
            )
    others = [c for c in free if c not in chosen and not c.startswith(UNNAMED)]
    return Table(
        numbers_of(frame, chosen, file),
        _cells(frame[label]),
        _cells(frame[split]) if split in have else None,
        {a: _cells(frame[a]) for a in (others if annotators is None else annotators)},
        [str(i) for i in frame[ids]] if ids in have else None,
        columns=tuple(chosen),
    )


def numbers_of(frame: pd.DataFrame, chosen: Sequence[str], file: Path) -> np.ndarray:
    """The columns chosen [N, D] in float16 or float32; NaN where a cell is empty."""
    half = all(frame[column].dtype == np.float16 for column in chosen)
    x = np.empty((len(frame), len(chosen)), np.float16 if half else np.float32)
    with np.errstate(over="ignore"):  # infinite values are refused later, by their row
        for d, column in enumerate(chosen):
            x[:, d] = _numbers(frame[column], file).to_numpy(x.dtype, na_value=np.nan)
    return x


def _cells(column: pd.Series) -> np.ndarray:
    """Numbers or names [N], '' where there is nothing."""
    cells: np.ndarray = column.astype(object).where(column.notna(), "").to_numpy()
    return cells


def _numbers(column: pd.Series, file: Path) -> pd.Series:
    import pandas as pd

    try:
        return column if column.dtype.kind in "fiub" else pd.to_numeric(column)
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}, column {column.name}, is not a column of numbers ({error}).") from error


def _floats(x: np.ndarray) -> np.ndarray:
    """float16 and float32 as they are; anything else as float32."""
    with np.errstate(over="ignore"):  # infinite values are refused later, by their row
        return x if x.dtype in (np.float16, np.float32) else x.astype(np.float32)


def infer_classes(table: Table, file: Path) -> list[str]:
    """The names of the classes found, sorted; where all are whole numbers from 0 on, all numbers up to the largest."""
    labels = _found(table.labels)
    found = {annotator: _found(given) - labels for annotator, given in table.answers.items()}
    if all(text.isdecimal() for text in labels.union(*found.values())):
        names = [str(k) for k in range(max(map(int, labels.union(*found.values())), default=-1) + 1)]
    else:
        names = sorted(labels.union(*found.values()))
        for annotator, texts in found.items():
            if number := next((text for text in sorted(texts) if _is_number(text)), None):
                raise UserError(
                    f"{file}, {annotator}: '{number}' is no label, and the classes are {', '.join(sorted(labels)[:10])}; name them in order "
                    "(dataset.classes) to answer by number, or list the columns that are annotators (dataset.annotators)."
                )
    if labels and len(labels) < len(names):
        notify(
            f"{file}: {len(names) - len(labels)} of {len(names)} classes are no sample's label, such as "
            f"{next(name for name in names if name not in labels)}; dataset.classes lists those that there are."
        )
    return names


def _found(column: np.ndarray) -> set[str]:
    return {cell_text(kind) for kind in np.unique(column.astype(str))} - NO_CLASS


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdecimal()


def encode(values: np.ndarray, class_names: list[str], where: str) -> np.ndarray:
    """Classes by name or number -> [N] int64, MISSING where there is none."""
    kinds, inverse = np.unique(values.astype(str), return_inverse=True)
    texts = [cell_text(kind, class_names) for kind in kinds]
    codes = [MISSING if text in NO_CLASS else class_index(text, class_names, where) for text in texts]
    return np.asarray(codes, dtype=np.int64)[inverse]


def draw_rows(count: int, test_share: float, seed: int) -> dict[str, np.ndarray]:
    """test and train -> the rows of it, sorted; drawn by seed."""
    order, tests = np.random.default_rng(seed).permutation(count), round(test_share * count)
    return {"test": np.sort(order[:tests]), "train": np.sort(order[tests:])}


def split_rows(split: np.ndarray, splits: dict[str, str] | None, file: Path) -> dict[str, np.ndarray]:
    """train, test and perhaps held_out -> the rows of it, sorted, as the file says; `splits` says what they are called there."""
    said, inverse = np.unique(split.astype(str), return_inverse=True)
    known = split_names(splits)
    unknown = [name for name in said if name.strip().lower() not in known]
    if unknown:
        raise UserError(
            f"{file}: split '{unknown[0]}' must be {', '.join(known)}; dataset.splits says what they are called."
        )
    parts = np.array([known[name.strip().lower()] for name in said])[inverse]  # [N]
    rows = {part: np.flatnonzero(parts == part) for part in ("train", "test", "held_out") if (parts == part).any()}
    if val_is_test(rows, file, splits):
        rows["test"] = rows.pop("held_out")
    return rows


def check_finite(values: np.ndarray, file: Path, chunk: int = 1 << 13) -> None:
    """UserError at the first value that is NaN or infinite."""
    for start in range(0, len(values), chunk):
        good = np.isfinite(values[start : start + chunk])
        if not good.all():
            row, column = np.argwhere(~good)[0].tolist()
            raise UserError(
                f"{file}: row {start + row + 1}, feature {column + 1}, is not a finite number in {values.dtype}; "
                "fill it, scale it or leave it out."
            )


def statistics(parts: Iterator[np.ndarray]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every feature over all parts [n, D], in float64; 1 for a feature that is constant."""
    first = next(parts).astype(np.float64)
    origin = first.mean(0)  # [D]; deviations from it are summed, so that little is cancelled
    count, total, squares = 0, np.zeros_like(origin), np.zeros_like(origin)
    for part in chain([first], parts):
        away = part.astype(np.float64) - origin  # [n, D]
        count, total, squares = count + len(away), total + away.sum(0), squares + np.square(away).sum(0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - np.square(mean), 0))
    constant = std <= 1e-7 * np.maximum(np.abs(origin), 1e-30)
    return tuple((origin + mean).tolist()), tuple(np.where(constant, 1.0, std).tolist())
