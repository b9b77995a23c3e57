"""Tables as people have them, as records: .csv, .tsv, .json, .parquet. Importing this does not import torch."""

import csv
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from l2d.atomic import open_to_read, read_bytes
from l2d.errors import UserError

DELIMITERS = "\t;|"  # beside commas
DELIMITED = (".csv", ".tsv", ".txt")


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its name and dataset.root.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}).") from error


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The records of a JSON list, or the rows of a table with a header; each has all of `columns`."""
    rows = _read(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} must be a list of records, each with {', '.join(columns)}.")
    for number, row in enumerate(rows, start=1):
        absent = [column for column in columns if column not in row]
        if absent:
            have = ", ".join(map(str, row)) if number == 1 else ""
            raise UserError(
                f"{path}, record {number}, has no {', '.join(absent)}; every record needs {', '.join(columns)}"
                + (f", and this one has {have}." if have else ".")
            )
    return rows


def _read(path: Path) -> Any:
    kind = path.suffix.lower()
    if kind == ".parquet":
        return read_parquet(path).astype(object).to_dict("records")
    if kind in DELIMITED:
        return list(stream_rows(path))
    if kind in (".xls", ".xlsx", ".ods"):
        raise UserError(f"{path} is a spreadsheet; save it as .csv.")
    if kind in (".pt", ".npy"):
        raise UserError(
            f"{path} is not a table; dataset=cifar10n, cifar100n and cifar10h read such files by dataset.human."
        )
    return read_json(path)


def read_parquet(path: Path) -> Any:
    """A pandas frame."""
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow, which is not installed: pip install 'l2d[parquet]'.") from error
    except (OSError, ValueError) as error:  # pyarrow derives its own from them
        raise UserError(f"{path} cannot be read as a table ({' '.join(str(error).split())}).") from error


def read_frame(file: Path, as_text: bool = False) -> Any:
    """A pandas frame of a .parquet, .jsonl (an object per line) or delimited file; of the latter only empty cells are NaN, since None
    may be a class, and with `as_text` all others are text, since 007 may be one, too."""
    import pandas as pd

    if file.suffix.lower() == ".parquet":
        return read_parquet(file)
    if file.suffix.lower() == ".jsonl":
        return pd.DataFrame(_json_lines(file))
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            mark = "\t" if file.suffix.lower() == ".tsv" else delimiter(lines.readline())
            lines.seek(0)
            check_header(file, next(csv.reader(lines, delimiter=mark), []))
        with warnings.catch_warnings():
            # index_col: where rows have a cell more than the header, pandas would take the first column for an index
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                file,
                sep=mark,
                encoding="utf-8-sig",
                index_col=False,
                keep_default_na=False,
                na_values=[""],
                dtype=str if as_text else None,
            )
    except pd.errors.ParserWarning as error:
        raise UserError(f"{file} has rows with more cells than the header has columns; name every column.") from error
    except (OSError, ValueError, csv.Error) as error:  # pandas derives its own from ValueError
        raise UserError(f"{file} cannot be read as a table ({' '.join(str(error).split())}).") from error


def _json_lines(file: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in read_bytes(file).decode("utf-8-sig").split("\n") if line.strip()]
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} must have a JSON object per line ({error}).") from error
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file} must have a JSON object per line.")
    return rows


def delimiter(header: str) -> str:
    """What separates the columns: a comma, or where the header has none, the tabs, semicolons or bars in it."""
    return next((mark for mark in DELIMITERS if mark in header and "," not in header), ",")


def check_header(path: Path, header: Sequence[str]) -> None:
    """UserError if two columns have the same name."""
    if len(set(header)) < len(header):
        raise UserError(f"{path} has two columns of the same name; its header is {', '.join(header)}.")


def stream_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a delimited file as text, one after the other, without a column that has no name: the index that pandas writes."""
    try:
        with open_to_read(path, encoding="utf-8-sig") as lines:
            mark = delimiter(lines.readline())
            lines.seek(0)
            reader = csv.DictReader(lines, strict=True, delimiter=mark)
            header = list(reader.fieldnames or [])
            check_header(path, header)
            for number, row in enumerate(reader, start=1):
                if None in row or None in row.values():
                    raise UserError(f"{path}, record {number}, does not have the header's {len(header)} cells.")
                row.pop("", None)
                yield row
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its name and dataset.root.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8 ({error}).") from error
