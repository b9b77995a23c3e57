"""l2d report: the tables and the finding on the terminal, and everything else in a folder."""

import argparse
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from l2d.errors import UserError, errors_as_sentences, show
from l2d.report.load import load_runs
from l2d.report.page import write_page
from l2d.report.render import finding, to_latex, to_markdown, to_text
from l2d.report.statistics import paired_differences
from l2d.report.tables import repeated, summarize


def main(arguments: list[str] | None = None) -> None:
    """l2d report DIR ..."""
    parser = argparse.ArgumentParser("l2d report", description="Tables, figures and a page from finished runs.")
    parser.add_argument("folders", nargs="+", metavar="DIR", help="what l2d train wrote to; searched for runs")
    parser.add_argument("--out", type=Path, default=Path("report"), help="where the report goes (default: report)")
    options = parser.parse_args(arguments)
    with errors_as_sentences():
        write_report(options.folders, options.out)


def write_report(folders: list[str], out: Path) -> None:
    runs = load_runs(*folders)
    repeated(runs)
    cells, paired = summarize(runs), paired_differences(runs)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made a folder ({error.strerror}); choose another --out.") from error
    write_frame(runs, out / "runs")
    cells.to_csv(out / "tables.csv", index=False)
    paired.to_csv(out / "paired.csv", index=False)
    (out / "tables.md").write_text(to_markdown(cells))
    (out / "tables.tex").write_text(to_latex(cells))
    show(to_text(cells))
    show(finding(cells))
    from l2d.report.figures import draw_figures  # matplotlib loads slowly: after the tables are on the terminal

    page = write_page(runs, cells, paired, draw_figures(runs, cells, out), out)
    show(f"\nPage: {page}")


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path.with_suffix(".csv"), index=False)
    if find_spec("pyarrow"):
        frame.to_parquet(path.with_suffix(".parquet"), index=False)
