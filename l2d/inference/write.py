"""Predictions as a file, written as they come: CSV, JSON lines or Parquet. Importing this does not import torch."""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from l2d.atomic import atomic_write, obstacle
from l2d.errors import UserError, drop_output
from l2d.inference.table import COLUMNS, Predictions

Parts = Iterable[Predictions]
Kinds = Mapping[str, type]  # column -> what it holds


def write_csv(file: BinaryIO, parts: Parts, kinds: Kinds) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_utf8, kinds))
    for part in parts:
        writer.writerows(zip(*(map(_utf8, column) for column in part.columns.values()), strict=True))
        file.write(text.getvalue().encode())
        text.seek(0)
        text.truncate()
        file.flush()


def write_jsonl(file: BinaryIO, parts: Parts, kinds: Kinds) -> None:
    for part in parts:
        lines = (
            json.dumps({name: _utf8(value) for name, value in row.items()}, ensure_ascii=False) for row in part.rows()
        )
        file.write("".join(f"{line}\n" for line in lines).encode())


def write_parquet(file: BinaryIO, parts: Parts, kinds: Kinds) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    types = {str: pa.string(), bool: pa.bool_(), float: pa.float64()}
    schema = pa.schema([(_utf8(name), types[kind]) for name, kind in kinds.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for part in parts:
            columns = {_utf8(name): list(map(_utf8, column)) for name, column in part.columns.items()}
            writer.write_table(pa.table(columns, schema))


WRITERS: dict[str, Callable[[BinaryIO, Parts, Kinds], None]] = {
    ".csv": write_csv,
    ".jsonl": write_jsonl,
    ".parquet": write_parquet,
}


class Extra(NamedTuple):
    """Packages that are not installed with l2d itself, and the extra that they come with."""

    name: str
    packages: tuple[str, ...]


ENDINGS = {".csv": None, ".jsonl": None, ".parquet": Extra("parquet", ("pyarrow",))}


def check_output(out: Path, endings: Mapping[str, Extra | None]) -> None:
    """UserError for a file whose ending is none of these, or needs what is not installed, or that cannot be in its folder."""
    if out.suffix.lower() not in endings:
        raise UserError(f"--out {out} must end in {', '.join(endings)}.")
    extra = endings[out.suffix.lower()]
    absent = [package for package in extra.packages if find_spec(package) is None] if extra else []
    if extra and absent:
        raise UserError(
            f"--out {out} needs {', '.join(absent)}, which is not installed: pip install 'l2d[{extra.name}]'."
        )
    folder = out.absolute().parent
    if not folder.is_dir():
        raise UserError(f"--out {out} cannot be written: {out.parent} is not a folder.")
    if what := obstacle(out):
        raise UserError(f"--out {out} cannot be written: it is {what}.")
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out {out} cannot be written: there is no permission to write to {out.parent}.")


def write(out: Path | None, parts: Parts, kinds: Kinds = COLUMNS) -> None:
    """Write all parts, with the columns of `kinds`, to a file, which is there only when it is whole, or as CSV to standard output."""
    if out is not None:
        writer = WRITERS[out.suffix.lower()]
        atomic_write(out, lambda file: writer(file, parts, kinds), hint="nothing was written")
        return
    sys.stdout.flush()
    try:
        write_csv(sys.stdout.buffer, parts, kinds)
    except BrokenPipeError:
        drop_output()  # its reader has seen enough
    except OSError as error:
        drop_output()
        raise UserError(f"Standard output cannot be written ({error.strerror or error}); use --out.") from error


def _utf8(value: Any) -> Any:
    """A name as UTF-8: bytes of a file's name that are none are escaped."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value
