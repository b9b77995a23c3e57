"""l2d report: the tables and findings on the terminal, and everything else in a folder."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from l2d.atomic import atomic_write
from l2d.errors import Arguments, UserError, errors_as_sentences, show, visible
from l2d.report.blocks import make_blocks
from l2d.report.findings import findings
from l2d.report.load import load_runs
from l2d.report.render import (
    deploy_to_markdown,
    deploy_to_text,
    ranking_to_latex,
    ranking_to_markdown,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)
from l2d.report.tables import name_repeated

if TYPE_CHECKING:
    from l2d.report.deploy import Deployed

FRAMES = {"tables": "cells", "reference": "reference", "paired": "paired", "ranking": "ranking"}  # file -> of a Block


def main(arguments: list[str] | None = None) -> None:
    """l2d report; without `arguments` those of the command line."""
    parser = Arguments("l2d report", description="Tables, figures and a page from finished runs.")
    parser.add_argument("folders", nargs="+", metavar="DIR", help="what l2d train wrote to; searched for runs")
    parser.add_argument("--out", type=Path, default=Path("report"), help="where the report goes (default: report)")
    parser.add_argument(
        "--baseline",
        metavar="METHOD",
        help="what all others are compared with, by its name (default: each with the plain vanilla loss of its base)",
    )
    parser.add_argument(
        "--deploy",
        nargs="+",
        metavar="KEY=VALUE",
        help="what should I deploy? All finished systems under one rule and costs: rule=budget rule.defer_at_most=20 experts.costs=0.05",
    )
    parser.add_argument(
        "--samples",
        nargs="*",
        metavar="KEY=VALUE",
        help="what did it do? A page for each run: confusions, who is asked about what, beliefs and, of images, a gallery; under another "
        "rule with rule=... and experts.costs=..., with images that were moved by dataset.root=...",
    )
    given = parser.parse_args(arguments)
    with errors_as_sentences():
        write_report(given.folders, given.out, given.baseline, given.deploy, given.samples)


def write_report(
    folders: list[str],
    out: Path,
    baseline: str | None = None,
    changes: list[str] | None = None,
    samples: list[str] | None = None,
) -> None:
    """Print the tables and findings of the runs below the folders, and write the report to `out`; with `changes` also how all
    finished systems do under that rule and these costs, with `samples` a page on what each run did, under these changes."""
    runs = load_runs(*folders)
    name_repeated(runs)
    deployed = decide_again(runs, changes) if changes else None
    blocks = make_blocks(runs, baseline)
    pages = show_samples(runs, samples, out) if samples is not None else {}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={out} cannot be made a folder ({error.strerror}); choose another.") from error
    _write_frame(runs, out / "runs")
    for name, attribute in FRAMES.items():
        _write(out / f"{name}.csv", to_csv(pd.concat([getattr(block, attribute) for block in blocks])))
    _write(out / "tables.md", to_markdown(blocks))
    _write(out / "tables.tex", to_latex(blocks))
    _write(out / "ranking.md", ranking_to_markdown(blocks))
    _write(out / "ranking.tex", ranking_to_latex(blocks))
    show(to_text(blocks))
    for block in blocks:
        for sentence in findings(block):
            show(f"{block.title}: {sentence}")
    if deployed is not None:
        _write(out / "deploy.csv", to_csv(deployed.ranking))
        _write(out / "deploy_asked.csv", to_csv(deployed.asked))
        _write(out / "deploy.md", deploy_to_markdown(deployed))
        show(deploy_to_text(deployed))
    from l2d.report.figures import draw_figures  # matplotlib loads slowly: after the tables are on the terminal
    from l2d.report.page import write_page

    page = write_page(blocks, draw_figures(blocks, out), out, deployed, pages)
    show(f"\nPage: {page}")


def decide_again(runs: pd.DataFrame, changes: list[str]) -> "Deployed":
    """The systems of a report under other rules and costs; this imports torch."""
    from l2d.identity import register_resolvers
    from l2d.report.deploy import deploy

    register_resolvers()
    return deploy(runs, changes)


def show_samples(runs: pd.DataFrame, changes: list[str], out: Path) -> dict[str, Path]:
    """The pages on what runs did, by the folders of the runs; this imports torch."""
    from l2d.identity import register_resolvers
    from l2d.report.samples import write_sample_pages

    register_resolvers()
    return write_sample_pages(runs, changes, out)


def _write_frame(frame: pd.DataFrame, path: Path) -> None:
    frame = frame.assign(folder=frame["folder"].map(visible))
    _write(path.with_suffix(".csv"), to_csv(frame))
    if find_spec("pyarrow"):
        content = frame.to_parquet(index=False)
        atomic_write(path.with_suffix(".parquet"), lambda file: file.write(content), durable=False)


def _write(path: Path, text: str) -> None:
    atomic_write(path, lambda file: file.write(text.encode()), durable=False)
