"""The figures of a benchmark: mean ranks with what cannot be told apart, and every method on every task."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from l2d.bench.scores import Scores
from l2d.report.methods import label
from l2d.report.style import BLACK, BLUE, RED, STYLE, short

LEVEL = 0.05  # of the tests
LIMITS = (0.25, 4.0)  # of the colours: a quarter of the anchor's regret, and four times as much


def draw(scores: Scores, added: list[str]) -> dict[str, Figure]:
    """name -> figure; methods in `added` are drawn in red."""
    with rc_context(STYLE):
        return {"critical_difference": critical_difference(scores, added), "tasks": heat_map(scores)}


def critical_difference(scores: Scores, added: list[str]) -> Figure:
    """The methods on a line by their mean rank, best at the left; a bar joins those that the tests do not tell apart."""
    methods = scores.methods[["method", "mean_rank"]].to_records(index=False).tolist()
    groups = alike([name for name, _ in methods], scores.comparison.of_all_pairs())
    half = (len(methods) + 1) // 2
    top = 0.35 + 0.16 * len(groups)
    figure = Figure(figsize=(8, 0.9 + top + 0.26 * half))
    axes = figure.subplots()
    axes.set(xlim=(0.5, len(methods) + 0.5), ylim=(-(0.26 * half + top), 0.35))
    axes.axis("off")
    axes.plot([1, len(methods)], [0, 0], color=BLACK, linewidth=1)
    for rank in range(1, len(methods) + 1):
        axes.plot([rank, rank], [0, 0.07], color=BLACK, linewidth=1)
        axes.text(rank, 0.1, str(rank), ha="center", va="bottom", fontsize=8)
    for place, (name, rank) in enumerate(methods):
        left = place < half
        y = -top - 0.26 * (place if left else len(methods) - 1 - place)
        end = 0.8 if left else len(methods) + 0.2
        colour = RED if name in added else BLACK
        axes.plot([rank, rank, end], [0, y, y], color=colour, linewidth=0.9)
        text = f"{short(label(name.replace('+', ' ')))}  {rank:.1f}"
        axes.text(end, y, text, ha="right" if left else "left", va="center", fontsize=8, color=colour)
    for row, (first, last) in enumerate(groups):
        y = -0.18 - 0.16 * row
        ends = [methods[first][1] - 0.05, methods[last][1] + 0.05]
        axes.plot(ends, [y, y], color=BLUE, linewidth=3, solid_capstyle="butt")
    return figure


def alike(order: list[str], pairs: pd.DataFrame) -> list[tuple[int, int]]:
    """(first, last) of the longest runs of methods in this order of which no two differ by the corrected tests [methods, methods]."""
    groups: list[tuple[int, int]] = []
    for first in range(len(order)):
        last = first
        while last + 1 < len(order) and not _differ(order[first : last + 2], pairs):
            last += 1
        if last > first and not (groups and groups[-1][1] >= last):
            groups.append((first, last))
    return groups


def _differ(methods: list[str], pairs: pd.DataFrame) -> bool:
    return bool((pairs.loc[methods, methods] < LEVEL).any(axis=None))


def heat_map(scores: Scores) -> Figure:
    """Normalised regret of every method on every task; the best of a task is framed."""
    order = list(scores.methods["method"])
    table = scores.cells.pivot(index="method", columns="task", values="normalised")
    ranks = scores.cells.pivot(index="method", columns="task", values="rank")
    tasks = list(dict.fromkeys(scores.cells["task"]))
    table, ranks = table.loc[order, tasks], ranks.loc[order, tasks]
    figure = Figure(figsize=(max(5.0, 1.6 + 0.62 * len(tasks)), 1.5 + 0.26 * len(order)))
    axes = figure.subplots()
    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#e8ecf0")
    values = np.ma.masked_invalid(table.to_numpy(dtype=float))
    image = axes.imshow(np.ma.clip(values, *LIMITS), norm=LogNorm(*LIMITS), cmap=colours, aspect="auto")
    axes.grid(False)
    axes.set_xticks(range(len(tasks)), [task.replace("_", " ") for task in tasks], rotation=40, ha="right")
    axes.set_yticks(range(len(order)), [short(label(name.replace("+", " "))) for name in order])
    for (y, x), value in np.ndenumerate(table.to_numpy(dtype=float)):
        strong = pd.notna(value) and not 0.4 < value < 2.5
        weight = "bold" if ranks.iloc[y, x] == 1 else "normal"
        text = "-" if np.isnan(value) else f"{value:.2f}"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, weight=weight, color="white" if strong else BLACK)
    bar = figure.colorbar(image, ax=axes, ticks=[0.25, 0.5, 1, 2, 4], label="regret / regret of vanilla CE", shrink=0.8)
    bar.ax.set_yticklabels(["1/4", "1/2", "1", "2", "4"])
    bar.ax.minorticks_off()
    return figure
