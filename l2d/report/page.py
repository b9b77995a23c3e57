"""The report as one HTML file that needs no network: the template is page.html, figures are part of it."""

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

import l2d
from l2d.atomic import atomic_write
from l2d.errors import visible
from l2d.report.blocks import Block
from l2d.report.figures import figure_name
from l2d.report.findings import findings
from l2d.report.layout import count_of, rankings, reference_shown, results_tables
from l2d.report.methods import label
from l2d.report.style import crowded
from l2d.report.templates import inline, render
from l2d.tracking.read import config_text

if TYPE_CHECKING:
    from l2d.report.deploy import Deployed

CAPTIONS = {
    "ranking": "The methods in the order of their average system error; bars are one standard deviation over seeds.",
    "coverage_accuracy": "System accuracy against coverage, a point per cell.",
    "training_curves": "Training, mean over seeds.",
    "deferred_to": "Who is deferred to, mean over seeds.",
    "regret": "Excess over the best achievable error, in its three parts, mean over seeds.",
    "reliability": "Accuracy against the confidence that the scores imply, with the most experts; the diagonal is calibrated.",
    "budget_curve": "System accuracy at every coverage, with the most experts; crosses: budgets, with prices from held-out data; grey: the highest possible, where it is known.",
    "questions": "With the most experts: error against the questions asked, largest gains first, against what they cost (where they cost anything; grey: the best possible, where it is known), and with fewer experts present, mean over the orders in which they come.",
    "posterior": "The most probable labels before experts join (grey) and after, mean over the test set.",
    "underfitting": "What flattens the labels, on one training batch, mean over seeds.",
}
MAX_SVG = 300_000  # bytes; a larger drawing is embedded as PNG, whose size does not grow with the number of points
WIDE = {"questions", "training_curves", "deferred_to", "underfitting", "regret", "reliability", "ranking"}


def write_page(
    blocks: list[Block],
    figures: list[list[Path]],
    out: Path,
    deployed: "Deployed | None" = None,
    samples: dict[str, Path] | None = None,
) -> Path:
    """Write index.html with the PNGs `figures` of each block and, where that was asked for, what to deploy and links to the pages on
    what each run did (folder -> page); return its path."""
    runs = pd.concat([block.runs for block in blocks])
    page = out / "index.html"
    text = render(
        "page.html",
        sections=[_section(block, paths, out, samples or {}) for block, paths in zip(blocks, figures, strict=True)],
        datasets=sorted(set(runs["dataset"])),
        methods=sorted(set(runs["method"])),
        environments=_environments(runs),
        deployed=deployed,
        version=l2d.__version__,
        count=len(runs),
    )
    atomic_write(page, lambda file: file.write(text.encode()), durable=False)
    return page


def _section(block: Block, figures: list[Path], out: Path, samples: dict[str, Path]) -> dict[str, Any]:
    bands = "" if crowded(block.methods) else "; bands are one standard deviation over seeds"
    captions = {figure_name(m): f"{m.label} against the number of experts{bands}." for m in block.metrics}
    return {
        "dataset": block.runs["dataset"].iloc[0],
        "findings": [sentence[0].upper() + sentence[1:] for sentence in findings(block)],
        "tables": results_tables(block),
        "reference": reference_shown(block),
        "rankings": rankings(block),
        "paired": _paired(block),
        "figures": [_figure(path, {**CAPTIONS, **captions}) for path in figures],
        "samples": [
            {
                "method": run["method"],
                "name": f"{label(run['method'])}, {count_of(run['num_experts'])}, seed {run['seed']}",
                "address": quote(samples[run["folder"]].relative_to(out).as_posix()),
            }
            for run in block.runs.to_dict("records")
            if run["folder"] in samples
        ],
        "headings": [metric.heading for metric in block.metrics],
        "runs": [_run(run, block, out) for run in block.runs.to_dict("records")],
    }


def _paired(block: Block) -> dict[str, Any]:
    """The differences from the baseline, a row per method and number of experts."""
    rows = []
    for (method, baseline, num), group in block.paired.groupby(["method", "baseline", "num_experts"], sort=False):
        by_metric = {row.metric: row for row in group.itertuples(index=False)}
        rows.append(
            {
                "method": method,
                "label": label(method),
                "baseline": baseline,
                "baseline_label": label(baseline),
                "num_experts": num,
                "differences": [_difference(by_metric.get(metric.name)) for metric in block.metrics],
                "n": group["n"].max(),
            }
        )
    favour = [
        f"{'below' if metric.better == 'lower' else 'above'} zero for {metric.heading}" for metric in block.metrics
    ]
    legend = f"In favour of the method in the first column: {', '.join(favour)}."
    return {"rows": rows, "headings": [metric.heading for metric in block.metrics], "legend": legend}


def _difference(row: Any) -> tuple[str, str]:
    """The mean difference and its interval; one seed has no interval."""
    if row is None:
        return "", ""
    return f"{row.difference:+.2f}", f"[{row.low:+.2f}, {row.high:+.2f}]" if row.n > 1 else ""


def _figure(path: Path, captions: dict[str, str]) -> dict[str, Any]:
    """A figure for the page, from its PNG and the SVG beside it: as SVG, which can be filtered by method, unless that is too large."""
    svg = path.with_suffix(".svg")
    small = svg.is_file() and svg.stat().st_size <= MAX_SVG
    return {
        "svg": inline(svg.read_text(encoding="utf-8")) if small else None,
        "png": None if small else base64.b64encode(path.read_bytes()).decode(),
        "caption": captions[path.stem],
        "wide": path.stem in WIDE,
    }


def _run(run: dict[str, Any], block: Block, out: Path) -> dict[str, Any]:
    metrics = [_number(run[metric.name]) for metric in block.metrics]
    epochs = f"{run['epoch']} / {run['epochs']:.0f}" if pd.notna(run["epochs"]) else str(run["epoch"])
    folder = Path(run["folder"])
    return {
        **{key: run[key] for key in ("method", "num_experts", "seed", "status")},
        "error": run["error"] if isinstance(run["error"], str) else "",
        "numbers": [*metrics, epochs, _number(run["seconds"], 1)],
        "name": visible(folder.name),
        # relative, so that the page and the runs can move together
        "address": quote(os.fsencode(Path(os.path.relpath(folder, out.resolve())).as_posix())) + "/",
        "config": "\n".join(map(visible, config_text(folder).splitlines())),
    }


def _number(value: float, decimals: int = 2) -> str:
    return "" if pd.isna(value) else f"{value:.{decimals}f}"


def _environments(runs: pd.DataFrame) -> list[tuple[tuple[str, ...], int]]:
    known = runs[["device", "precision", "git_commit", "versions"]].fillna("").astype(str)
    return list(known[known["versions"] != ""].value_counts().items())
