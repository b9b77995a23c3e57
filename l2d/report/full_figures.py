"""Figures of evaluation=full, from the `evaluation` in result.json."""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from l2d.errors import notify
from l2d.report.layout import count_of
from l2d.report.metrics import LARGEST
from l2d.report.style import add_legend, height, line, method_id, name_rows
from l2d.report.tables import one_per_seed
from l2d.tracking.read import read_result

PARTS = {
    "classifier": ("Classifier's mistakes", "#009E73"),
    "decision": ("Deferring or not", "#CC79A7"),
    "expert": ("Wrong expert", "#E69F00"),
}
# The numbers that a figure reads from an evaluation. KeyError or TypeError: they are not there.
SHAPES = {
    "regret": (3,),
    "calibration": (2, 3, None),
    "curve": (3, None),
    "budget": (None, 2),
    "posterior": (2, None),
    "questions": (5, None),
    "fewer_experts": (2, None),
}
READ: dict[str, Callable[[dict[str, Any]], Any]] = {
    "regret": lambda e: [e["regret"][part] for part in PARTS],  # [3]
    "calibration": lambda e: [
        [e["calibration"][who][key] for key in ("count", "confidence", "accuracy")] for who in ("classifier", "expert")
    ],  # [2, 3, bins]
    "curve": lambda e: _with_optimum(e["curve"], ("coverage", "accuracy"), ("optimum",)),  # [3, points]
    "budget": lambda e: [[row["coverage"], 100 - row["system_error"]] for row in e["budget"]],  # [budgets, 2]
    "questions": lambda e: _with_optimum(
        e["questions"], ("questions", "error", "spent"), ("optimum", "optimum_spent")
    ),  # [5, points]
    "fewer_experts": lambda e: [e["fewer_experts"][key] for key in ("present", "system_error")],  # [2, J+1]
    "posterior": lambda e: [e["posterior"]["true"] or e["posterior"]["before"], e["posterior"]["after"]],  # [2, labels]
}


def _with_optimum(curve: dict[str, Any], keys: tuple[str, ...], optimum: tuple[str, ...]) -> list[Any]:
    """The columns of a curve, and those of the optimum, null where it is not known."""
    columns = [curve[key] for key in keys]
    return columns + [curve.get(key) or [None] * len(columns[0]) for key in optimum]


def full_figures(runs: pd.DataFrame, methods: list[str]) -> dict[str, Figure]:
    """name -> figure; one for which no run of the block has the numbers is left out."""
    done = one_per_seed(runs[runs["status"] == "finished"])
    evaluations = [(read_result(Path(folder)) or {}).get("evaluation") for folder in done["folder"]]
    done = done.assign(evaluation=evaluations).dropna(subset="evaluation")
    parts = {part: _with_values(done, part) for part in READ}
    figures: dict[str, Figure] = {}
    if len(parts["regret"]):
        figures["regret"] = regret(parts["regret"], methods)
    if len(parts["calibration"]):
        figures["reliability"] = reliability(parts["calibration"], methods)
    if len(parts["curve"]):
        figures["budget_curve"] = budget_curve(parts["curve"], parts["budget"], methods)
    if len(parts["questions"]):
        figures["questions"] = questions(parts["questions"], parts["fewer_experts"], methods)
    if len(parts["posterior"]):
        figures["posterior"] = posterior(parts["posterior"], methods)
    return figures


def _with_values(runs: pd.DataFrame, part: str) -> pd.DataFrame:
    """The runs that have this part of the evaluation, as arrays in the column `values`, of one shape for a number of experts.

    Evaluations of other shapes (other bins or points) cannot be averaged with these; they are named and left out.
    """
    values: list[np.ndarray | None] = []
    shapes: defaultdict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for evaluation, folder in zip(runs["evaluation"], runs["folder"], strict=True):
        try:
            values.append(_array(evaluation, part) if evaluation.get(part) else None)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            notify(f"{folder}/result.json has an evaluation.{part} that cannot be read; it is not drawn.")
            values.append(None)
    for value, num in zip(values, runs["num_experts"], strict=True):
        if value is not None:
            shapes[num][value.shape] += 1
    kept: list[bool] = []
    for value, num, folder in zip(values, runs["num_experts"], runs["folder"], strict=True):
        kept.append(value is not None and value.shape == shapes[num].most_common(1)[0][0])
        if value is not None and not kept[-1]:
            notify(f"{folder} was evaluated with other settings, so its evaluation.{part} is not drawn.")
    return runs.assign(values=values)[kept]


