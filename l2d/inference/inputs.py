"""What a caller gives as inputs: paths, lists, tables, images or arrays."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from l2d.data import Preprocessing
from l2d.data.folder import image_files
from l2d.data.incoming import Incoming, from_array, from_files, from_images
from l2d.data.manifest import SUFFIXES
from l2d.data.tables import DELIMITED, read_rows, stream_rows
from l2d.data.unlabelled import Columns, read_unlabelled
from l2d.errors import UserError
from l2d.place import Place

MANIFESTS = (".csv", ".tsv", ".json", ".parquet")


@dataclass(frozen=True)
class Intake:
    """Reads inputs for one trained system."""

    preprocessing: Preprocessing
    columns: Columns  # of a table of features
    workers: int | None  # processes that read files; None: one per processor, up to a maximum
    place: Place

    def batches(self, inputs: Any, batch_size: int) -> Iterator[Incoming]:
        """The batches of a path or a list of paths (see `named`), of images, or of an array; UserError where there are none."""
        if isinstance(inputs, np.ndarray | Tensor):
            batches = from_array(inputs, None, self.preprocessing, batch_size)
        elif isinstance(inputs, str | os.PathLike):
            batches = self.named([os.fspath(inputs)], batch_size)
        elif isinstance(inputs, Image.Image):
            batches = self.images([inputs], batch_size)
        elif not isinstance(inputs, Iterable):
            raise UserError(f"Inputs of type {type(inputs).__name__} cannot be read; give paths, images or an array.")
        else:
            inputs = list(inputs)
            paths = [os.fspath(one) for one in inputs if isinstance(one, str | os.PathLike)]
            batches = self.named(paths, batch_size) if len(paths) == len(inputs) else self.images(inputs, batch_size)
        first = next(batches, None)
        if first is None:
            raise UserError("There are no inputs.")
        return chain([first], batches)

    def named(self, words: Sequence[str], batch_size: int) -> Iterator[Incoming]:
        """The inputs that these words name: image files, folders of them, a list of them (@FILE, a path per line) or a table
        with a column `path`; for a system of vectors tables and .npz. An .npz may hold images, too."""
        for word in words:
            if not os.path.exists(word.removeprefix("@")):
                raise UserError(f"{word} does not exist; give files, folders or @LIST.")
        if len(self.preprocessing.shape) == 1:
            return chain.from_iterable(self.features(word, batch_size) for word in words)
        if not all(map(_is_array, words)):
            self.refuse_files(next(word for word in words if not _is_array(word)))
        parts: list[Iterator[Incoming]] = []
        for arrays, group in groupby(words, _is_array):
            if arrays:
                parts += [self.features(word, batch_size) for word in group]
            else:
                files = [listed_files(word) for word in group]
                parts.append(
                    from_files(chain.from_iterable(files), self.preprocessing, batch_size, self.workers, self.place)
                )
        return chain.from_iterable(parts)

    def features(self, word: str, batch_size: int) -> Iterator[Incoming]:
        """The samples in a table or an .npz."""
        x, ids = read_unlabelled(Path(word), self.columns)
        try:
            yield from from_array(x, ids, self.preprocessing, batch_size)
        except UserError as error:
            raise UserError(f"{word}: {error}") from error

    def images(self, images: list[Any], batch_size: int) -> Iterator[Incoming]:
        """Images in memory."""
        self.refuse_files("An image")
        return from_images(images, self.preprocessing, batch_size)

    def refuse_files(self, what: str) -> None:
        """UserError where the system was not trained on pictures."""
        shape = self.preprocessing.shape
        if self.preprocessing.stored == "floats" or shape[0] != 3:
            given = f"arrays [N, {', '.join(map(str, shape))}]"
            raise UserError(
                f"{what} cannot be shown to a system that was trained on {given}; give such an array, or an .npz with it as x."
            )


def listed_files(word: str) -> Iterator[tuple[str, str]]:
    """The ids and paths of the image files that a word names; UserError where it names none."""
    files = _listed(word)
    first = next(files, None)
    if first is None:
        raise UserError(f"{word} has no image files; they end in {', '.join(sorted(SUFFIXES))}.")
    return chain([first], files)


def _listed(word: str) -> Iterator[tuple[str, str]]:
    ending = os.path.splitext(word)[1].lower()
    if word.startswith("@"):
        yield from ((line, line) for line in _lines(word.removeprefix("@")))
    elif os.path.isdir(word):
        yield from ((path, path) for path in image_files(word))
    elif ending in MANIFESTS:
        yield from ((name, os.path.join(os.path.dirname(word), name)) for name in _column(Path(word)))
    elif ending in SUFFIXES:
        yield word, word
    else:
        raise UserError(
            f"{word} is neither an image ({', '.join(sorted(SUFFIXES))}) nor a table ({', '.join(MANIFESTS)}); a list of files is given "
            f"as @{word}."
        )


def _lines(file: str) -> Iterator[str]:
    """The lines of a list that are not empty; names of files need not be UTF-8."""
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape") as lines:
            yield from (line.rstrip("\r\n") for line in lines if line.strip())
    except OSError as error:
        raise UserError(f"@{file} cannot be read ({error.strerror}).") from error


def _column(table: Path) -> Iterator[str]:
    """The column `path` of a table."""
    rows = stream_rows(table) if table.suffix.lower() in DELIMITED else iter(read_rows(table, ["path"]))
    for row in rows:
        if "path" not in row:
            raise UserError(f"{table} has no column path, which names the images; its columns are {', '.join(row)}.")
        yield str(row["path"]).strip()


def _is_array(word: str) -> bool:
    return os.path.splitext(word)[1].lower() == ".npz"
