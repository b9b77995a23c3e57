"""The figures of a report, as PNG and PDF. Colour tells the base, the line the formulation."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from l2d.report.load import METRICS, load_curves
from l2d.report.tables import blocks, loss_label, losses_of, one_per_seed

# Okabe and Ito's palette, told apart with any colour vision and in grey.
COLOURS = {"ce": "#0072B2", "ova": "#D55E00"}
OTHER_COLOURS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = {"vanilla": "-", "picce": (0, (5, 2)), "pice": (0, (1, 1.2))}
MARKERS = {"vanilla": "o", "picce": "s", "pice": "^"}
TITLES = {
    "system_error": "System error (%)",
    "coverage": "Coverage (%)",
    "classifier_accuracy": "Classifier accuracy (%)",
    "expert_aggregation": "Expert aggregation",
    "label_margin": "Label margin (%)",
    "class_gradient_share": "Gradient to classes (%)",
}
UNDERFITTING = ("expert_aggregation", "label_margin", "class_gradient_share")
PARTS = {
    "classifier": ("Classifier's mistakes", "#009E73"),
    "decision": ("Deferring or not", "#CC79A7"),
    "expert": ("Wrong expert", "#E69F00"),
}
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
}


def draw_figures(runs: pd.DataFrame, cells: pd.DataFrame, out: Path) -> dict[str, list[Path]]:
    """Draw `overview` and, in figures/, each block's; return the PNGs of each block by its title."""
    curves, runs_of = dict(blocks(load_curves(runs))), dict(blocks(runs))
    drawn: dict[str, list[Path]] = {}
    for before in (out / "figures").glob("[0-9]*-*/*.p[nd][gf]"):  # of a report whose blocks may have been others
        before.unlink()
    with plt.rc_context(STYLE):
        if cells["n"].any():
            save(overview(cells), out / "overview")
        for title, block in blocks(cells):
            figures = {}
            if block["n"].any():
                figures = {metric: one_metric(block, metric) for metric in METRICS}
                figures["coverage_accuracy"] = coverage_accuracy(block)
                figures["deferred_to"] = deferred_to(runs_of[title], losses_of(block))
                figures |= full_figures(evaluated_in_full(runs_of[title]), losses_of(block))
            if title in curves:
                figures["training_curves"] = training_curves(curves[title], losses_of(block))
                if drawn_over_epochs(curves[title], UNDERFITTING):
                    figures["underfitting"] = per_epoch(curves[title], losses_of(block), UNDERFITTING)
            folder = out / "figures" / slug(title, len(drawn))
            drawn[title] = [save(figure, folder / name) for name, figure in figures.items()]
    for folder in (out / "figures").glob("[0-9]*-*"):
        if not any(folder.iterdir()):
            folder.rmdir()
    return drawn


def overview(cells: pd.DataFrame) -> Figure:
    """System error and classifier accuracy against the number of experts, a row of two panels per block."""
    drawn = [(title, block) for title, block in blocks(cells) if block["n"].any()]
    figure, axes = plt.subplots(len(drawn), 2, figsize=(8.4, 3.3 * len(drawn)), squeeze=False)
    for (title, block), row in zip(drawn, axes, strict=True):
        for ax, metric in zip(row, ("system_error", "classifier_accuracy"), strict=True):
            against_count(ax, block, metric)
        row[0].set_title(title, loc="left")
        legend_of(row[1], row[0])
    return figure


def one_metric(block: pd.DataFrame, metric: str) -> Figure:
    figure, ax = plt.subplots(figsize=(5.2, 3.2))
    against_count(ax, block, metric)
    legend_of(ax, ax)
    return figure


def coverage_accuracy(block: pd.DataFrame) -> Figure:
    """System accuracy against coverage: a point per cell, joined from the fewest to the most experts."""
    figure, ax = plt.subplots(figsize=(5.2, 3.6))
    for (base, method), line in block.dropna(subset="coverage").groupby(["base", "method"], sort=False):
        style = look(base, method)
        accuracy = 100 - line["system_error"]
        ax.plot(line["coverage"], accuracy, label=loss_label(base, method), **style)
        for x, y, num in zip(line["coverage"], accuracy, line["num_experts"], strict=True):
            ax.annotate(num, (x, y), (3, 3), textcoords="offset points", fontsize=7, color=style["color"])
    ax.set_xlabel(TITLES["coverage"])
    ax.set_ylabel("System accuracy (%)")
    ax.set_title("Beside each point: the number of experts", loc="left", fontsize=8, color="0.35")
    legend_of(ax, ax)
    return figure


