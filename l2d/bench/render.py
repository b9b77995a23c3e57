"""The tables of a benchmark as text, Markdown, CSV and a page that needs no network."""

import base64
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined

import l2d
from l2d.bench.figures import LEVEL
from l2d.bench.protocol import Protocol
from l2d.bench.scores import Scores
from l2d.report.methods import label
from l2d.report.render import aligned, markdown_table, md

SUMMARY = ["", "Method", "Mean rank", "Normalised regret", "Worst", "on", "Best on", "Tasks", "Seconds a run"]
CAPTIONS = {
    "critical_difference": "Mean rank over the tasks. A bar joins methods of which no two differ by Wilcoxon's test with Holm's correction at 5 percent.",
    "tasks": "Regret as a share of vanilla CE's on the same task; bold: the best of the task.",
}


def name_of(method: str) -> str:
    """`ova+two_stage` -> the name that the report has for it."""
    return label(method.replace("+", " "))


def summary_rows(scores: Scores) -> list[list[str]]:
    """A row per method over all tasks, best mean rank first."""
    rows = []
    for place, row in enumerate(scores.methods.to_dict("records"), 1):
        worst = [f"{row['worst_normalised']:.2f}", str(row["worst_task"])] if row["worst_task"] else ["", ""]
        numbers = [f"{row['mean_rank']:.2f}", _number(row["mean_normalised"]), *worst]
        counts = [str(row["best_on"]), f"{row['tasks']} of {row['of']}", _number(row["seconds"], 1)]
        rows.append([str(place), name_of(row["method"]), *numbers, *counts])
    return rows


def task_table(scores: Scores) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the excess: a row per method in the order of the summary, a column per task; * is a task's best."""
    cells = scores.cells
    tasks = list(dict.fromkeys(cells["task"]))
    at = cells.set_index(["method", "task"]).to_dict("index")
    rows = [[name_of(m), *(_excess(at.get((m, task))) for task in tasks)] for m in scores.methods["method"]]
    best = [_best(cells[cells["task"] == task]) for task in tasks]
    return ["Method", *tasks], [*rows, ["*best achievable error*", *best]]


def findings(scores: Scores, protocol: Protocol) -> list[str]:
    """What the tests say, where the user's own methods stand, and what a task did not allow."""
    comparison = scores.comparison
    place = {method: i + 1 for i, method in enumerate(scores.methods["method"])}
    said = []
    if pd.notna(comparison.friedman):
        told = "differ" if comparison.friedman < LEVEL else "cannot be told apart"
        said.append(
            f"Friedman's test over the {comparison.tasks} tasks: p = {comparison.friedman:.2g}, the methods {told}."
        )
        if comparison.smallest() >= LEVEL:
            said.append(f"With {comparison.tasks} tasks no two of {len(place)} methods can differ significantly.")
    for method in protocol.added:
        pairs = comparison.against(method)
        better = [name_of(m) for m in pairs.index if pairs[m] < LEVEL and place[method] < place[m]]
        worse = [name_of(m) for m in pairs.index if pairs[m] < LEVEL and place[method] > place[m]]
        said.append(
            f"{name_of(method)} is number {place[method]} of {len(place)} by mean rank; significantly ahead of "
            f"{', '.join(better) or 'none'}, significantly behind {', '.join(worse) or 'none'} (Holm's correction for these pairs alone)."
        )
    failed = scores.cells[scores.cells["error"].notna()]
    for task, group in failed.groupby("task", sort=False):
        said.append(
            f"Not run on {task}: {', '.join(map(name_of, group['method']))}. The first: {group['error'].iloc[0]}"
        )
    return said


def describe(protocol: Protocol) -> str:
    """The protocol in a sentence."""
    trials, reported = protocol.num_runs()
    tasks = "1 task" if len(protocol.tasks) == 1 else f"{len(protocol.tasks)} tasks"
    return (
        f"l2d bench {protocol.size}, protocol {protocol.bench}: {tasks}, {len(protocol.methods)} methods; {trials} trials choose "
        f"the settings of each on held-out data, {reported} runs with other seeds ({len(protocol.seeds)} each) are reported."
    )


def to_text(scores: Scores, protocol: Protocol) -> str:
    """What the command prints at its end."""
    rows = [[row[1], row[0], *row[2:]] for row in [SUMMARY, *summary_rows(scores)]]
    said = "\n".join(findings(scores, protocol))
    return "\n\n".join([describe(protocol), aligned(rows), *([said] if said else [])]) + "\n"


def to_markdown(scores: Scores, protocol: Protocol) -> str:
    """Both tables and the findings."""
    headings, rows = task_table(scores)
    parts = [
        "# Benchmark",
        md(describe(protocol)),
        markdown_table(SUMMARY, [list(map(md, row)) for row in summary_rows(scores)]),
        "Regret, in points of system error (with costs: of cost) above the best achievable; where that is not known, the error itself. "
        "Mean over seeds ± half of the 95% interval; bold: the best of the task.",
        markdown_table(list(map(md, headings)), rows),
        *map(md, findings(scores, protocol)),
    ]
    return "\n\n".join(parts) + "\n"


def to_page(scores: Scores, protocol: Protocol, figures: dict[str, Path]) -> str:
    """One HTML file with the figures inside."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("l2d.bench").joinpath("page.html").read_text(encoding="utf-8"))
    headings, rows = task_table(scores)
    shown = [
        {"data": base64.b64encode(path.read_bytes()).decode(), "caption": CAPTIONS[name]}
        for name, path in figures.items()
    ]
    return template.render(
        title=describe(protocol),
        summary_headings=SUMMARY,
        summary=summary_rows(scores),
        headings=headings,
        rows=[[(cell.strip("*"), cell.startswith("**")) for cell in row] for row in rows],
        findings=findings(scores, protocol),
        figures=shown,
        version=l2d.__version__,
    )


def _excess(cell: dict[str, Any] | None) -> str:
    if cell is None or not cell["n"]:
        return "-"
    half = (cell["high"] - cell["low"]) / 2
    text = f"{cell['excess']:.2f}" + (f" ± {half:.2f}" if pd.notna(half) else "")
    return f"**{text}**" if cell["rank"] == 1 else text


def _best(cells: pd.DataFrame) -> str:
    known = cells["best_achievable"].dropna()
    return f"{known.iloc[0]:.2f}" if len(known) else "-"


def _number(value: float, decimals: int = 2) -> str:
    return "" if pd.isna(value) else f"{value:.{decimals}f}"
