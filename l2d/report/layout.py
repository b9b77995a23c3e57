"""Blocks -> tables of text, for every format: in the paper's layout (bases and counts down, formulations across), or where
that has too many columns with a row per method; the ranking; and what methods are compared with."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from l2d.report.blocks import Block
from l2d.report.methods import BASES, column, label
from l2d.report.metrics import REFERENCE_SHOWN, ShownMetric
from l2d.report.ranking import RANKED

NOT_DEFINED = "n/a"
AVERAGE = 0  # in place of a number of experts

RANKING = (
    "Mean ± sample standard deviation over seeds, the lowest first; in brackets the rank among the methods. The mean rank is over all "
    "numbers of experts and seeds. A method that has not finished all of these has no average and stands last. Without a "
    "number: what is reached without learning to defer, and the best achievable."
)
RANKING_NOTES = {
    "system_error": "",
    "regret": "Regret is the expected excess over the best achievable error; of what is not a method, the excess of its error.",
}


@dataclass
class Entry:
    """One place in a table."""

    text: str
    better: bool = False
    note: str = ""  # the published number, or the rank


@dataclass
class Row:
    names: list[str]  # base and number of experts, or the method
    begins: bool  # the first of its base
    cells: list[tuple[str, list[Entry]]]  # for each column its method and an entry per heading; no method: not run


@dataclass
class ResultsTable:
    title: str
    legend: str
    names: list[str]  # headings of the names of rows
    columns: list[str]
    headings: list[str]  # below each column: the metrics and n
    rows: list[Row]


@dataclass
class RankingRow:
    place: str  # among the methods; of a reference empty
    name: str
    method: str  # empty: a reference
    cells: list[Entry]


@dataclass
class RankingTable:
    title: str
    by: str
    legend: str
    note: str  # what the legend of one ranking says that that of another does not
    headings: list[str]
    rows: list[RankingRow]


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
    headings = [*(metric.heading for metric in metrics), "n"]
    columns: list[Any]
    if block.in_rows:
        names, columns = ["Method"], sorted(set(block.cells["num_experts"]))
        texts = [count_of(num) for num in columns]
        groups = [(method, block.cells[block.cells["method"] == method]) for method in block.methods]
        found = [
            ([label(m)], g["base"].iloc[0], dict(zip(g["num_experts"], _records(g), strict=True))) for m, g in groups
        ]
    else:
        names, columns = ["Base", "Experts"], sorted({column(method) for method in block.methods})
        texts = [heading for _, heading in columns]
        found = [
            ([BASES.get(base, base), str(num)], base, {column(cell["method"]): cell for cell in _records(group)})
            for (base, num), group in block.cells.groupby(["base", "num_experts"], sort=False)
        ]
    rows: list[Row] = []
    last = None
    for name, base, at in found:
        blank = ("", [Entry("")] * len(headings))
        cells = [(at[c]["method"], entries(at[c], metrics)) if c in at else blank for c in columns]
        rows.append(Row(name, base != last, cells))
        last = base
    return ResultsTable(title, _legend(block, metrics), names, texts, headings, rows)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = frame.to_dict("records")
    return records


def _legend(block: Block, metrics: list[ShownMetric]) -> str:
    notes = {"classifier_accuracy": ", the classifier alone on all samples"}
    meanings = [f"{metric.short}: {metric.label}{notes.get(metric.name, '')}" for metric in metrics if metric.short]
    legend = f"{'; '.join(meanings)}. " if meanings else ""
    legend += "Mean ± sample standard deviation over the n seeds that finished."
    if any(block.cells[f"{metric.name}_better"].any() for metric in metrics):
        legend += f" Bold: the best complete cell {'with this number of experts' if block.in_rows else 'of a row'}."
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
        return str(cell["state"])
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


def rankings(block: Block) -> list[RankingTable]:
    """The methods in the order of their system error, and of their regret where it is known; none for a single method."""
    if block.ranking.loc[block.ranking["kind"] == "method", "entry"].nunique() < 2:
        return []
    return [_ranking(block, str(by), frame) for by, frame in block.ranking.groupby("by", sort=False)]


def _ranking(block: Block, by: str, frame: pd.DataFrame) -> RankingTable:
    counts = sorted(map(int, set(frame["num_experts"].dropna())))
    shown = ([AVERAGE] if len(counts) > 1 else []) + counts
    seeds = frame.groupby("num_experts")["n"].max()
    rows = []
    for (entry, kind), lines in frame.groupby(["entry", "kind"], sort=False):
        at = dict(zip(lines["num_experts"].fillna(AVERAGE), _records(lines), strict=True))
        method = str(entry) if kind == "method" else ""
        cells = [_ranked(at.get(num), int(seeds.get(num, 0)) if method else 0) for num in shown]
        place, mean_rank = "", ""
        if method and AVERAGE in at:
            place, mean_rank = f"{at[AVERAGE]['rank']:.0f}", f"{at[AVERAGE]['mean_rank']:.1f}"
        rows.append(RankingRow(place, label(method) or str(entry), method, [*cells, Entry(mean_rank)]))
    headings = ["", "Method", *("Average" if num == AVERAGE else count_of(num) for num in shown), "Mean rank"]
    title = f"{block.title}: by {RANKED[by].removesuffix(' (%)').lower()}"
    return RankingTable(title, RANKED[by], f"{RANKING} {RANKING_NOTES[by]}".strip(), RANKING_NOTES[by], headings, rows)


def _ranked(line: dict[str, Any] | None, seeds: int) -> Entry:
    """Mean and deviation of an entry of a ranking; where it is one of `seeds` runs its rank, or how many of them it has."""
    if line is None or pd.isna(line["mean"]):
        return Entry("")
    text = f"{line['mean']:.2f}" + (f" ± {line['std']:.2f}" if pd.notna(line["std"]) else "")
    rank = f"({line['rank']:.0f})" if pd.notna(line["rank"]) else f"({line['n']} of {seeds} seeds)"
    return Entry(text, line["rank"] == 1, rank if seeds else "")


def count_of(num: int) -> str:
    return f"{num} experts" if num != 1 else "1 expert"
