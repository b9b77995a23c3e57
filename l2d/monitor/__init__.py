"""l2d monitor: what to watch when a system is used, from its decisions and the answers that came back."""

import io
import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from l2d.atomic import atomic_write
from l2d.errors import Arguments, UserError, errors_as_sentences, show

if TYPE_CHECKING:
    from l2d.monitor.measure import Measured

DESCRIPTION = """\
What to watch in production, from what `l2d predict` wrote and the answers that came back.

  l2d monitor decisions.csv answers.csv
  l2d monitor decisions.csv answers.csv --out watch.csv --out watch.png --alert gap=3 load=40

Printed are, over parts of equal size in the order of the decisions: how much each expert is asked and which answers are missing;
where the truth is known, believed against realised accuracy; and whether the first and the last part differ. answers.csv has
the columns id and answer, label where the truth is known, and expert where several are asked about one case."""
KINDS = (".csv", ".png")


def main(arguments: list[str] | None = None) -> None:
    """l2d monitor DECISIONS ANSWERS"""
    parser = Arguments("l2d monitor", description=DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "decisions", type=Path, metavar="DECISIONS", help="what l2d predict wrote: .csv, .jsonl or .parquet"
    )
    parser.add_argument(
        "answers", type=Path, metavar="ANSWERS", help="a table with the columns id, answer, label, expert"
    )
    parser.add_argument(
        "--parts", type=int, default=4, metavar="N", help="into how many parts time is cut (default: 4)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="write it to a .csv or .png, too; may be repeated",
    )
    parser.add_argument(
        "--alert",
        nargs="*",
        metavar="NAME=NUMBER",
        help="exit code 1 if something is outside of gap, p, missing or load; see docs/use.md",
    )
    given = parser.parse_args(arguments)
    with errors_as_sentences():
        if given.parts < 2:
            raise UserError(f"--parts {given.parts} must be at least 2: the first is compared with the last.")
        for out in given.out:
            if out.suffix.lower() not in KINDS:
                raise UserError(f"--out {out} must end in {' or '.join(KINDS)}.")
            if not out.absolute().parent.is_dir():
                raise UserError(f"--out {out} cannot be written: {out.parent} is not a folder.")
        said = monitor(given.decisions, given.answers, given.parts, given.out, given.alert)
    if said:
        sys.exit(1)


def monitor(decisions: Path, answers: Path, parts: int, outs: list[Path], alert: list[str] | None) -> list[str]:
    """Print what is watched and write it to the files; the alerts, if there are to be any."""
    from l2d.monitor.alert import alerts, thresholds
    from l2d.monitor.measure import measure
    from l2d.monitor.read import read_log
    from l2d.monitor.tables import to_frame, to_text
    from l2d.report.render import to_csv

    limits = None if alert is None else thresholds(alert)
    log = read_log(decisions, answers, parts)
    measured = measure(log)
    said = [] if limits is None else alerts(measured, limits)
    contents: list[bytes] = []  # all of them before the first is written
    for out in outs:
        contents.append(to_csv(to_frame(measured)).encode() if out.suffix.lower() == ".csv" else _drawn(measured))
    for out, content in zip(outs, contents, strict=True):
        _write(out, content)
    show(to_text(log, measured))
    if limits is not None:
        show("\n" + "\n".join([f"Alert: {sentence}" for sentence in said] or ["Nothing is outside its limits."]))
    return said


def _drawn(measured: "Measured") -> bytes:
    from l2d.monitor.figure import draw

    file = io.BytesIO()
    draw(measured).savefig(file, format="png", dpi=160)
    return file.getvalue()


def _write(out: Path, content: bytes) -> None:
    atomic_write(out, lambda file: file.write(content), hint="nothing was written to it")
