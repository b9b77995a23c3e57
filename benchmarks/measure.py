"""What the benchmarks share: ratios taken side by side in one run, a table with their spread, and JSON."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass
class Row:
    """One line of the table; its figure is the median of `values`."""

    name: str
    values: list[float]
    target: str = ""  # as in '>= 0.97'; empty: told, not judged
    note: str = ""  # what the ratio is made of
    unit: str = ""
    figure: float = field(init=False)
    met: bool | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.figure = statistics.median(self.values)
        if self.target:
            relation, limit = self.target.split()[:2]
            self.met = self.figure >= float(limit) if relation == ">=" else self.figure <= float(limit)


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def alternated(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> list[tuple[float, float]]:
    """Seconds of both, turn by turn, after one turn of each that is not counted."""
    return [(seconds(ours), seconds(theirs)) for _ in range(repeats + 1)][1:]


def number(value: float) -> str:
    """Three digits."""
    return f"{value:#.3g}".rstrip(".")


def python(code: str) -> Callable[[], object]:
    """A call that runs this code in a Python process of its own."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def main(measure: Callable[[int], Iterable[Row]], doc: str) -> None:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="also write the numbers to a file in this folder")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats} must be at least 1")
    if options.json:
        try:
            options.json.mkdir(parents=True, exist_ok=True)  # before the minutes that the rest takes
        except OSError as error:
            parser.error(f"--json {options.json} cannot be made a folder ({error.strerror})")
    rows: list[Row] = []
    for row in measure(options.repeats):
        # As it comes: the table is there only at the end.
        print(f"{number(row.figure):>6}{row.unit}  {row.name}", file=sys.stderr, flush=True)
        rows.append(row)

    table = Table("", "median", "lowest..highest", "target", "", "")
    for row in rows:
        unit, verdict = row.unit, {None: "", True: "met", False: "[bold red]missed[/]"}[row.met]
        spread = f"{number(min(row.values))}..{number(max(row.values))}"
        table.add_row(
            row.name, f"{number(row.figure)}{unit}", spread, row.target and row.target + unit, verdict, row.note
        )
    Console(width=160).print(table)
    if options.json:
        from importlib.metadata import version

        machine = {"cores": os.cpu_count(), "torch": version("torch"), "platform": platform.platform()}
        file = options.json / f"{Path(sys.argv[0]).stem}.json"
        file.write_text(json.dumps({"rows": [asdict(row) for row in rows], "machine": machine}, indent=2) + "\n")
