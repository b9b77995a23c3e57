"""What a run says on the terminal: a header, progress, the final table. Inside a sweep: one line per cell."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from l2d.tracking.record import HEADLINE, headline, sweep_progress


class Console:
    """On a terminal a live bar, otherwise a plain line per epoch, but not more than one a second."""

    def __init__(self, verbose: bool):
        self.verbose = verbose
        self.terminal = Terminal(highlight=False, soft_wrap=True)
        self.bar: Progress | None = None

    @contextmanager
    def progress(self, facts: dict[str, Any], epochs: int, steps: int) -> Iterator[None]:
        self.epochs, self.steps, self.last_line = epochs, steps, time.monotonic()
        self.quiet = not self.verbose or bool(sweep_progress())
        if not self.quiet:
            shown = {**facts["choices"], **{k: facts[k] for k in ("device", "precision", "parameters")}}
            self.terminal.print("  ".join(f"[dim]{key}[/] {value}" for key, value in shown.items()))
        if self.verbose and self.terminal.is_terminal:
            columns = (
                TextColumn("{task.fields[what]}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
            )
            self.bar = Progress(*columns, TimeRemainingColumn(), console=self.terminal, transient=True)
            what = f"{facts['choices']['loss']} J={facts['choices']['num_experts']} epoch"
            self.task = self.bar.add_task("", total=epochs, what=what)
            self.bar.start()
        try:
            yield
        finally:
            if self.bar:
                self.bar.stop()
                self.bar = None

    def step(self, epoch: int, step: int, loss: float) -> None:
        if self.bar:
            self.bar.update(self.task, completed=epoch + step / self.steps, description=f"loss {loss:.4f}")

    def epoch(self, row: dict[str, Any]) -> None:
        text = f"loss {row['loss']:.4f}  {row['images_per_second']:,.0f} images/s"
        text += "".join(f"  {key} {row[key]:.2f}" for key in HEADLINE if key in row)
        if self.bar:
            self.bar.update(self.task, completed=row["epoch"], description=text)
        elif not self.quiet and time.monotonic() - self.last_line > 1:
            self.say(f"epoch {row['epoch']}/{self.epochs}  {text}")
            self.last_line = time.monotonic()

    def finished_before(self, folder: Path, result: dict[str, Any]) -> None:
        self.say(f"finished before (force=true runs it again)  {folder}  {headline(result['metrics'])}")

    def final(self, folder: Path, result: dict[str, Any]) -> None:
        where = sweep_progress()
        if where:
            self.say(f"{where} {folder.name}  {headline(result['metrics'])}  {result['seconds']:.1f} s")
            return
        chosen = result["choices"]
        title = f"{chosen['loss']}, {chosen['num_experts']} experts, seed {chosen['seed']}"
        rows = [(title, result["metrics"])] + ([("best achievable", result["bayes"])] if result["bayes"] else [])
        width = max(len(title) for title, _ in rows) + 2
        self.say(" " * width + "".join(f"{key:>21}" for key in HEADLINE))
        for title, values in rows:
            self.say(title.ljust(width) + "".join(f"{values[key]:>21.2f}" for key in HEADLINE))
        self.say(f"{result['seconds']:.1f} s, in {folder}")

    def say(self, text: str) -> None:
        self.terminal.print(text, markup=False)
