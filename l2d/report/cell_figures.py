"""Figures of the cells of tables: metrics against the number of experts, and deferrals to each expert."""

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from l2d.report.blocks import Block
from l2d.report.layout import count_of
from l2d.report.methods import label
from l2d.report.metrics import ShownMetric
from l2d.report.ranking import RANKED
from l2d.report.style import add_legend, crowded, height, line, method_id, name_rows, short


def overview(blocks: list[Block]) -> Figure:
    """System error and classifier accuracy against the number of experts, a row of two panels per block."""
    heights = [height(3.3, block.methods) for block in blocks]
    figure = Figure(figsize=(8.4, sum(heights)))
    axes = figure.subplots(len(blocks), 2, squeeze=False, height_ratios=heights)
    for block, row in zip(blocks, axes, strict=True):
        metrics = {metric.name: metric for metric in block.metrics}
        for ax, name in zip(row, ("system_error", "classifier_accuracy"), strict=True):
            against_count(ax, block, metrics[name])
        row[0].set_title(short(block.title), loc="left")
        add_legend(row[1], row[0])
    return figure


def one_metric(block: Block, metric: ShownMetric) -> Figure:
    """One metric against the number of experts."""
    figure = Figure(figsize=(5.2, height(3.2, block.methods)))
    ax = figure.subplots()
    against_count(ax, block, metric)
    add_legend(ax, ax)
    return figure


def against_count(ax: Axes, block: Block, metric: ShownMetric) -> None:
    """A line per method, with a band of one standard deviation unless it is crowded, and the best achievable where known."""
    for method in block.methods:
        cells = _cells_of(block, method, metric.name)
        if cells.empty:
            continue
        style = line(method)
        ax.plot(cells["num_experts"], cells[metric.name], **style)
        if crowded(block.methods):
            continue
        std = cells[f"{metric.name}_std"].fillna(0)
        low, high = cells[metric.name] - std, cells[metric.name] + std
        band = {"color": style["color"], "gid": style["gid"], "alpha": 0.13, "linewidth": 0}
        ax.fill_between(cells["num_experts"], low, high, **band)
    best = f"bayes_{metric.name}"
    if metric.name == "system_error" and best in block.cells and block.cells[best].notna().any():
        known = block.cells.dropna(subset=best).drop_duplicates("num_experts").sort_values("num_experts")
        ax.plot(known["num_experts"], known[best], color="0.35", linewidth=1.2, linestyle="-.", label="Best achievable")
    ax.set_xticks(sorted(set(block.cells["num_experts"])))
    ax.set_xlabel("Number of experts")
    ax.set_ylabel(short(metric.label))


def coverage_accuracy(block: Block) -> Figure:
    """System accuracy against coverage: a point per cell, joined from the fewest to the most experts."""
    figure = Figure(figsize=(5.2, height(3.6, block.methods)))
    ax = figure.subplots()
    for method in block.methods:
        cells = _cells_of(block, method, "coverage")
        if cells.empty:
            continue
        style, accuracy = line(method), 100 - cells["system_error"]
        ax.plot(cells["coverage"], accuracy, **style)
        beside = {"textcoords": "offset points", "fontsize": 7, "color": style["color"], "gid": style["gid"]}
        for x, y, num in (
            () if crowded(block.methods) else zip(cells["coverage"], accuracy, cells["num_experts"], strict=True)
        ):
            ax.annotate(num, (x, y), (3, 3), **beside)
    ax.set_xlabel("Coverage (%)")
    ax.set_ylabel("System accuracy (%)")
    if not crowded(block.methods):
        ax.set_title("Beside each point: the number of experts", loc="left", fontsize=8, color="0.35")
    add_legend(ax, ax)
    return figure


