"""The report as one HTML file that needs no network: the template is page.html, figures travel inside as data URIs."""

import base64
import os
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import pandas as pd

import l2d
from l2d.report.load import METRICS
from l2d.report.render import HEADINGS, Entry, Table, finding, make_tables
from l2d.report.tables import BASES, blocks, method_label

CAPTIONS = {
    "system_error": "System error against the number of experts; bands are one standard deviation over seeds.",
    "coverage": "Coverage against the number of experts; bands are one standard deviation over seeds.",
    "classifier_accuracy": "Classifier accuracy on all samples; bands are one standard deviation over seeds.",
    "coverage_accuracy": "System accuracy against coverage, a point per cell.",
    "training_curves": "Training, mean over seeds.",
    "deferred_to": "Who is deferred to, mean over seeds.",
    "regret": "Excess over the best achievable error, in its three parts, mean over seeds.",
    "reliability": "Accuracy against the confidence that the scores imply, with the most experts; the diagonal is calibrated.",
    "budget_curve": "System accuracy at every coverage, with the most experts; crosses: thresholds from held-out data.",
    "posterior": "The most probable labels before experts join (grey) and after, mean over the test set.",
    "underfitting": "What flattens the labels, on one training batch, mean over seeds.",
}
WIDE = {"training_curves", "deferred_to", "underfitting", "regret", "reliability"}


def write_page(
    runs: pd.DataFrame, cells: pd.DataFrame, paired: pd.DataFrame, figures: dict[str, list[Path]], out: Path
) -> Path:
    runs_of, cells_of, paired_of = dict(blocks(runs)), dict(blocks(cells)), dict(blocks(paired))
    sections = [
        section(title, table, cells_of[title], runs_of[title], paired_of.get(title), figures[title], out)
        for title, table in zip(cells_of, make_tables(cells), strict=True)
    ]
    template = Template(files("l2d.report").joinpath("page.html").read_text(encoding="utf-8"))
    page = out / "index.html"
    text = template.substitute(
        datasets=options(runs["dataset"]),
        losses=options(runs["loss"]),
        sections="\n".join(sections),
        environments=environments(runs),
        version=escape(l2d.__version__),
        count=len(runs),
    )
    page.write_text(text, encoding="utf-8")
    return page


def section(
    title: str,
    table: Table,
    cells: pd.DataFrame,
    runs: pd.DataFrame,
    paired: pd.DataFrame | None,
    figures: list[Path],
    out: Path,
) -> str:
    lines = (line.removeprefix(f"{title}, ") for line in finding(cells).splitlines())
    said = "".join(f'<p class="lead">{escape(line)}</p>' for line in lines)
    shown = f'<h3>Figures</h3><div class="figures">{"".join(map(picture, figures))}</div>' if figures else ""
    compared = f"<h3>PiCCE minus vanilla over the same seeds</h3>{paired_table(paired)}" if paired is not None else ""
    return (
        f'<section data-dataset="{escape(runs["dataset"].iloc[0])}"><h2>{escape(table.title)}</h2>{said}'
        f'{results_table(table)}<p class="legend">{escape(table.legend)}</p>{compared}'
        f"{shown}<h3>Runs</h3>{runs_table(runs, out)}</section>"
    )


def results_table(table: Table) -> str:
    groups = "".join(
        f'<th class="group first" colspan="4" data-column="{i}">{escape(method_label(method))}</th>'
        for i, method in enumerate(table.methods)
    )
    heads = "".join(
        f'<th data-column="{i}"{first(j)}>{name}</th>'
        for i in range(len(table.methods))
        for j, name in enumerate((*HEADINGS.values(), "n"))
    )
    body, last = [], None
    for base, num, row, shown in table.rows:
        tds = "".join(
            f'<td data-column="{i}"{losses(cell)}{first(j)}>{entry(e)}</td>'
            for i, (cell, four) in enumerate(zip(row, shown, strict=True))
            for j, e in enumerate(four)
        )
        new = ' class="base"' if base != last else ""
        body.append(f'<tr{new}><td class="left">{escape(BASES.get(base, base))}</td><td>{num}</td>{tds}</tr>')
        last = base
    return (
        f'<div class="scroll"><table class="results"><thead><tr><th></th><th></th>{groups}</tr>'
        f'<tr><th class="left">Base</th><th>Experts</th>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<p class="legend" hidden>No runs with this loss here.</p>'
    )


