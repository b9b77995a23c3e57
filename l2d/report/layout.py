"""Blocks -> tables of text in the paper's layout (bases and counts down, formulations across), for every format."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from l2d.report.blocks import Block
from l2d.report.methods import BASES, column
from l2d.report.metrics import REFERENCE_SHOWN, ShownMetric

NOT_DEFINED = "n/a"


@dataclass
class Entry:
    """One place in a table."""

    text: str
    better: bool = False
    published: str = ""


@dataclass
class Row:
    base: str
    num_experts: int
    cells: list[tuple[str, list[Entry]]]  # for each column its method and an entry per heading; no method: not run


@dataclass
class ResultsTable:
    title: str
    legend: str
    columns: list[str]
    headings: list[str]  # below each column: the metrics and n
    rows: list[Row]


@dataclass
class ReferenceTable:
    legend: str
    headings: list[str]
    rows: list[list[str]]


def results_tables(block: Block) -> list[ResultsTable]:
    """The headline metrics, and a second table if runs have metrics that are not headline ones."""
    headline = [metric for metric in block.metrics if metric.role == "headline"]
    further = [metric for metric in block.metrics if metric.role != "headline"]
    printed = block.cells["table"].dropna()
    source = f" (the paper's Table {printed.iloc[0].removeprefix('table')})" if len(printed) else ""
    tables = [_results(block, block.title + source, headline)]
    return tables + ([_results(block, f"{block.title}: further metrics", further)] if further else [])


def _results(block: Block, title: str, metrics: list[ShownMetric]) -> ResultsTable:
    columns = sorted({column(method) for method in block.methods})
    headings = [*(metric.heading for metric in metrics), "n"]
    rows = []
    for (base, num), group in block.cells.groupby(["base", "num_experts"], sort=False):
        at = {column(cell["method"]): cell for cell in group.to_dict("records")}
        blank = ("", [Entry("")] * len(headings))
        cells = [(at[c]["method"], entries(at[c], metrics)) if c in at else blank for c in columns]
        rows.append(Row(BASES.get(base, base), int(num), cells))
    return ResultsTable(title, _legend(block, metrics), [heading for _, heading in columns], headings, rows)


def _legend(block: Block, metrics: list[ShownMetric]) -> str:
    notes = {"classifier_accuracy": ", the classifier alone on all samples"}
    meanings = [f"{metric.short}: {metric.label}{notes.get(metric.name, '')}" for metric in metrics if metric.short]
    legend = f"{'; '.join(meanings)}. " if meanings else ""
    legend += "Mean ± sample standard deviation over the n seeds that finished."
    if any(block.cells[f"{metric.name}_better"].any() for metric in metrics):
        legend += " Bold: the best complete cell of a row."
    has_published = [f"{metric.name}_published" in block.cells for metric in metrics]
    if any(has_published) and block.cells["table"].notna().any():
        legend += " In brackets: the published number and the difference from it."
    return legend


def entries(cell: dict[str, Any], metrics: list[ShownMetric]) -> list[Entry]:
    """Each metric and n of a cell; without a finished seed its state, with the published number."""
    shown = [
        Entry(mean_std(cell, metric.name), cell[f"{metric.name}_better"], _published(cell, metric.name))
        for metric in metrics
    ]
    count = f"{cell['n']} of {cell['seeds']} seeds" if cell["state"] == "partial" else str(cell["n"])
    return [*shown, Entry(count)]


def mean_std(cell: dict[str, Any], metric: str) -> str:
    """`18.32 ± 0.11`, without the deviation where there is one seed."""
    if not cell["n"]:
        return cell["state"]
    if pd.isna(cell[metric]):
        return NOT_DEFINED
    return f"{cell[metric]:.2f}" + (f" ± {cell[f'{metric}_std']:.2f}" if cell["n"] > 1 else "")


def _published(cell: dict[str, Any], metric: str) -> str:
    """`[18.48, -0.16]`: the paper's number and ours minus it."""
    number = cell.get(f"{metric}_published", float("nan"))
    if pd.isna(number):
        return ""
    return f"[{number:.2f}, {cell[metric] - number:+.2f}]" if cell["n"] else f"[{number:.2f}]"


def reference_shown(block: Block) -> ReferenceTable | None:
    """Accuracies to compare a system with, per number of experts; None where no run is finished."""
    labels = {metric.name: metric.label for metric in REFERENCE_SHOWN} | {"best_achievable": "Best achievable (%)"}
    known = {name: label for name, label in labels.items() if block.reference[name].notna().any()}
    if not known:
        return None
    rows = []
    for line in block.reference.itertuples(index=False):
        numbers = [getattr(line, name) for name in known]
        rows.append([str(line.num_experts), *(NOT_DEFINED if pd.isna(x) else f"{x:.2f}" for x in numbers)])
    legend = (
        "To compare with: accuracy without a trained system, mean over seeds; a system's accuracy is 100 minus its error. "
        "The best single expert is the most accurate one on the test samples."
    )
    return ReferenceTable(legend, ["Experts", *known.values()], rows)


def count_of(num: int) -> str:
    return f"{num} experts" if num != 1 else "1 expert"
