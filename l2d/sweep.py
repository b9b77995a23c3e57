"""A sweep: the cells of a grid, what each would do, how far they are, and what came of them."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import HydraContext

from l2d.atomic import atomic_write
from l2d.identity import choices
from l2d.tracking.run_folder import duration, headline, read_result

# The classes that Hydra itself has loaded: an import would give others of the same names.
_PLUGINS: dict[str, Any] = Plugins.instance().class_name_to_class
_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_BasicSweeper: Any = _PLUGINS[_SWEEPER]
_BasicLauncher: Any = _PLUGINS["hydra._internal.core_plugins.basic_launcher.BasicLauncher"]
MANIFESTS = ".sweeps"  # below the output folder: one file per sweep, which lists its cells


class CellSweeper(_BasicSweeper):
    """Hydra's grid, one cell per setting: finished cells are skipped, a failing one does not stop the others."""

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        cells: dict[str, dict[str, Any]] = {}
        composed: dict[tuple[str, ...], Any] = {}
        for batch in self.split_arguments(overrides, None):
            for words in batch:
                cfg = self.hydra_context.config_loader.load_sweep_config(self.config, list(words))
                folder = str(Path(cfg.hydra.sweep.dir, cfg.hydra.sweep.subdir).absolute())
                if folder not in cells:
                    cells[folder] = {"folder": folder, "overrides": list(words), "choices": choices(cfg)}
                    composed[tuple(words)] = cfg
        force, output = bool(self.config.force), Path(self.config.hydra.sweep.dir)
        planned = [(cell, plan(Path(cell["folder"]), force)) for cell in cells.values()]
        for cell, (action, _) in planned:
            cell["skipped"] = action == "skip"
        if self.config.plan:
            for cell, (action, why) in planned:
                print(f"{action:<8} {cell['folder']}  {why}")
            print(
                f"{len(planned)} cells: "
                + ", ".join(f"{n} to {a}" for a, n in _count(a for _, (a, _) in planned).items())
            )
            return []
        manifest = write_manifest(output, list(cells.values()))
        os.environ["L2D_SWEEP"] = str(manifest)
        todo = []
        for cell, (_, why) in planned:
            if cell["skipped"]:
                print(f"finished before  {Path(cell['folder']).name}  {why}")
            else:
                todo.append(cell)
        if isinstance(self.launcher, _BasicLauncher):
            loader: Any = _Composed(composed)
            self.launcher.hydra_context = HydraContext(loader, self.hydra_context.callbacks)
        started = time.time()
        returns = self.launcher.launch([cell["overrides"] for cell in todo], initial_job_idx=0) if todo else []
        outcomes = [r._return_value for r in returns]
        self._summarise(todo, outcomes, len(planned) - len(todo), time.time() - started)
        return returns

    def _summarise(self, cells: list[dict[str, Any]], outcomes: Sequence[Any], skipped: int, seconds: float) -> None:
        """Counts, and why each failed one failed. Exit code 2 if all failures were the user's to mend, else 1."""
        failures, busy = [], []
        for cell, outcome in zip(cells, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failures.append((cell, {"error": str(outcome), "by_user": False}))
            elif "in_use" in outcome:
                busy.append(outcome["in_use"])
            elif "error" in outcome:
                failures.append((cell, outcome))
        counts = {"done": len(cells) - len(failures) - len(busy), "finished before": skipped, "failed": len(failures)}
        counts |= {"left to another process": len(busy)} if busy else {}
        print(", ".join(f"{n} {what}" for what, n in counts.items()) + f", in {duration(seconds)}")
        print("\n".join(busy), end="\n" if busy else "")
        for cell, outcome in failures:
            print(f"failed: {' '.join(cell['overrides'])}: {outcome['error']}", file=sys.stderr)
        if failures:
            sys.stdout.flush()
            sys.exit(2 if all(outcome["by_user"] for _, outcome in failures) else 1)


class _Composed:
    """The config loader of a launcher in this process: the plan has composed every cell already."""

    def __init__(self, configs: dict[tuple[str, ...], Any]):
        self.configs = configs

    def load_sweep_config(self, master: Any, words: Sequence[str]) -> Any:
        return self.configs[tuple(words)]


def plan(folder: Path, force: bool) -> tuple[str, str]:
    """What a run in this folder would do, and why."""
    result = read_result(folder)
    if not result:
        return "run", "nothing there yet"
    if result.get("status") == "finished":
        return ("redo", "finished, but force=true") if force else ("skip", headline(result["metrics"]))
    return "run", f"{result.get('status')} before, and continued from its checkpoint if there is one"


def write_manifest(output: Path, cells: list[dict[str, Any]]) -> Path:
    """One file per grid, so that the same command finds the same file."""
    digest = hashlib.sha256("\n".join(sorted(cell["folder"] for cell in cells)).encode()).hexdigest()[:8]
    path = (output / MANIFESTS / f"{digest}.json").absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"started": time.time(), "command": sys.argv[1:], "cells": cells}
    atomic_write(path, lambda file: file.write(json.dumps(content, indent=1).encode()))
    return path


def _count(items: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts


# Hydra looks its default sweeper up by this name, and ours takes that place: no plugin package, no key to choose it by.
_PLUGINS[_SWEEPER] = CellSweeper
