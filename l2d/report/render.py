"""Cells -> Markdown, LaTeX and plain text, in the paper's layout: bases and counts down, formulations across."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from l2d.report.load import METRICS
from l2d.report.tables import BASES, blocks, loss_label, losses_of, method_label

HEADINGS = {"system_error": "Err", "coverage": "Cov", "classifier_accuracy": "Acc"}
LEGEND = (
    "Err: system error, Cov: coverage, Acc: classifier accuracy on all samples, all on the 0-100 scale; "
    "mean ± sample standard deviation over the n seeds that finished. "
    "Bold: the better of vanilla and PiCCE, where both are complete."
)
LEGEND_PUBLISHED = " In brackets: the published number and the difference from it."


@dataclass
class Entry:
    """What one place in a table says."""

    text: str
    better: bool = False
    published: str = ""


@dataclass
class Table:
    title: str
    legend: str
    methods: list[str]
    rows: list[tuple[str, int, list[Any], list[list[Entry]]]]  # base, count, cells, and for each cell Err, Cov, Acc, n


def make_tables(cells: pd.DataFrame) -> list[Table]:
    tables = []
    for title, block in blocks(cells):
        methods = list(dict.fromkeys(block["method"]))
        rows = []
        for (base, num), group in block.groupby(["base", "num_experts"], sort=False):
            at = {cell.method: cell for cell in group.itertuples(index=False)}
            row = [at.get(method) for method in methods]
            rows.append((base, int(num), row, [entries(cell) for cell in row]))
        printed = block["table"].dropna()
        where = f" (the paper's Table {printed.iloc[0].removeprefix('table')})" if len(printed) else ""
        legend = LEGEND + (LEGEND_PUBLISHED if len(printed) else "")
        tables.append(Table(title + where, legend, methods, rows))
    return tables


def entries(cell: Any) -> list[Entry]:
    """Err, Cov, Acc and n of a cell; without a finished seed its state, beside what the paper has there."""
    if cell is None:
        return [Entry("")] * 4
    shown = [Entry(mean_std(cell, m), getattr(cell, f"{m}_better"), published(cell, m)) for m in METRICS]
    return [*shown, Entry(f"{cell.n} of {cell.seeds} seeds" if cell.state == "partial" else str(cell.n))]


def mean_std(cell: Any, metric: str) -> str:
    """`18.32 ± 0.11`, without the deviation where there is one seed."""
    if not cell.n:
        return cell.state
    return f"{getattr(cell, metric):.2f}" + (f" ± {getattr(cell, f'{metric}_std'):.2f}" if cell.n > 1 else "")


def published(cell: Any, metric: str) -> str:
    """`[18.48, -0.16]`: the paper's number and ours minus it."""
    number = getattr(cell, f"{metric}_published", float("nan"))
    if pd.isna(number):
        return ""
    return f"[{number:.2f}, {getattr(cell, metric) - number:+.2f}]" if cell.n else f"[{number:.2f}]"