def training_curves(curves: pd.DataFrame, losses: list[tuple[str, str]]) -> Figure:
    """The training loss, and what was evaluated on the way."""
    return per_epoch(curves, losses, ["loss", *drawn_over_epochs(curves, METRICS)])


def drawn_over_epochs(curves: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Those of the columns that have more than one epoch to show."""
    return [c for c in columns if c in curves and curves.loc[curves[c].notna(), "epoch"].nunique() > 1]


def per_epoch(curves: pd.DataFrame, losses: list[tuple[str, str]], rows: Sequence[str]) -> Figure:
    """The mean over seeds of each column of `rows`, for each number of experts."""
    counts = sorted(set(curves["num_experts"]))
    size = (2.4 * len(counts) + 1.6, 2.1 * len(rows) + 0.3)
    figure, axes = plt.subplots(len(rows), len(counts), figsize=size, squeeze=False, sharex=True, sharey="row")
    for column, num in zip(axes.T, counts, strict=True):
        column[0].set_title(experts_title(num), fontsize=9)
        column[-1].set_xlabel("Epoch")
        for loss in losses:
            here = (curves["num_experts"] == num) & (curves["base"] == loss[0]) & (curves["method"] == loss[1])
            for ax, row in zip(column, rows, strict=True):
                mean = curves[here].dropna(subset=row).groupby("epoch")[row].mean()
                ax.plot(mean.index, mean, label=loss_label(*loss), **(look(*loss) | {"marker": ""}))
    for ax, row in zip(axes[:, 0], rows, strict=True):
        ax.set_ylabel(TITLES.get(row, "Training loss"))
    legend_of(axes[0, -1], axes[0, -1])
    return figure


def evaluated_in_full(runs: pd.DataFrame) -> pd.DataFrame:
    """The finished runs whose result.json holds an `evaluation`, with it as a column."""
    done = one_per_seed(runs[runs["status"] == "finished"])
    done["evaluation"] = [
        json.loads(Path(folder, "result.json").read_text()).get("evaluation") for folder in done["folder"]
    ]
    return done[done["evaluation"].notna()]


def full_figures(full: pd.DataFrame, losses: list[tuple[str, str]]) -> dict[str, Figure]:
    """What evaluation=full allows to draw; a figure for which no run has the numbers is left out."""
    drawn = {
        "regret": ("regret", regret),
        "reliability": ("calibration", reliability),
        "budget_curve": ("curve", budget_curve),
        "posterior": ("posterior", posterior),
    }
    have = {name: full[[bool(e[key]) for e in full["evaluation"]]] for name, (key, _) in drawn.items()}
    return {name: draw(have[name], losses) for name, (_, draw) in drawn.items() if len(have[name])}


def over_seeds(full: pd.DataFrame, loss: tuple[str, str], num: int, read: Callable[[dict], Any]) -> np.ndarray | None:
    """What `read` finds in the evaluation of each seed of a cell, [seeds, ...]; None where there is no run."""
    here = (full["num_experts"] == num) & (full["base"] == loss[0]) & (full["method"] == loss[1])
    return np.array([read(e) for e in full.loc[here, "evaluation"]], dtype=float) if here.any() else None


def regret(full: pd.DataFrame, losses: list[tuple[str, str]]) -> Figure:
    """The excess over the best achievable error, stacked from its three parts, mean over seeds."""
    counts = sorted(set(full["num_experts"]))
    size = (1.9 * len(counts) + 3, 0.32 * len(losses) + 1.3)
    figure, axes = plt.subplots(1, len(counts), figsize=size, squeeze=False, sharex=True, sharey=True)
    for ax, num in zip(axes[0], counts, strict=True):
        for i, loss in enumerate(losses):
            parts = over_seeds(full, loss, num, lambda e: [e["regret"][part] for part in PARTS])
            if parts is not None:
                width = parts.mean(0)  # [3]
                ax.barh([i] * 3, width, left=width.cumsum() - width, color=[colour for _, colour in PARTS.values()])
        ax.set_title(experts_title(num), fontsize=9)
        ax.set_xlabel("Regret (%)")
    axes[0, 0].set_yticks(range(len(losses)), [loss_label(*loss) for loss in losses])
    axes[0, 0].invert_yaxis()
    handles = [Patch(color=colour, label=label) for label, colour in PARTS.values()]
    axes[0, -1].legend(handles=handles, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def reliability(full: pd.DataFrame, losses: list[tuple[str, str]]) -> Figure:
    """Accuracy against confidence with the most experts, the bins of all seeds pooled; the diagonal is calibrated."""
    num, keys = max(full["num_experts"]), ("count", "confidence", "accuracy")
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), sharey=True)
    for ax, title in zip(axes, ("Classifier", "Asked expert"), strict=True):
        ax.plot([0, 100], [0, 100], color="0.6", linewidth=1)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("Confidence (%)")
    for loss in losses:
        found = over_seeds(
            full,
            loss,
            num,
            lambda e: [[e["calibration"][who][key] for key in keys] for who in ("classifier", "expert")],
        )  # [seeds, 2, 3, bins]
        if found is None:
            continue
        for ax, bins in zip(axes, np.nan_to_num(found).swapaxes(0, 1), strict=True):
            count = bins[:, 0]  # [seeds, bins]
            filled = count.sum(0) > 0
            x, y = (bins[:, 1:] * count[:, None]).sum(0)[:, filled] / count.sum(0)[filled]
            ax.plot(x, y, label=loss_label(*loss), **look(*loss))
    axes[0].set_ylabel(f"Accuracy (%), {experts_title(num)}")
    legend_of(axes[1], axes[1])
    return figure


def budget_curve(full: pd.DataFrame, losses: list[tuple[str, str]]) -> Figure:
    """Accuracy over every coverage with the most experts; crosses: thresholds for a budget, found on held-out data."""
    num = max(full["num_experts"])
    figure, ax = plt.subplots(figsize=(5.2, 3.6))
    for loss in losses:
        curve = over_seeds(full, loss, num, lambda e: [e["curve"]["coverage"], e["curve"]["accuracy"]])
        if curve is None:
            continue
        ax.plot(*curve.mean(0), label=loss_label(*loss), **(look(*loss) | {"marker": ""}))
        kept = over_seeds(
            full, loss, num, lambda e: [(row["coverage"], 100 - row["system_error"]) for row in e["budget"] or []]
        )
        if kept is not None and kept.size:
            ax.plot(*kept.mean(0).T, linestyle="", marker="x", color=look(*loss)["color"])
    ax.set_xlabel(TITLES["coverage"])
    ax.set_ylabel(f"System accuracy (%), {experts_title(num)}")
    legend_of(ax, ax)
    return figure


def posterior(full: pd.DataFrame, losses: list[tuple[str, str]]) -> Figure:
    """The most probable labels in descending order, before experts join (grey) and after, as the paper's figure 1."""
    counts = sorted(set(full["num_experts"]))
    size = (2.2 * len(counts) + 1.9, 2.9)
    figure, axes = plt.subplots(1, len(counts), figsize=size, squeeze=False, sharey=True)
    for ax, num in zip(axes[0], counts, strict=True):
        here = full.loc[full["num_experts"] == num, "evaluation"]
        before = np.mean([e["posterior"]["true"] or e["posterior"]["before"] for e in here], axis=0)
        ranks = range(1, len(before) + 1)
        ax.bar(ranks, before, color="0.85", label="Before experts")
        for loss in losses:
            after = over_seeds(full, loss, num, lambda e: e["posterior"]["after"])
            if after is not None:
                ax.plot(ranks, after.mean(0), label=loss_label(*loss), **look(*loss))
        ax.set_title(experts_title(num), fontsize=9)
        ax.set_xlabel("Label, by rank")
        ax.set_xticks(ranks)
    axes[0, 0].set_ylabel("Probability (%)")
    legend_of(axes[0, -1], axes[0, -1])
    return figure


def experts_title(num: int) -> str:
    return f"{num} experts" if num > 1 else "1 expert"


def deferred_to(runs: pd.DataFrame, losses: list[tuple[str, str]]) -> Figure:
    """A heat map per number of experts: of what a loss defers, the share that each expert gets, mean over seeds."""
    done = runs[runs["status"] == "finished"]
    counts = sorted(set(done["num_experts"]) - {1}) or [1]  # one expert gets everything
    tables = []
    for num in counts:
        table = np.full((len(losses), num), np.nan)  # [losses, J]
        for i, (base, method) in enumerate(losses):
            here = (done["num_experts"] == num) & (done["base"] == base) & (done["method"] == method)
            given = [np.divide(row, sum(row)) for row in done.loc[here, "deferred_to"] if sum(row) > 0]
            if given:
                table[i] = 100 * np.mean(given, axis=0)
        tables.append(table)
    top = max(np.nanmax(table, initial=1) for table in tables)
    widths = [max(num, 4) for num in counts]
    size = (min(0.2 * sum(widths) + 0.4 * len(counts) + 2.4, 14), 0.3 * len(losses) + 1.3)
    figure, axes = plt.subplots(1, len(counts), figsize=size, squeeze=False, sharey=True, width_ratios=widths)
    for ax, num, table in zip(axes[0], counts, tables, strict=True):
        image = ax.imshow(table, cmap="cividis", vmin=0, vmax=top, aspect="auto")
        ax.set_title(f"{num} experts", fontsize=9)
        ax.set_xticks(sorted({0, num - 1}), sorted({1, num}))
        ax.set_xlabel("Expert")
        ax.grid(visible=False)
    axes[0, 0].set_yticks(range(len(losses)), [loss_label(*loss) for loss in losses])
    figure.colorbar(image, ax=axes[0], label="Share of the deferred (%)")
    return figure


def legend_of(ax: Axes, shown: Axes) -> None:
    """What `shown` draws, named at the right of `ax`."""
    handles, labels = shown.get_legend_handles_labels()
    if handles:
        ax.legend(handles, labels, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def against_count(ax: Axes, block: pd.DataFrame, metric: str) -> None:
    """A line per loss with a band of one standard deviation, and what is achievable where that is known."""
    for (base, method), line in block.dropna(subset=metric).groupby(["base", "method"], sort=False):
        style = look(base, method)
        ax.plot(line["num_experts"], line[metric], label=loss_label(base, method), **style)
        std = line[f"{metric}_std"].fillna(0)
        low, high = line[metric] - std, line[metric] + std
        ax.fill_between(line["num_experts"], low, high, color=style["color"], alpha=0.13, linewidth=0)
    best = f"bayes_{metric}"
    if metric == "system_error" and best in block and block[best].notna().any():
        line = block.dropna(subset=best).drop_duplicates("num_experts").sort_values("num_experts")
        ax.plot(line["num_experts"], line[best], color="0.35", linewidth=1.2, linestyle="-.", label="Best achievable")
    ax.set_xticks(sorted(set(block["num_experts"])))
    ax.set_xlabel("Number of experts")
    ax.set_ylabel(TITLES[metric])


def look(base: str, method: str) -> dict[str, Any]:
    known = method.split(" ")[0]
    colour = COLOURS.get(base) or OTHER_COLOURS[sum(map(ord, base + method)) % len(OTHER_COLOURS)]
    return {"color": colour, "linestyle": LINES.get(known, "-."), "marker": MARKERS.get(known, "D")}


def slug(title: str, index: int) -> str:
    """A folder's name for a block: its title, with the block's place so that no two are the same."""
    return f"{index + 1}-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".png"))
    figure.set_layout_engine("none")  # the places are found: the PDF need not look for them again
    figure.savefig(path.with_suffix(".pdf"))
    plt.close(figure)
    return path.with_suffix(".png")
