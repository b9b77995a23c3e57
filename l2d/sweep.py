"""A sweep: the cells of one grid or of several, what is done with each, and a summary of the results."""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.types import HydraContext
from omegaconf import DictConfig

from l2d.atomic import atomic_write
from l2d.cell_configs import CellConfigs
from l2d.compose import quoted
from l2d.config import plain
from l2d.errors import UserError, sentence, show, visible
from l2d.identity import choices, reported_otherwise
from l2d.signals import Interrupted, StopSignal
from l2d.tracking.read import checked_result, read_result
from l2d.tracking.run_folder import MANIFESTS, RunFolder, duration, headline


class SweepInterrupted(Interrupted):
    """A signal stopped a launcher; `returns` has what became of each cell (of those that were not begun: None)."""

    def __init__(self, signum: int, returns: Sequence[JobReturn]):
        super().__init__(signum)
        self.returns = returns


class Cell(NamedTuple):
    """One setting of a sweep, and what a sweep does with it."""

    folder: Path
    overrides: list[str]
    config: DictConfig
    action: str  # run, redo, evaluate, skip or refuse
    why: str

    def literal(self) -> list[str]:
        """The overrides with the folder as it is, so that a worker composes the config without our resolver."""
        return [*self.overrides, f"hydra.sweep.subdir={quoted(self.config.hydra.sweep.subdir)}"]


def sweep(launcher: Any, context: HydraContext, config: DictConfig, swept: list[list[str]]) -> Sequence[JobReturn]:
    """Run the cells (`swept` holds the overrides of each) that are not finished; return what the launcher returned."""
    cells = plan_cells(context.config_loader, config, swept)
    if config.plan:
        show_plan(cells)
        return []
    returns = run_cells(launcher, context, cells)
    exit_code = _exit_code([returned._return_value for returned in returns])
    if exit_code:
        sys.exit(exit_code)
    return returns


def show_plan(cells: list[Cell]) -> None:
    """Print what would be done with each cell, and how many of each kind there are."""
    counts = Counter(cell.action for cell in cells)
    total = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    for cell in cells:
        show(plan_line(cell.folder, cell.action, cell.why))
    show(f"{total}: " + ", ".join(f"{count} to {action}" for action, count in counts.items()))


def run_cells(launcher: Any, context: HydraContext, cells: list[Cell]) -> Sequence[JobReturn]:
    """Run those that are not finished and print what became of them; return what the launcher returned for these."""
    for output in {str(cell.config.hydra.sweep.dir) for cell in cells}:
        write_manifest(Path(output), [_entry(cell) for cell in cells])
    todo = to_run(cells)
    for cell in cells:
        if cell.action == "skip":
            show(f"finished before  {cell.folder.name}  {cell.why}")
    composed = {tuple(cell.literal()): cell.config for cell in todo}
    loader: Any = _Composed(context.config_loader, composed)
    launcher.hydra_context = HydraContext(loader, context.callbacks)
    started = time.monotonic()
    interrupted: SweepInterrupted | None = None
    try:
        returns = launcher.launch([cell.literal() for cell in todo], initial_job_idx=0) if todo else []
    except SweepInterrupted as stop:
        returns, interrupted = stop.returns, stop
    outcomes = [returned._return_value for returned in returns]
    _summarise(todo, outcomes, len(cells) - len(todo), time.monotonic() - started)
    if interrupted:
        raise interrupted
    return returns


def to_run(cells: list[Cell]) -> list[Cell]:
    """Those that are not finished, in the order in which `run_cells` returns them."""
    return [cell for cell in cells if cell.action != "skip"]


def plan_cells(loader: ConfigLoader, config: DictConfig, swept: list[list[str]]) -> list[Cell]:
    """Compose every cell; the same setting twice is one cell, and two settings in one folder are a UserError."""
    with StopSignal():  # it may take long
        return _plan_cells(loader, config, swept)


def _plan_cells(loader: ConfigLoader, config: DictConfig, swept: list[list[str]]) -> list[Cell]:
    cells: dict[Path, Cell] = {}
    configs = CellConfigs(loader, config)
    for overrides in swept:
        try:
            cfg = configs.of(overrides)
        except ValueError as error:  # Hydra raises it for an option that is not a string, such as logger=choice(1,2)
            raise UserError(f"{' '.join(overrides)} cannot be composed: {sentence(error).rstrip('.')}.") from error
        cfg.hydra.sweep.subdir = str(cfg.hydra.sweep.subdir)  # what it resolves to
        folder = Path(cfg.hydra.sweep.dir, cfg.hydra.sweep.subdir).absolute()
        if folder not in cells:
            cells[folder] = Cell(folder, overrides, cfg, *plan(folder, cfg))
        elif _settings(cells[folder].config) != _settings(cfg):
            first = cells[folder].overrides
            ours, theirs = (" ".join(w for w in a if w not in b) for a, b in ((first, overrides), (overrides, first)))
            raise UserError(
                f"{ours} and {theirs} would share the folder {folder}; a cell needs a folder of its own: leave "
                "hydra.sweep.subdir alone, and vary only settings that change the result."
            )
    return list(cells.values())


