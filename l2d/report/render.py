"""Blocks -> Markdown, LaTeX, CSV and plain text. Names come from configs and results: what would be markup is escaped."""

import html
import re
from typing import TYPE_CHECKING, Any

import pandas as pd

from l2d.report.blocks import Block
from l2d.report.layout import (
    Entry,
    RankingTable,
    ReferenceTable,
    ResultsTable,
    count_of,
    mean_std,
    rankings,
    reference_shown,
    results_tables,
)
from l2d.report.methods import label
from l2d.report.metrics import ShownMetric

PACKAGES = r"% needs \usepackage{booktabs,graphicx}"

if TYPE_CHECKING:
    from l2d.report.deploy import Deployed


def to_csv(frame: pd.DataFrame) -> str:
    """A spreadsheet would compute a cell that begins with = + - or @; an apostrophe makes it text."""

    def text(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell

    strings = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    shown = frame.assign(**{name: frame[name].map(text) for name in strings}).rename(columns=text)
    return str(shown.to_csv(index=False))


def to_markdown(blocks: list[Block]) -> str:
    return "\n\n".join(["# Results", *map(block_to_markdown, blocks)]) + "\n"


def block_to_markdown(block: Block) -> str:
    """The tables of a block with their titles and legends."""
    parts = []
    for table in results_tables(block):
        headings = [md(f"{column} {heading}") for column in table.columns for heading in table.headings]
        rows = [[*map(md, row.names), *_flat(row.cells, _markdown_entry)] for row in table.rows]
        parts += [f"## {md(table.title)}", markdown_table([*table.names, *headings], rows), md(table.legend)]
    if reference := reference_shown(block):
        parts += [markdown_table(reference.headings, reference.rows), reference.legend]
    return "\n\n".join(parts)


def ranking_to_markdown(blocks: list[Block]) -> str:
    parts = ["# Ranking"]
    for table in (table for block in blocks for table in rankings(block)):
        rows = []
        for row in table.rows:
            name = md(row.name) if row.method else f"*{md(row.name)}*"
            rows.append([row.place, name, *map(_markdown_entry, row.cells)])
        parts += [f"## {md(table.title)}", markdown_table(table.headings, rows), md(table.legend)]
    return "\n\n".join(parts) + "\n"


def deploy_to_markdown(deployed: "Deployed") -> str:
    """What to deploy under one rule and costs, best first."""
    parts = ["# What should I deploy?", f"Under `{md(deployed.changes)}`. {deployed.legend}"]
    for table in deployed.tables:
        parts.append(f"## {md(table.title)}")
        parts.append(markdown_table(table.headings, [list(map(md, row)) for row in table.rows]))
        parts.append(f"{md(table.asked_title)}:")
        parts.append(markdown_table(list(map(md, table.asked_headings)), [list(map(md, row)) for row in table.asked]))
    return "\n\n".join(parts) + "\n"


def deploy_to_text(deployed: "Deployed") -> str:
    """The same for the terminal."""
    parts = [f"\nWhat should I deploy? Under {deployed.changes}:"]
    for table in deployed.tables:
        parts += ["", table.title, aligned([table.headings, *table.rows])]
        parts += ["", f"{table.asked_title}:", aligned([table.asked_headings, *table.asked])]
    return "\n".join(parts)


def md(text: str) -> str:
    """Text that Markdown shows as it is: no HTML, emphasis, code, links or columns.

    >>> md("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    return html.escape(re.sub(r"([\\`*\[\]|])", r"\\\1", text), quote=False)


def markdown_table(headings: list[str], rows: list[list[str]]) -> str:
    """A table of texts that are Markdown already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _markdown_entry(entry: Entry) -> str:
    return f"{f'**{entry.text}**' if entry.better else entry.text} {entry.note}".strip()


def to_latex(blocks: list[Block]) -> str:
    """A `table` environment per table, for a document that loads booktabs and graphicx."""
    parts = [PACKAGES]
    for block in blocks:
        parts += [_latex_results(table) for table in results_tables(block)]
        if reference := reference_shown(block):
            parts.append(_latex_reference(block.title, reference))
    return "\n\n".join(parts) + "\n"


def ranking_to_latex(blocks: list[Block]) -> str:
    """A `table` environment per ranking, for a document that loads booktabs and graphicx."""
    return "\n\n".join([PACKAGES, *(_latex_ranking(table) for block in blocks for table in rankings(block))]) + "\n"


def _latex_results(table: ResultsTable) -> str:
    width = len(table.headings)
    groups = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{tex(name)}}}" for name in table.columns)
    left = len(table.names)
    firsts = [left + 1 + width * i for i in range(len(table.columns))]
    rules = "".join(rf"\cmidrule(lr){{{first}-{first + width - 1}}}" for first in firsts)
    heads = [tex(heading) for heading in table.headings] * len(table.columns)
    body: list[str] = []
    for i, row in enumerate(table.rows):
        if row.begins and i:
            body.append(r"\midrule")
        first, *others = map(tex, row.names)
        names = [first if row.begins or not others else "", *others]  # a base is not repeated
        body.append(" & ".join([*names, *_flat(row.cells, _latex_entry)]) + r" \\")
    names = [r"\#Exp" if name == "Experts" else name for name in table.names]
    top = [rf"{' & ' * left}{groups} \\", rules, " & ".join([*names, *heads]) + r" \\"]
    return _latex_environment(f"{table.title}. {table.legend}", "l" * left + "c" * len(heads), top, body)