def deferred_to(block: Block) -> Figure:
    """A heat map per number of experts: the percentage of deferred samples that each expert gets, mean over seeds."""
    done = block.runs[block.runs["status"] == "finished"]
    known = [len(row) if isinstance(row, list) else 0 for row in done["deferred_to"]]
    counts = sorted(set(done.loc[done["num_experts"] == known, "num_experts"]) - {1}) or [
        1
    ]  # one expert gets everything
    tables = [_percentages(done[done["num_experts"] == num], block.methods, num) for num in counts]  # [methods, J] each
    top = max(np.nanmax(table, initial=1) for table in tables)
    widths = [max(num, 4) for num in counts]
    size = (min(0.2 * sum(widths) + 0.4 * len(counts) + 2.4, 14), 0.3 * len(block.methods) + 1.3)
    figure = Figure(figsize=size)
    axes = figure.subplots(1, len(counts), squeeze=False, sharey=True, width_ratios=widths)
    for ax, num, table in zip(axes[0], counts, tables, strict=True):
        edges = np.arange(num + 1) - 0.5
        for i, method in enumerate(block.methods):
            rows = {"cmap": "cividis", "vmin": 0, "vmax": top, "gid": method_id(method)}
            mesh = ax.pcolormesh(edges, [i - 0.5, i + 0.5], table[i : i + 1], **rows)
        ax.set_ylim(len(block.methods) - 0.5, -0.5)
        ax.set_title(count_of(num), fontsize=9)
        ax.set_xticks(sorted({0, num - 1}), sorted({1, num}))
        ax.set_xlabel("Expert")
        ax.grid(visible=False)
    name_rows(axes[0, 0], block.methods)
    figure.colorbar(mesh, ax=axes[0], label="Share of the deferred (%)")
    return figure


def ranking(block: Block) -> Figure:
    """The entries of the ranking by system error, a point per number of experts; their regret at the right where known."""
    order = list(dict.fromkeys(block.ranking.loc[block.ranking["by"] == "system_error", "entry"]))
    untrained = set(block.ranking.loc[block.ranking["kind"] == "reference", "entry"])
    panels = [by for by in RANKED if (block.ranking["by"] == by).any()]
    at = block.ranking.dropna(subset=["num_experts", "mean"])
    counts = sorted(set(at["num_experts"]))
    shades = colormaps["cividis"](np.linspace(0.05, 0.85, len(counts)))
    figure = Figure(figsize=(3.2 * len(panels) + 2.6, 0.21 * len(order) + 1.1))
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for ax, by in zip(axes, panels, strict=True):
        for num, shade in zip(counts, shades, strict=True):
            here = at[(at["by"] == by) & (at["num_experts"] == num)]
            ax.plot([], [], "o", color=shade, label=count_of(num))  # for the legend: what follows is hidden by method
            for entry, mean, std in zip(here["entry"], here["mean"], here["std"].fillna(0), strict=True):
                point = {"fmt": "o", "color": shade, "gid": None if entry in untrained else method_id(entry)}
                ax.errorbar([mean], [order.index(entry)], xerr=[std], **point)
        ax.set_xlabel(RANKED[by])
    axes[0].set_yticks(range(len(order)), [short(entry if entry in untrained else label(entry)) for entry in order])
    for place, (entry, text) in enumerate(zip(order, axes[0].get_yticklabels(), strict=True)):
        if entry not in untrained:
            text.set_gid(method_id(entry))
            continue
        text.set(color="0.35", style="italic")
        for ax in axes:
            ax.axhspan(place - 0.5, place + 0.5, color="0.94", zorder=0)
    axes[0].set_ylim(len(order) - 0.5, -0.5)
    add_legend(figure, axes[0])
    return figure


def _percentages(runs: pd.DataFrame, methods: list[str], num: int) -> np.ndarray:
    """The percentage of a method's deferred samples that each expert gets, [methods, J]; NaN where it is unknown."""
    table = np.full((len(methods), num), np.nan)
    for i, method in enumerate(methods):
        rows = runs.loc[runs["method"] == method, "deferred_to"]
        fractions = [
            np.divide(row, sum(row)) for row in rows if isinstance(row, list) and len(row) == num and sum(row) > 0
        ]
        if fractions:
            table[i] = 100 * np.mean(fractions, axis=0)
    return table


def _cells_of(block: Block, method: str, metric: str) -> pd.DataFrame:
    """The method's cells that have the metric, from the fewest to the most experts."""
    return block.cells[block.cells["method"] == method].dropna(subset=metric).sort_values("num_experts")
