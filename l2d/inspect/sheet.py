"""The contact sheet: images over all classes, with the label above and the answers below."""

import warnings
from itertools import zip_longest
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from l2d.atomic import atomic_write
from l2d.data import MISSING, ImageFiles, Images, Split
from l2d.data.pictures import file_picture, pixel_pictures

TILES, COLUMNS, MAX_ANSWERS = 24, 6, 8
WIDTH, HEIGHT, LINE, GAP, HEAD = 1.9, 1.9, 0.15, 0.22, 0.55  # inches
RIGHT, WRONG, NONE = ("✓", "#1a7f37"), ("✗", "#c0261c"), ("○", "#777777")


def draw_sheet(
    path: Path, title: str, split: Split, class_names: list[str], answers: dict[str, np.ndarray], chosen: list[int]
) -> None:
    """Write the PNG: `answers` are [N] per annotator or expert, `chosen` the indices of the images to show."""
    lines = [_lines(i, split, class_names, answers) for i in chosen]
    tile = HEIGHT + LINE * (max(map(len, lines)) + 1) + GAP
    columns = min(COLUMNS, len(chosen))
    rows = ceil(len(chosen) / columns)
    width, height = max(columns * (WIDTH + GAP) + GAP, 4.5), HEAD + rows * tile
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")

    def write(x: float, y: float, text: str, fontsize: float, **style: Any) -> None:  # inches from the top left
        baseline = y + fontsize / 72
        figure.text(x / width, 1 - baseline / height, text, fontsize=fontsize, parse_math=False, **style)

    write(GAP, 0.12, title, fontsize=10, fontweight="bold")
    x = GAP
    for text, (symbol, color) in (("right", RIGHT), ("wrong", WRONG), ("no answer", NONE)):
        write(x, 0.32, f"{symbol} {text}", fontsize=8, color=color)
        x += 0.75
    for position, (i, image) in enumerate(zip(chosen, _pictures(split, chosen), strict=True)):
        row, column = divmod(position, columns)
        left, top = GAP + column * (WIDTH + GAP), HEAD + row * tile
        write(left, top, _short(class_names[int(split.labels[i])], 25), fontsize=8.5, fontweight="bold")
        place = (left / width, 1 - (top + LINE + 0.03 + HEIGHT) / height, WIDTH / width, HEIGHT / height)
        axes = figure.add_axes(place, anchor="NW")
        axes.imshow(np.asarray(image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_axis_off()
        for number, (text, color) in enumerate(lines[position]):
            write(left, top + HEIGHT + LINE * (number + 1) + 0.06, text, fontsize=7, color=color)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a class name in another script
        atomic_write(
            path,
            lambda file: figure.savefig(file, format="png"),
            durable=False,
            make_parents=True,
            hint="choose another --sheet",
        )


def spread(labels: np.ndarray, usable: np.ndarray, seed: int) -> list[int]:
    """Up to 24 random images among the `usable` [N], of as many classes as possible, in the order of the classes."""
    rng = np.random.default_rng(seed)
    present = np.unique(labels[usable])
    classes = present[np.linspace(0, len(present) - 1, min(TILES, len(present))).round().astype(int)]
    each = ceil(TILES / max(len(classes), 1))
    per_class = [rng.permutation(np.flatnonzero(usable & (labels == k)))[:each].tolist() for k in classes]
    in_turns = [i for turn in zip_longest(*per_class) for i in turn if i is not None]
    return sorted(in_turns[:TILES], key=lambda i: labels[i])


def _lines(i: int, split: Split, class_names: list[str], answers: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    """(text, colour) of the lines below image i: its name, then one answer a line, then a count of those not shown.

    Of many annotators only those who answered this image are shown.
    """
    names = split.inputs.ids()
    source = f"image {i}" if names is None else names[i]
    lines = [(source if len(source) <= 30 else f"…{source[-29:]}", NONE[1])]
    given = {name: int(table[i]) for name, table in answers.items()}
    if len(given) > MAX_ANSWERS:
        given = {name: answer for name, answer in given.items() if answer != MISSING}
        lines += [] if given else [(f"{NONE[0]} no answer", NONE[1])]
    shown = len(given) if len(given) <= MAX_ANSWERS else MAX_ANSWERS - 1
    for name, answer in list(given.items())[:shown]:
        symbol, color = NONE if answer == MISSING else RIGHT if answer == split.labels[i] else WRONG
        text = "no answer" if answer == MISSING else class_names[answer]
        lines.append((_short(f"{symbol} {_short(name, 14)}: {text}", 30), color))
    if rest := list(given.values())[shown:]:
        right = rest.count(int(split.labels[i]))
        lines.append((f"{len(rest)} more: {RIGHT[0]}{right} {WRONG[0]}{len(rest) - right}", "black"))
    return lines


def _pictures(split: Split, chosen: list[int]) -> list[Image.Image]:
    if isinstance(split.inputs, ImageFiles):
        return [file_picture(split.inputs.root / split.inputs.paths[i], 256) for i in chosen]
    assert isinstance(split.inputs, Images)
    return pixel_pictures(split.inputs.pixels[chosen])


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
