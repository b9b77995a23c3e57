"""Figures over the epochs of training, from metrics.csv."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from l2d.report.layout import count_of
from l2d.report.metrics import ShownMetric
from l2d.report.style import add_legend, height, line, short

UNDERFITTING = {
    "expert_aggregation": "Expert aggregation",
    "label_margin": "Label margin (%)",
    "class_gradient_share": "Gradient to classes (%)",
}


def epoch_figures(curves: pd.DataFrame, methods: list[str], metrics: list[ShownMetric]) -> dict[str, Figure]:
    """name -> figure: the training loss and the metrics evaluated during training, and underfitting where it was measured."""
    labels = {metric.name: metric.label for metric in metrics}
    loss = {"loss": "Training loss"} if "loss" in curves and curves["loss"].notna().any() else {}
    figures = {}
    if rows := {**loss, **_with_several_epochs(curves, labels)}:
        figures["training_curves"] = per_epoch(curves, methods, rows)
    if underfitting := _with_several_epochs(curves, UNDERFITTING):
        figures["underfitting"] = per_epoch(curves, methods, underfitting)
    return figures


def _with_several_epochs(curves: pd.DataFrame, labels: dict[str, str]) -> dict[str, str]:
    """The columns (name -> label) that have values in more than one epoch."""
    shown = [c for c in labels if c in curves and curves.loc[curves[c].notna(), "epoch"].nunique() > 1]
    return {column: labels[column] for column in shown}


def per_epoch(curves: pd.DataFrame, methods: Sequence[str], rows: dict[str, str]) -> Figure:
    """The mean over seeds of each column of `rows` (column -> label), for each number of experts."""
    counts = sorted(set(curves["num_experts"]))
    figure = Figure(figsize=(2.4 * len(counts) + 1.6, height(2.1 * len(rows) + 0.3, methods)))
    axes = figure.subplots(len(rows), len(counts), squeeze=False, sharex=True, sharey="row")
    for column, num in zip(axes.T, counts, strict=True):
        column[0].set_title(count_of(num), fontsize=9)
        column[-1].set_xlabel("Epoch")
        for method in methods:
            here = curves[(curves["num_experts"] == num) & (curves["method"] == method)]
            for ax, row in zip(column, rows, strict=True):
                mean = here.dropna(subset=row).groupby("epoch")[row].mean()
                ax.plot(mean.index, mean, **(line(method) | {"marker": ""}))
    for ax, text in zip(axes[:, 0], rows.values(), strict=True):
        ax.set_ylabel(short(text))
    add_legend(figure, axes[0, -1])
    return figure
