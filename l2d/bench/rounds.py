"""The two rounds of a benchmark: trials that choose each method's settings on held-out data, then the runs that are reported."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from hydra.types import HydraContext
from omegaconf import DictConfig

from l2d.atomic import atomic_write, read_text
from l2d.bench.protocol import Entry, Protocol, Trial
from l2d.errors import UserError, show
from l2d.sweep import failure_of, plan_cells, run_cells, show_plan, to_run
from l2d.tracking.read import checked_result

RECORD = "bench.json"  # below the output folder: the protocol and, once they are finished, its runs


class Ran(NamedTuple):
    """A run of the benchmark, and what became of it."""

    entry: Entry
    folder: Path
    result: dict[str, Any] | None  # of a finished run
    error: str | None
    refused: bool = False  # the task or the method does not allow it; False: it failed


class Rounds:
    """Runs a protocol by the launcher of a sweep; finished runs are found again."""

    def __init__(self, launcher: Any, context: HydraContext, config: DictConfig, protocol: Protocol):
        self.launcher, self.context, self.config, self.protocol = launcher, context, config, protocol

    def run(self, words: list[str]) -> list[Ran]:
        """Both rounds; return the reported runs, and one that failed for each method that a task does not allow."""
        trials = self.protocol.trials(words)
        if self.config.plan:
            self._plan(trials)
            return []
        show(f"Round 1 of 2: {len(trials)} trials choose the settings of every method on held-out data.")
        tried = self._run(trials)
        chosen = choose(tried)
        reported = self.protocol.reported(chosen, words)
        show(f"Round 2 of 2: {len(reported)} runs with the chosen settings, on other seeds.")
        ran = self._run(reported)
        return [*ran, *never_ran(tried, chosen)]

    def _plan(self, trials: list[Entry]) -> None:
        show_plan(self._cells(trials))
        choosing, reported = self.protocol.num_runs()
        show(f"These {choosing} trials choose the settings of {reported} further runs, which are reported.")

    def _cells(self, entries: list[Entry]) -> list[Any]:
        cells = plan_cells(self.context.config_loader, self.config, [entry.overrides for entry in entries])
        if len(cells) < len(entries):
            raise UserError("Two methods or tasks of this benchmark are the same setting; leave one of them out.")
        return cells

    def _run(self, entries: list[Entry]) -> list[Ran]:
        cells = self._cells(entries)
        returns = run_cells(self.launcher, self.context, cells)
        failures = {}
        for cell, returned in zip(to_run(cells), returns, strict=True):
            outcome = returned._return_value
            if isinstance(outcome, BaseException) or "error" in outcome:
                failures[cell.folder] = failure_of(outcome)
        return [self._ran(entry, cell.folder, failures) for entry, cell in zip(entries, cells, strict=True)]

    def _ran(self, entry: Entry, folder: Path, failures: dict[Path, dict[str, Any]]) -> Ran:
        if folder in failures:
            return Ran(entry, folder, None, failures[folder]["error"], failures[folder]["by_user"])
        result = checked_result(folder)
        if result is None or result.get("status") != "finished":
            return Ran(entry, folder, None, "not finished")
        return Ran(entry, folder, result, None)


def choose(tried: Sequence[Ran]) -> dict[tuple[str, str], Trial]:
    """(task, method) -> the trial with the least cost on held-out data, mean over its seeds; of equal ones the first.

    A trial with a run that failed is not chosen.
    """
    costs: dict[tuple[str, str], dict[str, list[float | None]]] = {}
    trials: dict[str, Trial] = {}
    for ran in tried:
        key = json.dumps(ran.entry.trial)
        trials[key] = ran.entry.trial
        by_trial = costs.setdefault((ran.entry.task, ran.entry.method), {})
        by_trial.setdefault(key, []).append(held_out_cost(ran.result))
    chosen = {}
    for pair, by_trial in costs.items():
        means = {
            key: fmean(c for c in values if c is not None) for key, values in by_trial.items() if None not in values
        }
        if means:
            chosen[pair] = trials[min(means, key=lambda key: means[key])]
    return chosen


def held_out_cost(result: dict[str, Any] | None) -> float | None:
    """Error on held-out data, with what was spent on questions where that has a price."""
    if result is None:
        return None
    metrics = result["held_out"]
    cost: float | None = metrics.get("system_cost")
    return float(metrics["system_error"]) if cost is None else cost


def never_ran(tried: Sequence[Ran], chosen: dict[tuple[str, str], Trial]) -> list[Ran]:
    """The first trial of every task and method of which none could be finished."""
    first: dict[tuple[str, str], Ran] = {}
    for ran in tried:
        if (ran.entry.task, ran.entry.method) not in chosen:
            first.setdefault((ran.entry.task, ran.entry.method), ran)
    return list(first.values())


def row(ran: Ran, root: Path) -> dict[str, Any]:
    """What a run contributes to the tables, ready for JSON; its folder is relative to `root`."""
    task, method, trial, seed, _ = ran.entry
    result = ran.result or {}
    metrics, bayes = result.get("metrics") or {}, result.get("bayes") or {}
    regret = (result.get("evaluation") or {}).get("regret") or {}
    return {
        "task": task,
        "method": method,
        "seed": seed,
        **trial,
        "num_experts": len(result.get("experts") or []) or None,
        **{f"regret_{part}": regret.get(part) for part in ("total", "classifier", "decision", "expert")},
        **{name: metrics.get(name) for name in ("system_error", "system_cost", "coverage", "classifier_accuracy")},
        "best_achievable": bayes.get("system_cost") or bayes.get("system_error"),
        "seconds": result.get("seconds"),
        "error": ran.error,
        "refused": ran.refused,
        "folder": str(ran.folder.relative_to(root)) if ran.folder.is_relative_to(root) else str(ran.folder),
    }


def read_record(path: Path) -> tuple[Protocol, list[dict[str, Any]] | None]:
    """The protocol and the rows of the runs; None where the benchmark did not come to its end."""
    content = json.loads(read_text(path))
    return Protocol.read(content["protocol"]), content["runs"]


def write_record(path: Path, protocol: Protocol, ran: Sequence[Ran] | None = None) -> None:
    """bench.json: the protocol, and the rows of the runs once there are any."""
    rows = None if ran is None else [row(one, path.parent.absolute()) for one in ran]
    content = {"protocol": json.loads(protocol.write()), "runs": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda file: file.write(json.dumps(content, indent=1).encode()))