def union(loader: ConfigLoader, params: Any, grids: Any, words: list[str]) -> list[list[str]]:
    """The overrides of every cell: of each grid the product of its values and of the others (`seed=0,1,2`).

    A word of the command line replaces the values that `params` and the grids have for its key. A key that only some grids
    have is not added to the others: there it would repeat what does not depend on it.
    """
    params, grids = plain(params), plain(grids)
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise UserError(
            f"hydra.sweeper.grids={json.dumps(grids)} must be a list of grids, each a mapping of keys to values, "
            "as in [{loss: 'ce,rs'}, {system: two_stage, loss: ova}]."
        )
    given, shared = _values(loader, words), _values(loader, _as_words(params))
    own = [_values(loader, _as_words(grid)) for grid in grids] or [{}]
    somewhere = {key for grid in own for key in grid}
    cells: list[list[str]] = []
    for grid in own:
        chosen = {key: values for key, values in given.items() if key in grid or key not in somewhere}
        cells += [list(cell) for cell in product(*(grid | shared | grid | chosen).values())]
    return cells


def _as_words(params: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in params.items()]


def _values(loader: ConfigLoader, words: list[str]) -> dict[str, list[str]]:
    """key -> an override per value; of several words with a key the last one counts."""
    values: dict[str, list[str]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(words):
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise UserError(f"{override.input_line} is not a list of values; write {key}=1,2,3 or {key}=range(1,4).")
    return values


def plan(folder: Path, cfg: DictConfig) -> tuple[str, str]:
    """What a run in this folder would do (run, redo, evaluate, skip or refuse), and why."""
    try:
        result = read_result(folder) if cfg.get("force") else checked_result(folder)
        if not result:
            return "run", "nothing there yet"
        if result.get("status") != "finished":
            return "run", f"{result.get('status')} before, and continued from its checkpoint if there is one"
        result = RunFolder(folder, cfg).finished()
    except UserError as error:  # the run will find the same
        return "refuse", sentence(error)
    if result is None:
        return "redo", "finished, but force=true"
    if reported_otherwise(cfg, result):
        return "evaluate", "finished, but under another rule or evaluation"
    return "skip", headline(result["metrics"])


def plan_line(folder: Path, action: str, why: str) -> str:
    return f"{action:<8} {folder}  {why}"


def write_manifest(output: Path, cells: list[dict[str, Any]]) -> Path:
    """List the cells in a file below `output`, which the same grid finds again; return that file."""
    digest = hashlib.sha256("\n".join(sorted(cell["folder"] for cell in cells)).encode()).hexdigest()[:8]
    path = (output / MANIFESTS / f"{digest}.json").absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"started": time.time(), "command": sys.argv[1:], "cells": cells}
    atomic_write(path, lambda file: file.write(json.dumps(content, indent=1).encode()))
    return path


class _Composed:
    """A config loader that has the cells' configs already; pickled for another process, it composes them again."""

    def __init__(self, loader: ConfigLoader, configs: dict[tuple[str, ...], DictConfig]):
        self.loader, self.configs = loader, configs

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        composed = self.configs.get(tuple(sweep_overrides))
        return self.loader.load_sweep_config(master_config, sweep_overrides) if composed is None else composed

    def __reduce__(self) -> Any:
        return _Composed, (self.loader, {})


def _entry(cell: Cell) -> dict[str, Any]:
    """The entry of a cell in the manifest."""
    return {
        "folder": str(cell.folder),
        "overrides": cell.overrides,
        "choices": choices(cell.config),
        "skipped": cell.action == "skip",
    }


def _settings(cfg: DictConfig) -> dict[str, Any]:
    return {str(key): plain(cfg[key]) for key in cfg if key != "hydra"}


def _summarise(cells: list[Cell], outcomes: Sequence[Any], skipped: int, seconds: float) -> None:
    """Print counts and the reason of each failure."""
    counts = Counter({"done": 0, "finished before": skipped, "failed": 0})
    failures, busy = [], []
    for cell, outcome in zip(cells, outcomes, strict=True):
        kind = _kind(outcome)
        counts[kind] += 1
        if kind == "left to another process":
            busy.append(outcome["in_use"])
        elif kind == "failed":
            failures.append((cell, failure_of(outcome)))
    show(", ".join(f"{n} {what}" for what, n in counts.items()) + f", in {duration(seconds)}")
    for text in busy:
        show(text)
    for cell, failed in failures:
        print(visible(f"failed: {' '.join(cell.overrides)}: {failed['error']}"), file=sys.stderr)


def _kind(outcome: Any) -> str:
    """What became of a cell."""
    if outcome is None:
        return "not begun"
    if isinstance(outcome, BaseException) or "error" in outcome:
        return "failed"
    if "stopped_by" in outcome:
        return "interrupted"
    return "left to another process" if "in_use" in outcome else "done"


def failure_of(outcome: Any) -> dict[str, Any]:
    """`error`, and `by_user`: whether the user can fix it."""
    return {"error": str(outcome), "by_user": False} if isinstance(outcome, BaseException) else outcome


def _exit_code(outcomes: Sequence[Any]) -> int:
    """0 if nothing failed, 2 if the user can fix all failures, else 1."""
    kinds = {_kind(outcome) for outcome in outcomes}
    failures = [failure_of(outcome) for outcome in outcomes if _kind(outcome) == "failed"]
    if "interrupted" in kinds or not all(failed["by_user"] for failed in failures):
        return 1
    return 2 if failures else 0