def _array(evaluation: dict[str, Any], part: str) -> np.ndarray:
    """The numbers of a part, with NaN for null; ValueError if they do not have its shape, or are too large to draw."""
    values = np.array(READ[part](evaluation), dtype=float)
    expected = SHAPES[part]
    fits = values.ndim == len(expected) and all(e in (None, n) for e, n in zip(expected, values.shape, strict=True))
    if not fits or not values.size or (np.abs(values) > LARGEST).any():
        raise ValueError(f"{part} has the shape {values.shape}, or numbers that are too large")
    return values


def _over_seeds(runs: pd.DataFrame, method: str, num: int) -> np.ndarray | None:
    """The values of each seed of a cell, [seeds, ...]; None where there is no run."""
    here = runs[(runs["num_experts"] == num) & (runs["method"] == method)]
    return np.stack(list(here["values"])) if len(here) else None


def regret(runs: pd.DataFrame, methods: list[str]) -> Figure:
    """The excess over the best achievable error, stacked from its three parts, mean over seeds."""
    counts = sorted(set(runs["num_experts"]))
    figure = Figure(figsize=(1.9 * len(counts) + 3, 0.32 * len(methods) + 1.3))
    axes = figure.subplots(1, len(counts), squeeze=False, sharex=True, sharey=True)
    for ax, num in zip(axes[0], counts, strict=True):
        for i, method in enumerate(methods):
            parts = _over_seeds(runs, method, num)  # [seeds, 3]
            if parts is not None:
                width = parts.mean(0)  # [3]
                colours = [colour for _, colour in PARTS.values()]
                ax.barh([i] * 3, width, left=width.cumsum() - width, color=colours, gid=method_id(method))
        ax.set_title(count_of(num), fontsize=9)
        ax.set_xlabel("Regret (%)")
    name_rows(axes[0, 0], methods)
    axes[0, 0].invert_yaxis()
    handles = [Patch(color=colour, label=text) for text, colour in PARTS.values()]
    axes[0, -1].legend(handles=handles, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def reliability(runs: pd.DataFrame, methods: list[str]) -> Figure:
    """Accuracy against confidence with the most experts, the bins of all seeds pooled; the diagonal is calibrated."""
    num = max(runs["num_experts"])
    figure = Figure(figsize=(8.4, height(3.4, methods)))
    axes = figure.subplots(1, 2, sharey=True)
    for ax, title in zip(axes, ("Classifier", "Asked expert"), strict=True):
        ax.plot([0, 100], [0, 100], color="0.6", linewidth=1)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("Confidence (%)")
    for method in methods:
        found = _over_seeds(runs, method, num)  # [seeds, 2, 3, bins]
        if found is None:
            continue
        for ax, bins in zip(axes, np.nan_to_num(found).swapaxes(0, 1), strict=True):
            count = bins[:, 0]  # [seeds, bins]
            filled = count.sum(0) > 0
            x, y = (bins[:, 1:] * count[:, None]).sum(0)[:, filled] / count.sum(0)[filled]
            ax.plot(x, y, **line(method))
    axes[0].set_ylabel(f"Accuracy (%), {count_of(num)}")
    add_legend(axes[1], axes[1])
    return figure


def budget_curve(curves: pd.DataFrame, budgets: pd.DataFrame, methods: list[str]) -> Figure:
    """Accuracy at every coverage with the most experts; crosses: prices that keep a budget, found on held-out data."""
    num = max(curves["num_experts"])
    figure = Figure(figsize=(5.2, height(3.6, methods)))
    ax = figure.subplots()
    for method in methods:
        curve = _over_seeds(curves, method, num)  # [seeds, 3, points]
        if curve is None:
            continue
        ax.plot(*curve[:, :2].mean(0), **(line(method) | {"marker": ""}))
        kept = _over_seeds(budgets, method, num)  # [seeds, budgets, 2]
        if kept is not None:
            ax.plot(*kept.mean(0).T, **(line(method) | {"linestyle": "", "marker": "x", "label": None}))
    _draw_optimum(ax, curves, num, x=0, y=2)
    ax.set_xlabel("Coverage (%)")
    ax.set_ylabel(f"System accuracy (%), {count_of(num)}")
    add_legend(ax, ax)
    return figure


def _draw_optimum(ax: Axes, curves: pd.DataFrame, num: int, x: int, y: int) -> None:
    """A grey line through columns x and y, mean over the seeds of one method that has them: the truth does not depend on it."""
    for _, runs in curves[curves["num_experts"] == num].groupby("method", sort=False):
        mean = np.stack(list(runs["values"])).mean(0)  # [columns, points]
        if np.isfinite(mean[y]).any():
            ax.plot(mean[x], mean[y], color="0.5", linewidth=1, label="Best achievable")
            return


def questions(curves: pd.DataFrame, fewer: pd.DataFrame, methods: list[str]) -> Figure:
    """With the most experts: error against questions asked, against what they cost where they cost anything, and against the
    number of experts who are there; grey: the best that is possible."""
    num = max(curves["num_experts"])
    found = {method: _over_seeds(curves, method, num) for method in methods}  # [seeds, 5, points] each
    costly = any(curve is not None and curve[:, 2].any() for curve in found.values())
    panels = ["Questions per 100 cases", *(["Spent per 100 cases"] if costly else []), "Experts who are there"]
    figure = Figure(figsize=(3.2 * len(panels), height(3.2, methods)))
    axes = dict(zip(panels, figure.subplots(1, len(panels)), strict=True))
    for method, curve in found.items():
        style = line(method) | {"marker": ""}
        if curve is not None:
            asked, error, spent, *_ = curve.mean(0)
            axes[panels[0]].plot(asked, error, **style)
            if costly:
                axes[panels[1]].plot(spent, error, **style)
        present = _over_seeds(fewer, method, num)  # [seeds, 2, J+1]
        if present is not None:
            axes[panels[-1]].plot(*present.mean(0), **style)
    _draw_optimum(axes[panels[0]], curves, num, x=0, y=3)
    if costly:
        _draw_optimum(axes[panels[1]], curves, num, x=4, y=3)
    for panel, ax in axes.items():
        ax.set_xlabel(panel)
        ax.set_ylabel("System error (%)" + (f", {count_of(num)}" if panel == panels[0] else ""))
    add_legend(axes[panels[-1]], axes[panels[0]])
    return figure


def posterior(runs: pd.DataFrame, methods: list[str]) -> Figure:
    """The most probable labels in descending order, before experts join (grey) and after, as the paper's figure 1."""
    counts = sorted(set(runs["num_experts"]))
    figure = Figure(figsize=(2.2 * len(counts) + 1.9, height(2.9, methods)))
    axes = figure.subplots(1, len(counts), squeeze=False, sharey=True)
    for ax, num in zip(axes[0], counts, strict=True):
        before = np.mean([values[0] for values in runs.loc[runs["num_experts"] == num, "values"]], axis=0)  # [labels]
        ranks = range(1, len(before) + 1)
        ax.bar(ranks, before, color="0.85", label="Before experts")
        for method in methods:
            found = _over_seeds(runs, method, num)  # [seeds, 2, labels]
            if found is not None:
                ax.plot(ranks, found[:, 1].mean(0), **line(method))
        ax.set_title(count_of(num), fontsize=9)
        ax.set_xlabel("Label, by rank")
        ax.set_xticks(ranks)
    axes[0, 0].set_ylabel("Probability (%)")
    add_legend(axes[0, -1], axes[0, -1])
    return figure
