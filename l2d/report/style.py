"""How the figures look: the colour shows the base and the line the formulation; other losses get one by a hash of their name."""

import zlib
from typing import Any

from matplotlib.axes import Axes

from l2d.report.methods import KNOWN

# Okabe and Ito's palette, distinguishable with any colour vision and in grey.
COLOURS = {"ce": "#0072B2", "ova": "#D55E00"}
LINES = {"vanilla": "-", "picce": (0, (5, 2)), "pice": (0, (1, 1.2))}
MARKERS = {"vanilla": "o", "picce": "s", "pice": "^"}
OTHER_COLOURS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9")
OTHER_LINES = ("-.", (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)))
OTHER_MARKERS = ("D", "v", "P", "X", "*")
MAX_NAME = 60  # characters in a figure
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
    "text.parse_math": False,  # names are shown as they are, dollar signs too
}


def look(method: str) -> dict[str, Any]:
    """Colour, line and marker of a method: the same in every report."""
    if method in KNOWN:
        formulation, base = KNOWN[method]
        return {"color": COLOURS[base], "linestyle": LINES[formulation], "marker": MARKERS[formulation]}
    number = zlib.crc32(method.encode())
    number, colour = divmod(number, len(OTHER_COLOURS))
    number, line = divmod(number, len(OTHER_LINES))
    marker = OTHER_MARKERS[number % len(OTHER_MARKERS)]
    return {"color": OTHER_COLOURS[colour], "linestyle": OTHER_LINES[line], "marker": marker}


def short(text: str) -> str:
    """A name as it fits into a figure."""
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"


def add_legend(ax: Axes, shown: Axes) -> None:
    """A legend of what `shown` draws, at the right of `ax`."""
    handles, labels = shown.get_legend_handles_labels()
    if handles:
        ax.legend(handles, list(map(short, labels)), fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
