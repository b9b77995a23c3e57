"""How the figures look: the colour shows the base or the family, the line the formulation; others get theirs by a hash of their name."""

import zlib
from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from l2d.report.methods import KNOWN, label

# Okabe and Ito's palette, distinguishable with any colour vision and in grey.
BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"
DASHED, DOTTED, DASHED_TWICE, LONG = (0, (5, 2)), (0, (1, 1.2)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2))
COLOURS = {"ce": BLUE, "ova": RED, "gce": GREEN}
LINES = {"vanilla": "-", "picce": DASHED, "pice": DOTTED, "balanced": "-.", "soft_picce": DASHED_TWICE}
MARKERS = {"vanilla": "o", "picce": "s", "pice": "^", "balanced": "D", "soft_picce": "v"}
ALONE: dict[str, tuple[str, Any, str]] = {
    "mae": (GREEN, LONG, "X"),
    "decoupled": (PINK, "-", "P"),
    "asm": (PINK, DASHED, "X"),
    "rs": (ORANGE, "-", "<"),
    "rs_gce": (ORANGE, DASHED, ">"),
    "moe": (ORANGE, DOTTED, "*"),
    "css": (SKY, "-", "h"),
    "liu": (SKY, DASHED, "p"),
    "compare_confidence": (BLACK, "-", "d"),
    "selective": (BLACK, DASHED, "H"),
    "population": (BLACK, DOTTED, "8"),
}
TWO_STAGE = {"ce": "#5D3A9B", "ova": "#8B2500", "gce": "#1B5E3F"}  # colours of the bases with this system
OTHER_COLOURS = (GREEN, PINK, ORANGE, SKY)
OTHER_LINES = ("-.", DASHED_TWICE, LONG)
OTHER_MARKERS = ("D", "v", "P", "X", "*")
MANY = 8  # methods; beyond, bands and numbers beside points would hide one another
MAX_NAME = 60  # characters in a figure
METHOD_ID = "method:"  # begins the id of all that a figure draws of one method, so that the page can hide it
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
    "savefig.dpi": 160,
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes less room
    "text.parse_math": False,  # names are shown as they are, dollar signs too
}


def look(method: str) -> dict[str, Any]:
    """Colour, line and marker of a method: the same in every report."""
    loss, _, more = method.partition(" ")
    if more == "two_stage" and loss in KNOWN:
        return look(loss) | {"color": TWO_STAGE[KNOWN[loss][1]]}
    if method in KNOWN:
        formulation, base = KNOWN[method]
        return {"color": COLOURS[base], "linestyle": LINES[formulation], "marker": MARKERS[formulation]}
    if method in ALONE:
        return dict(zip(("color", "linestyle", "marker"), ALONE[method], strict=True))
    number = zlib.crc32(method.encode())
    number, colour = divmod(number, len(OTHER_COLOURS))
    number, line = divmod(number, len(OTHER_LINES))
    marker = OTHER_MARKERS[number % len(OTHER_MARKERS)]
    return {"color": OTHER_COLOURS[colour], "linestyle": OTHER_LINES[line], "marker": marker}


def line(method: str) -> dict[str, Any]:
    """How a method is drawn: its look, its label and the id that its name follows from."""
    return {**look(method), "label": label(method), "gid": method_id(method)}


def method_id(method: str) -> str:
    return f"{METHOD_ID}{method}"


def name_rows(ax: Axes, methods: Sequence[str]) -> None:
    """The methods at the left of a figure that has a row for each."""
    ax.set_yticks(range(len(methods)), [short(label(method)) for method in methods])
    for method, text in zip(methods, ax.get_yticklabels(), strict=True):
        text.set_gid(method_id(method))


def short(text: str) -> str:
    """A name as it fits into a figure."""
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"


def crowded(methods: Sequence[str]) -> bool:
    return len(methods) > MANY


def height(least: float, methods: Sequence[str]) -> float:
    """The height in inches of a figure with a legend of these methods."""
    return max(least, 0.165 * len(methods) + 0.7)


def add_legend(place: Axes | Figure, shown: Axes) -> None:
    """A legend of what `shown` draws, at the right of a panel or of the whole figure."""
    handles, labels = shown.get_legend_handles_labels()
    where = (
        {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        if isinstance(place, Axes)
        else {"loc": "outside right center"}
    )
    if not handles:
        return
    legend = place.legend(handles, list(map(short, labels)), fontsize=8, handlelength=2.6, **where)
    for handle, shown_handle, text in zip(handles, legend.legend_handles, legend.get_texts(), strict=True):
        for part in (shown_handle, text):
            if part is not None and isinstance(handle, Artist):
                part.set_gid(handle.get_gid())
