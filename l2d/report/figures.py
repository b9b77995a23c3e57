"""Draws the figures of a report and saves them as PNG, PDF and SVG."""

import io
import re
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from l2d.atomic import atomic_write
from l2d.report.blocks import Block
from l2d.report.cell_figures import coverage_accuracy, deferred_to, one_metric, overview, ranking
from l2d.report.epoch_figures import epoch_figures
from l2d.report.full_figures import full_figures
from l2d.report.layout import rankings
from l2d.report.load import load_curves
from l2d.report.metrics import HEADLINE_SHOWN, ShownMetric
from l2d.report.style import METHOD_ID, STYLE

KINDS = ("png", "pdf", "svg")


def draw_figures(blocks: list[Block], out: Path) -> list[list[Path]]:
    """Draw `overview` and, in figures/, those of each block; return the PNGs of each block."""
    for old in (out / "figures").glob("[0-9]*-*/*"):  # of an earlier report
        if old.suffix.removeprefix(".") in KINDS:
            old.unlink()
    drawn = []
    with rc_context(STYLE):
        if finished := [block for block in blocks if block.finished]:
            save_figure(overview(finished), out / "overview")
        for i, block in enumerate(blocks, 1):
            folder = out / "figures" / f"{i}-{slug(block.title)}"
            drawn.append([save_figure(figure, folder / name) for name, figure in block_figures(block).items()])
    for folder in (out / "figures").glob("[0-9]*-*"):
        if not any(folder.iterdir()):
            folder.rmdir()
    return drawn


def block_figures(block: Block) -> dict[str, Figure]:
    """name -> figure, for everything that can be drawn from the runs of a block."""
    figures: dict[str, Figure] = {}
    if block.finished:
        figures = {figure_name(metric): one_metric(block, metric) for metric in block.metrics}
        if rankings(block):
            figures["ranking"] = ranking(block)
        figures["coverage_accuracy"] = coverage_accuracy(block)
        figures["deferred_to"] = deferred_to(block)
        figures |= full_figures(block.runs, block.methods)
    curves = load_curves(block.runs)
    return figures | (epoch_figures(curves, block.methods, block.metrics) if len(curves) else {})


def figure_name(metric: ShownMetric) -> str:
    """The file name of a metric's figure; that of a user's metric cannot collide with another figure."""
    return metric.name if metric in HEADLINE_SHOWN else f"own-{slug(metric.name)}"


def slug(title: str) -> str:
    """The title as part of a file's or folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, PDF and SVG; return the path of the PNG."""
    for kind in KINDS:
        _save(figure, path.with_suffix(f".{kind}"))
        figure.set_layout_engine("none")  # the layout is computed already; the others reuse it
    return path.with_suffix(".png")


def _save(figure: Figure, path: Path) -> None:
    """In an SVG what is drawn of one method is marked with data-loss="METHOD", since an id may not occur twice."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.removeprefix("."))
    content = drawn.getvalue()
    if path.suffix == ".svg":
        content = content.replace(f'<g id="{METHOD_ID}'.encode(), b'<g data-loss="')
    atomic_write(path, lambda file: file.write(content), durable=False, make_parents=True)
