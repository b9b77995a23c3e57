"""What is watched, as a figure."""

from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from l2d.monitor.measure import SYSTEM, Measured, Share
from l2d.report.style import BLACK, MANY, RED, STYLE, add_legend, short


def draw(measured: Measured) -> Figure:
    """Load and missing answers over time, of many experts for those who are asked most, and believed against realised accuracy."""
    load = {row.who: row.share for row in measured.load if row.part is None and row.who != SYSTEM}
    experts = sorted(load, key=lambda who: -load[who])[:MANY]
    styles: dict[str, dict[str, Any]] = {SYSTEM: {"color": BLACK, "linestyle": "--"}}
    styles |= {who: {"color": f"C{position}"} for position, who in enumerate(experts)}
    with rc_context(STYLE):
        figure = Figure(figsize=(13, 3.6))
        over_time, beliefs, missing = figure.subplots(1, 3)
        _lines(over_time, measured.load, styles, "Share of the cases (%)")
        _lines(missing, measured.missing, styles, "Questions without an answer (%)")
        rows = [row for row in measured.beliefs if row.who in styles]
        for place, row in enumerate(rows):
            beliefs.plot([row.low, row.high], [place, place], color=BLACK, linewidth=1.2)
            beliefs.plot(row.realised, place, "o", color=BLACK, label="" if place else "right, 95% interval")
            beliefs.plot(row.believed, place, "x", color=RED, label="" if place else "believed")
        beliefs.set_yticks(range(len(rows)), [short(row.who) for row in rows])
        beliefs.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        beliefs.set_xlabel("Accuracy (%)")
        if rows:
            beliefs.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
        add_legend(missing, over_time)
    return figure


def _lines(ax: Axes, shares: list[Share], styles: dict[str, dict[str, Any]], label: str) -> None:
    """A line for everybody over the parts."""
    for name, style in styles.items():
        points = [(row.part + 1, row.share) for row in shares if row.who == name and row.part is not None]
        if points:
            ax.plot(*zip(*points, strict=True), marker="o", label=short(name), **style)
    ax.set_xticks(sorted({row.part + 1 for row in shares if row.part is not None}))
    ax.set_xlabel("Part, in the order of the decisions")
    ax.set_ylabel(label)
    ax.set_ylim(bottom=0)
