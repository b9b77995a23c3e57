"""l2d status: how far the sweeps and runs below a folder are, read from their files alone, at any time."""

import argparse
import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

from l2d.errors import UserError, errors_as_sentences, show
from l2d.tracking.run_folder import HEADLINE, MANIFESTS, headline, in_use, read_result

SIGNS = {"finished": "#", "running": ">", "interrupted": "!", "failed": "x", "missing": "."}


def main(arguments: list[str] | None = None) -> None:
    """l2d status DIR ..."""
    parser = argparse.ArgumentParser("l2d status", description="Show how far the sweeps and runs below a folder are.")
    parser.add_argument("folders", nargs="*", default=["outputs"], help="folders that runs wrote to (default: outputs)")
    with errors_as_sentences():
        for folder in parser.parse_args(arguments).folders:
            show(describe(Path(folder)))


def describe(root: Path) -> str:
    """Every sweep as a grid of loss x number of experts with a sign per seed; then the runs that are running, interrupted or failed."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder that runs wrote to, such as outputs.")
    manifests = [json.loads(path.read_text()) for path in sorted(root.glob(f"**/{MANIFESTS}/*.json"))]
    sweeps = [(f"sweep {' '.join(m['command'])}", m["cells"]) for m in sorted(manifests, key=lambda m: m["started"])]
    planned = {Path(cell["folder"]) for _, cells in sweeps for cell in cells}
    single = [
        path.parent.absolute() for path in sorted(root.glob("**/result.json")) if path.parent.absolute() not in planned
    ]
    alone = [{"folder": str(f), "choices": (read_result(f) or {}).get("choices")} for f in single]
    sweeps += [("single runs", [cell for cell in alone if cell["choices"]])] if alone else []
    if not sweeps:
        raise UserError(f"{root} holds no runs; give the folder that runs wrote to, such as outputs.")
    return "\n\n".join(_sweep(title, cells) for title, cells in sweeps)


def state(folder: Path) -> tuple[str, str]:
    """The state of a run (finished, running, interrupted, failed or missing), and a detail."""
    result = read_result(folder)
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
    lines = [title, "  " + ", ".join(f"{counts[name]} {name} {sign}" for name, sign in SIGNS.items() if counts[name])]
    grid: dict[str, dict[Any, str]] = {}
    for cell, name, _ in states:
        chosen = cell["choices"]
        row = grid.setdefault("  ".join(str(chosen[key]) for key in ("dataset", "experts", "backbone", "loss")), {})
        num = chosen["num_experts"] or "all"  # null: as many as the dataset has annotators
        row[num] = row.get(num, "") + SIGNS[name]
    columns = sorted({column for row in grid.values() for column in row}, key=lambda c: (isinstance(c, str), c))
    left = max(map(len, grid))
    width = max(len(text) for row in grid.values() for text in (*row.values(), *(f"J={c}" for c in columns))) + 2
    lines.append("  " + " " * left + "".join(f"J={column}".rjust(width) for column in columns))
    lines += [
        "  " + key.ljust(left) + "".join(row.get(c, "").rjust(width) for c in columns) for key, row in grid.items()
    ]
    lines += [
        f"  {name}: {Path(cell['folder']).name}  {detail}"
        for cell, name, detail in states
        if name not in ("finished", "missing")
    ]
    return "\n".join(lines)


def _last_epoch(folder: Path) -> str:
    try:
        with open(folder / "metrics.csv") as file:
            row = list(csv.DictReader(file))[-1]
    except (OSError, IndexError):
        return "in its first epoch"
    shown = [f"{key} {float(row[key]):.2f}" for key in ("loss", *HEADLINE) if row.get(key)]
    return "  ".join([f"epoch {row['epoch']}", *shown])


if __name__ == "__main__":
    main()