def entry(shown: Entry) -> str:
    text = escape(shown.text)
    if text.isalpha() or text.endswith("seeds"):
        text = f'<span class="absent">{text}</span>'
    text = f"<b>{text}</b>" if shown.better else text
    return f"{text} <small>{escape(shown.published)}</small>" if shown.published else text


def paired_table(paired: pd.DataFrame) -> str:
    """The mean difference and its 95% interval, per base and count."""
    heads = "".join(f"<th>{HEADINGS[metric]}</th>" for metric in METRICS)
    body = []
    for (base, num), group in paired.groupby(["base", "num_experts"], sort=False):
        by_metric = {row.metric: row for row in group.itertuples(index=False)}
        tds = "".join(f"<td>{interval(by_metric[metric])}</td>" for metric in METRICS)
        start = (
            f'<tr data-losses="{escape(f"{base} picce_{base}")}"><td class="left">{escape(BASES.get(base, base))}</td>'
        )
        body.append(f"{start}<td>{num}</td>{tds}<td>{group['n'].iloc[0]}</td></tr>")
    return (
        '<div class="scroll"><table><thead><tr><th class="left">Base</th><th>Experts</th>'
        f"{heads}<th>n</th></tr></thead>"
        f'<tbody>{"".join(body)}</tbody></table></div><p class="legend">Mean difference and its 95% t interval. '
        "Below zero is in PiCCE's favour for Err, above zero for Cov and Acc.</p>"
    )


def interval(row: Any) -> str:
    between = f" <small>[{row.low:+.2f}, {row.high:+.2f}]</small>" if row.n > 1 else ""
    return f"{row.difference:+.2f}{between}"


def runs_table(runs: pd.DataFrame, out: Path) -> str:
    names = ("Loss", "Experts", "Seed", "Status", *HEADINGS.values(), "Epoch", "Seconds", "Run")
    heads = "".join(f"<th>{name}</th>" for name in names)
    body = []
    for run in runs.itertuples(index=False):
        numbers = (f"{getattr(run, metric):.2f}" if run.status == "finished" else "" for metric in METRICS)
        error = f"<br><small>{escape(run.error)}</small>" if isinstance(run.error, str) else ""
        status = f'<span class="{"" if run.status == "finished" else "absent"}">{escape(run.status)}</span>{error}'
        seconds = "" if pd.isna(run.seconds) else f"{run.seconds:.1f}"
        config = Path(run.folder, "config.yaml").read_text(errors="replace")
        link = f'<a href="{escape(address(run.folder, out))}">{escape(Path(run.folder).name)}</a>'
        details = f"<details><summary>config</summary><pre>{escape(config)}</pre></details>"
        epochs = "" if pd.isna(run.epochs) else f" / {run.epochs:.0f}"
        cells = "".join(f"<td>{text}</td>" for text in (*numbers, f"{run.epoch}{epochs}", seconds))
        body.append(
            f'<tr class="run" data-losses="{escape(run.loss)}"><td class="left">{escape(run.loss)}</td>'
            f'<td>{run.num_experts}</td><td>{run.seed}</td><td class="left">{status}</td>{cells}'
            f'<td class="left">{link}{details}</td></tr>'
        )
    return (
        f"<details><summary>{len(runs)} runs, their folders and configs</summary>"
        f'<div class="scroll"><table class="runs"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></details>"
    )


def address(folder: str, out: Path) -> str:
    """From the page to the run's folder, so that both can move together."""
    return quote(Path(os.path.relpath(folder, out.resolve())).as_posix()) + "/"


def picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    wide = ' class="wide"' if path.stem in WIDE else ""
    caption = escape(CAPTIONS[path.stem])
    image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure{wide}>{image}<figcaption>{caption}</figcaption></figure>"


def environments(runs: pd.DataFrame) -> str:
    known = runs[["device", "precision", "git_commit", "versions"]].fillna("").astype(str)
    counted = known[known["versions"] != ""].value_counts()
    return "".join(
        f"<tr><td>{count}</td>" + "".join(f'<td class="left">{escape(value)}</td>' for value in values) + "</tr>"
        for values, count in counted.items()
    )


def options(values: pd.Series) -> str:
    return "".join(f'<option value="{escape(v)}">{escape(v)}</option>' for v in sorted(set(values)))


def losses(cell: Any) -> str:
    return f' data-losses="{escape(cell.loss)}"' if cell else ""


def first(index: int) -> str:
    return ' class="first"' if index == 0 else ""
