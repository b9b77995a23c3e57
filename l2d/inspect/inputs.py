"""What `l2d data check` says about the inputs: sizes and kinds of image files, damaged ones, vectors."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import track

from l2d.data import ImageFiles, Images, Split
from l2d.data.files import Header, open_image, opened
from l2d.data.vectors import Vectors
from l2d.errors import UserError
from l2d.inspect.tables import Output, some

SAMPLE = 2000  # files whose headers are read where the images themselves are decoded already


class Look(NamedTuple):
    """What was found in a file."""

    header: Header | None
    problem: str | None


# what is unusual about a file -> how to tell from its header
ODD: dict[str, Callable[[Header], bool]] = {
    "of unknown range: refused": lambda header: bool(header.unknown),
    "more than 8 bits: scaled": lambda header: header.bits > 8,
    "alpha: seen on white": lambda header: header.alpha,
    "rotated (EXIF): turned upright": lambda header: header.rotated,
}


def show_inputs(out: Output, name: str, split: Split, root: str | None, decode: int | None) -> tuple[np.ndarray, int]:
    """What the inputs of a split are; which can be shown as images, as a mask [N], and how many files are damaged."""
    inputs, count = split.inputs, len(split)
    seen = "x".join(map(str, inputs.preprocessing.shape))
    if isinstance(inputs, Vectors):
        _show_vectors(out, name, inputs)
    elif isinstance(inputs, Images):
        size, kind = "x".join(map(str, inputs.pixels.shape[1:])), str(inputs.pixels.dtype).removeprefix("torch.")
        out.print(f"{name} images: {size} {kind}, all decoded; the model sees {seen}")
        paths = [Path(root, image) for image in inputs.ids() or ()] if root else []
        if paths and paths[0].is_file():
            chosen = _evenly(count, SAMPLE)
            looks = list(_look_at(out, name, [paths[i] for i in chosen], decode=False))
            out.print(f"Read the headers of {len(looks):,} of {count:,} files.")
            _show_odd(out, [paths[i].relative_to(str(root)) for i in chosen], looks)
        return np.ones(count, dtype=bool), 0
    elif isinstance(inputs, ImageFiles):
        return _show_files(out, name, inputs, seen, decode)
    else:
        out.print(f"{name} inputs: {type(inputs).__name__}; the model sees {seen}")
    return np.zeros(count, dtype=bool), 0


def _show_files(out: Output, name: str, files: ImageFiles, seen: str, decode: int | None) -> tuple[np.ndarray, int]:
    chosen = _evenly(len(files), decode or len(files))
    paths = [files.root / files.paths[i] for i in chosen]
    looks = list(_look_at(out, name, paths, decode=True))
    sizes = Counter(look.header.size for look in looks if look.header and not look.problem)
    damaged = [look.problem for look in looks if look.problem]
    out.print(f"{name} images: opened {len(looks):,} of {len(files):,} files; the model sees {seen}")
    common = [(f"{width}x{height}", f"{number:,}") for (height, width), number in sizes.most_common(5)]
    rest = [(f"{len(sizes) - 5:,} other sizes", f"{sizes.total() - sum(n for _, n in sizes.most_common(5)):,}")]
    out.table(["width x height", "images"], [*common, *(rest if len(sizes) > 5 else [])])
    _show_odd(out, [Path(files.paths[i]) for i in chosen], looks)
    out.print(f"Damaged: {len(damaged) or 'none'}")
    for problem in damaged:
        out.print(f"  {problem}", style="red", soft_wrap=True)
    usable = np.zeros(len(files), dtype=bool)
    usable[[i for i, look in zip(chosen, looks, strict=True) if not look.problem]] = True
    return usable, len(damaged)


def _look_at(out: Output, name: str, paths: list[Path], decode: bool) -> Iterable[Look]:
    """The header of every file; with `decode`, whether its pixels can be read."""

    def look(path: Path) -> Look:
        header = None
        try:
            with opened(path, pixels=False) as (_, header):
                pass
            if decode:
                open_image(path)
        except UserError as error:
            return Look(header, str(error))
        return Look(header, None)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        chunks = [paths[start : start + 256] for start in range(0, len(paths), 256)]  # bounds the queue
        for chunk in track(chunks, f"opening {name} files", console=out, transient=True, disable=not out.is_terminal):
            yield from pool.map(look, chunk)


def _show_odd(out: Output, names: list[Path], looks: list[Look]) -> None:
    rows = []
    for kind, is_odd in ODD.items():
        found = [name for name, look in zip(names, looks, strict=True) if look.header and is_odd(look.header)]
        if found:
            rows.append((kind, f"{len(found):,}", found[0]))
    if rows:
        out.table(["unusual files", "files", "the first"], rows)


def _show_vectors(out: Output, name: str, vectors: Vectors) -> None:
    """Size and type, whether they are standardised, and which features are constant."""
    low, high = np.inf, -np.inf
    for part in vectors.parts():
        low, high = np.minimum(low, part.min(0)), np.maximum(high, part.max(0))  # [D]
    constant = [str(d + 1) for d in np.flatnonzero(low == high)]
    standardised = "standardised by the system" if vectors.preprocessing.mean else "used as they are"
    text = f"{name} inputs: vectors of {vectors.values.shape[1]:,} numbers in {vectors.values.dtype}, {standardised}; "
    out.print(text + (f"constant: {len(constant)}, numbers {some(constant, 10)}" if constant else "none is constant"))


def _evenly(count: int, wanted: int) -> np.ndarray:
    return np.linspace(0, count - 1, min(wanted, count)).round().astype(int)
