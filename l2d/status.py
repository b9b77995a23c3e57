"""l2d status: how far the sweeps and runs below a folder are, read from their files alone, at any time."""

import csv
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from l2d.errors import Arguments, UserError, errors_as_sentences, notices_once, notify, show, visible
from l2d.identity import method_parts
from l2d.tracking.read import HEADLINE, checked_manifest, checked_result, epoch_lines, read_result
from l2d.tracking.run_folder import MANIFESTS, headline, in_use

SIGNS = {"finished": "#", "running": ">", "interrupted": "!", "failed": "x", "damaged": "?", "missing": "."}
INTERVAL_S = 3  # of --watch


def main(arguments: list[str] | None = None) -> None:
    """l2d status DIR ..."""
    parser = Arguments("l2d status", description="Show how far the sweeps and runs below a folder are.")
    parser.add_argument("folders", nargs="*", default=["outputs"], help="folders that runs wrote to (default: outputs)")
    parser.add_argument(
        "--watch", action="store_true", help=f"on a terminal: update in place every {INTERVAL_S} seconds, until Ctrl-C"
    )
    given = parser.parse_args(arguments)
    folders = [Path(folder) for folder in given.folders]
    with errors_as_sentences():
        if not given.watch or not watch(folders):
            for folder in folders:
                show(describe(folder))


def watch(folders: list[Path]) -> bool:
    """Show the folders again and again in the same place of the terminal, until Ctrl-C; what was shown last stays there.
    False, and nothing is shown, where standard output is no terminal that can do this."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    terminal = Console()
    if not terminal.is_terminal or terminal.is_dumb_terminal:
        return False

    def shown() -> Text:
        now = f"At {datetime.now():%H:%M:%S}, again every {INTERVAL_S} s; Ctrl-C ends this."
        return Text("\n\n".join([*map(describe, folders), now]), no_wrap=True, overflow="ellipsis")

    with notices_once(), suppress(KeyboardInterrupt), Live(shown(), console=terminal, auto_refresh=False) as live:
        while True:
            time.sleep(INTERVAL_S)
            live.update(shown(), refresh=True)
    return True


def describe(root: Path) -> str:
    """Every sweep as a grid of loss x number of experts with a sign per seed; then the runs that are running, interrupted or failed."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder that runs wrote to, such as outputs.")
    manifests = list(filter(None, map(_manifest, sorted(root.glob(f"**/{MANIFESTS}/*.json")))))
    sweeps = [(f"sweep {' '.join(m['command'])}", m["cells"]) for m in sorted(manifests, key=lambda m: m["started"])]
    planned = {Path(cell["folder"]) for _, cells in sweeps for cell in cells}
    single = [
        path.parent.absolute() for path in sorted(root.glob("**/result.json")) if path.parent.absolute() not in planned
    ]
    alone = [{"folder": str(f), "choices": (read_result(f) or {}).get("choices")} for f in single]
    sweeps += [("single runs", alone)] if alone else []
    if not sweeps:
        raise UserError(f"{root} holds no runs; start one with `l2d train`, or give the folder that runs wrote to.")
    return "\n\n".join(_sweep(title, cells) for title, cells in sweeps)


def _manifest(path: Path) -> dict[str, Any] | None:
    """The cells of a sweep; None, with a notice, where they cannot be read."""
    try:
        return checked_manifest(path)
    except UserError as error:
        notify(f"{error} Its runs are shown as single ones.")
        return None


def state(folder: Path) -> tuple[str, str]:
    """The state of a run (finished, running, interrupted, failed, damaged or missing), and a detail."""
    try:
        result = checked_result(folder)
    except UserError as error:
        return "damaged", str(error)
    if result is None:
        return "missing", ""
    status = result.get("status")
    if status == "finished":
        return "finished", headline(result["metrics"])
    if status == "failed":
        return "failed", str(result.get("error"))
    return ("running" if in_use(folder) else "interrupted"), _last_epoch(folder)


def _sweep(title: str, cells: list[dict[str, Any]]) -> str:
    states = [(cell, *state(Path(cell["folder"]))) for cell in cells]
    counts = Counter(name for _, name, _ in states)
    total = ", ".join(f"{counts[name]} {name} {sign}" for name, sign in SIGNS.items() if counts[name])
    lines = [
        visible(title),
        f"  {total}",
        *_grid([(cell["choices"], name) for cell, name, _ in states if cell.get("choices")]),
    ]
    lines += [
        visible(f"  {name}: {Path(cell['folder']).name}  {detail}")
        for cell, name, detail in states
        if name not in ("finished", "missing")
    ]
    return "\n".join(lines)


def _grid(runs: list[tuple[dict[str, Any], str]]) -> list[str]:
    """The lines of the table of loss x number of experts, from the choices and the state of every run."""
    grid: dict[str, dict[Any, str]] = {}
    for chosen, name in runs:
        parts = [str(chosen.get(key)) for key in ("dataset", "experts", "backbone")]
        key = visible("  ".join([*parts, " ".join(method_parts(chosen))]))
        row, num = grid.setdefault(key, {}), chosen.get("num_experts") or "all"  # null: as many as there are annotators
        row[num] = row.get(num, "") + SIGNS[name]
    columns = sorted({column for row in grid.values() for column in row}, key=lambda c: (isinstance(c, str), c))
    cells = [text for row in grid.values() for text in row.values()]
    left, width = max(map(len, grid), default=0), max(map(len, [*cells, *(f"J={c}" for c in columns)]), default=0) + 2
    lines = [
        f"  {key.ljust(left)}" + "".join(row.get(c, "").rjust(width) for c in columns) for key, row in grid.items()
    ]
    return ["  " + " " * left + "".join(f"J={column}".rjust(width) for column in columns), *lines] if lines else []


def _last_epoch(folder: Path) -> str:
    try:
        row = list(csv.DictReader(epoch_lines(folder)))[-1]
        shown = [f"{key} {float(row[key]):.2f}" for key in ("loss", *HEADLINE) if row.get(key)]
        return "  ".join([f"epoch {int(row['epoch'])}", *shown])
    except (OSError, ValueError, LookupError, TypeError, csv.Error):  # no file yet, a damaged one
        return "in its first epoch"


if __name__ == "__main__":
    main()