def to_markdown(cells: pd.DataFrame) -> str:
    def line(texts: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    def show(entry: Entry) -> str:
        return f"{f'**{entry.text}**' if entry.better else entry.text} {entry.published}".strip()

    parts = ["# Results"]
    for table in make_tables(cells):
        heads = [f"{method_label(m)} {head}" for m in table.methods for head in (*HEADINGS.values(), "n")]
        lines = [line(["Base", "Experts", *heads]), line(["---"] * (2 + len(heads)))]
        for base, num, _, shown in table.rows:
            lines.append(line([BASES.get(base, base), str(num), *(show(entry) for cell in shown for entry in cell)]))
        parts += [f"## {table.title}", "\n".join(lines), table.legend]
    return "\n\n".join(parts) + "\n"


def to_latex(cells: pd.DataFrame) -> str:
    """A `table` environment per block, for a document that loads booktabs and graphicx."""

    def show(entry: Entry) -> str:
        text = entry.text.replace("±", r"$\pm$")
        text = rf"\textbf{{{text}}}" if entry.better else text
        return f"{text} {{\\footnotesize {entry.published}}}" if entry.published else text

    parts = [r"% needs \usepackage{booktabs,graphicx}"]
    for table in make_tables(cells):
        count = len(table.methods)
        groups = " & ".join(rf"\multicolumn{{4}}{{c}}{{{tex(method_label(m))}}}" for m in table.methods)
        rules = "".join(rf"\cmidrule(lr){{{4 * i + 3}-{4 * i + 6}}}" for i in range(count))
        body, last = [], None
        for base, num, _, shown in table.rows:
            if last not in (None, base):
                body.append(r"\midrule")
            name = tex(BASES.get(base, base)) if base != last else ""
            body.append(" & ".join([name, str(num), *(show(entry) for cell in shown for entry in cell)]) + r" \\")
            last = base
        caption = tex(f"{table.title}. {table.legend}").replace("±", r"$\pm$")
        parts.append(
            "\n".join(
                [
                    r"\begin{table}[t]",
                    r"\centering",
                    rf"\caption{{{caption}}}",
                    r"\resizebox{\linewidth}{!}{%",
                    rf"\begin{{tabular}}{{ll{'cccc' * count}}}",
                    r"\toprule",
                    rf" & & {groups} \\",
                    rules,
                    " & ".join([r"Base & \#Exp", *([*HEADINGS.values(), "$n$"] * count)]) + r" \\",
                    r"\midrule",
                    *body,
                    r"\bottomrule",
                    r"\end{tabular}}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def tex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    return "".join(special.get(char, char) for char in text)


def to_text(cells: pd.DataFrame) -> str:
    """For the terminal: a small table per metric, the losses side by side, what is achievable at the right."""
    parts = []
    for title, block in blocks(cells):
        seeds = int(block["seeds"].iloc[0])
        parts.append(f"{title}: mean ± standard deviation over {seeds} seeds" if seeds > 1 else f"{title}: one seed")
        losses = losses_of(block)
        for metric in METRICS:
            best = f"bayes_{metric}"
            has_best = best in block and block[best].notna().any()
            lines = [
                [metric.replace("_", " "), *(loss_label(*loss) for loss in losses), *(["best"] if has_best else [])]
            ]
            for num, row in block.groupby("num_experts"):
                at = {(cell.base, cell.method): cell for cell in row.itertuples(index=False)}
                lines.append([f"{num} experts" if num > 1 else "1 expert"])
                lines[-1] += [_marked(at[loss], metric) if loss in at else "" for loss in losses]
                if has_best:
                    lines[-1].append(f"{row[best].iloc[0]:.2f}")
            parts.append(_aligned(lines))
    return "\n\n".join(parts) + "\n"


def finding(cells: pd.DataFrame) -> str:
    """What the numbers say about adding experts, per block and base with both formulations at two counts or more."""
    said = []
    for title, block in blocks(cells[cells["n"] > 0]):
        for base, group in block.groupby("base", sort=False):
            error = group.pivot(index="num_experts", columns="method", values="system_error")
            if not {"vanilla", "picce"} <= set(error):
                continue
            both = error.dropna(subset=["vanilla", "picce"])
            if len(both) < 2:
                continue
            few, many, last = both.index[0], both.index[-1], both.iloc[-1]
            vanilla, picce = (_change(both[name].iloc[0], last[name]) for name in ("vanilla", "picce"))
            text = f"{title}, {BASES.get(base, base)}: from {few} to {many} experts vanilla's system error {vanilla}"
            text += f" and PiCCE's {picce}"
            text += f"; with {many}, PiCCE's is {_compared(last['picce'], last['vanilla'])} vanilla's"
            if "pice" in last and not pd.isna(last["pice"]):
                text += f" and PiCE's {_compared(last['pice'], last['picce'])} PiCCE's"
            used = group[group["num_experts"].isin([few, many]) & group["method"].isin(["vanilla", "picce", "pice"])]
            said.append(text + (" (some seeds are missing)." if (used["state"] == "partial").any() else "."))
    return "\n".join(said)


def _change(first: float, last: float) -> str:
    step = round(last - first, 2)
    return f"{'rose' if step > 0 else 'fell'} by {abs(step):.2f} to {last:.2f}" if step else f"stayed at {last:.2f}"


def _compared(one: float, other: float) -> str:
    gap = round(one - other, 2)
    return f"{abs(gap):.2f} {'above' if gap > 0 else 'below'}" if gap else "equal to"


def _marked(cell: Any, metric: str) -> str:
    return mean_std(cell, metric) + (f" ({cell.n} of {cell.seeds} seeds)" if cell.state == "partial" else "")


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )
