"""What trackers show of a run: its numbers, and the tables of its result."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from l2d.identity import choices, method_parts
from l2d.tracking.read import epoch_lines


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[Any]]


def described(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """The main choices of a run, its `method` (loss and system), and the `cell` that it shares with other seeds."""
    chosen = choices(config)
    cell = f"{chosen['dataset']}/{name.partition('-seed')[0]}"
    return {**chosen, "method": " ".join(method_parts(chosen)), "cell": cell}


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row, without lists, texts and what is undefined."""
    return {key: value for key, value in row.items() if isinstance(value, int | float)}


def logged_epochs(folder: Path) -> list[dict[str, float]]:
    """The numbers in the rows of metrics.csv, including those of attempts before a restart; none where there is no file."""
    try:
        rows = csv.DictReader(epoch_lines(folder))
    except FileNotFoundError:
        return []
    return [{key: float(value) for key, value in row.items() if value and key != "stage"} for row in rows]


def best_epoch(folder: Path) -> dict[str, float]:
    """The lowest system error of all epochs. For display: nothing is selected by it."""
    best = min((row for row in logged_epochs(folder) if "system_error" in row), key=lambda row: row["system_error"])
    return {"best/system_error": best["system_error"], "best/epoch": int(best["epoch"])}


def deferral(result: dict[str, Any]) -> Table:
    """A row per expert: its accuracies, and how often it is asked, in percent of the test set."""
    columns = ["expert", "train_accuracy", "test_accuracy", "deferred_to"]
    asked = zip(result["experts"], result["metrics"]["deferred_to"], strict=True)
    return Table(columns, [[e["name"], e["train_accuracy"], e["test_accuracy"], percent] for e, percent in asked])


def reliability(result: dict[str, Any]) -> dict[str, tuple[Table, float | None]]:
    """Of the classifier and of the chosen expert: accuracy against confidence in bins, and the ECE; needs evaluation=full."""
    columns, found = ["confidence", "accuracy", "count"], {}
    for who, bins in ((result.get("evaluation") or {}).get("calibration") or {}).items():
        rows = [list(row) for row in zip(*(bins[column] for column in columns), strict=True) if row[2]]
        found[who] = Table(columns, rows), bins["ece"]
    return found


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0]