def _latex_ranking(table: RankingTable) -> str:
    head = " & ".join(map(tex, table.headings)) + r" \\"
    body = []
    for row in table.rows:
        name = tex(row.name) if row.method else rf"\textit{{{tex(row.name)}}}"
        body.append(" & ".join([row.place, name, *map(_latex_entry, row.cells)]) + r" \\")
    return _latex_environment(f"{table.title}. {table.legend}", "rl" + "c" * (len(table.headings) - 2), [head], body)


def _latex_reference(title: str, table: ReferenceTable) -> str:
    head = " & ".join(map(tex, table.headings)) + r" \\"
    body = [" & ".join(map(tex, row)) + r" \\" for row in table.rows]
    return _latex_environment(f"{title}. {table.legend}", "l" + "c" * (len(table.headings) - 1), [head], body)


def _latex_environment(caption: str, columns: str, head: list[str], body: list[str]) -> str:
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{tex(caption)}}}",
        r"\resizebox{\linewidth}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_entry(entry: Entry) -> str:
    text = rf"\textbf{{{tex(entry.text)}}}" if entry.better else tex(entry.text)
    return f"{text} {{\\footnotesize {entry.note}}}" if entry.note else text


def tex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    special |= {"[": "{[}", "*": "{*}"}  # at the beginning of a row they would belong to the \\ before it
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    return "".join(special.get(char, char) for char in text)


def _flat(cells: list[tuple[str, list[Entry]]], show: Any) -> list[str]:
    return [show(entry) for _, entries in cells for entry in entries]


def to_text(blocks: list[Block]) -> str:
    """For the terminal: a small table per metric, a column per method, the best achievable value at the right.

    Where methods are too many for columns they are rows, and their ranking follows.
    """
    parts = []
    for block in blocks:
        seeds = int(block.cells["seeds"].iloc[0])
        what = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
        parts.append(f"{block.title}: {what}")
        parts += [aligned(_one_metric(block, metric)) for metric in block.metrics]
        if reference := reference_shown(block):
            rows = [[count_of(int(num)), *numbers] for num, *numbers in reference.rows]
            parts.append(aligned([["to compare with", *reference.headings[1:]], *rows]))
        parts += [_text_ranking(table) for table in rankings(block) if block.in_rows]
    return "\n\n".join(parts) + "\n"


def _one_metric(block: Block, metric: ShownMetric) -> list[list[str]]:
    """The lines of a metric's table, a row per number of experts, or per method where these are many."""
    best = f"bayes_{metric.name}"
    has_best = best in block.cells and block.cells[best].notna().any()
    lines = [[metric.label, *map(label, block.methods), *(["best"] if has_best else [])]]
    for num, row in block.cells.groupby("num_experts"):
        at = {cell["method"]: cell for cell in row.to_dict("records")}
        line = [count_of(num), *(_marked(at.get(method), metric) for method in block.methods)]
        lines.append([*line, *([f"{row[best].iloc[0]:.2f}"] if has_best else [])])
    return list(map(list, zip(*lines, strict=True))) if block.in_rows else lines


def _text_ranking(table: RankingTable) -> str:
    headings = [table.by, "", *table.headings[2:]]
    rows = [[row.name, row.place, *(f"{e.text} {e.note}".strip() for e in row.cells)] for row in table.rows]
    return aligned([headings, *rows])


def _marked(cell: dict[str, Any] | None, metric: ShownMetric) -> str:
    if cell is None:
        return ""
    seeds = f" ({cell['n']} of {cell['seeds']} seeds)" if cell["state"] == "partial" else ""
    return mean_std(cell, metric.name) + seeds


def aligned(lines: list[list[str]]) -> str:
    """Rows of texts as lines with columns, the first one at the left and the others at the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )
