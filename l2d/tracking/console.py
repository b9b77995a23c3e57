"""What a run says on the terminal: a header, progress, the final table."""

import time
from typing import Any

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

HEADLINE = ("system_error", "coverage", "classifier_accuracy")


class Console:
    """On a terminal a live bar, otherwise a plain line per epoch, but not more than one a second."""

    def __init__(self, verbose: bool):
        self.verbose = verbose
        self.terminal = Terminal(highlight=False, soft_wrap=True)
        self.bar: Progress | None = None
        self.last_line = time.monotonic()

    def header(self, facts: dict[str, Any]) -> None:
        if self.verbose:
            self.terminal.print("   ".join(f"[dim]{key}[/] {value}" for key, value in facts.items()))

    def start(self, epochs: int, steps: int) -> None:
        self.epochs, self.steps = epochs, steps
        if self.verbose and self.terminal.is_terminal:
            columns = (
                TextColumn("epoch"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=self.terminal, transient=True)
            self.task = self.bar.add_task("", total=epochs)
            self.bar.start()

    def step(self, epoch: int, step: int, loss: float) -> None:
        if self.bar:
            self.bar.update(self.task, completed=epoch + step / self.steps, description=f"loss {loss:.4f}")

    def epoch(self, row: dict[str, Any]) -> None:
        text = f"loss {row['loss']:.4f}  {row['images_per_second']:,.0f} images/s"
        text += "".join(f"  {key} {row[key]:.2f}" for key in HEADLINE if key in row)
        if self.bar:
            self.bar.update(self.task, completed=row["epoch"], description=text)
        elif self.verbose and time.monotonic() - self.last_line > 1:
            self.terminal.print(f"epoch {row['epoch']}/{self.epochs}  {text}")
            self.last_line = time.monotonic()

    def close(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def final(
        self, name: str, metrics: dict[str, Any], bayes: dict[str, float] | None, folder: str, seconds: float
    ) -> None:
        rows = [(name, metrics)] + ([("best achievable", bayes)] if bayes else [])
        width = max(len(title) for title, _ in rows) + 2
        self.terminal.print(" " * width + "".join(f"{key:>21}" for key in HEADLINE))
        for title, values in rows:
            self.terminal.print(title.ljust(width) + "".join(f"{values[key]:>21.2f}" for key in HEADLINE))
        self.terminal.print(f"[dim]{seconds:.1f} s, in[/] {folder}")
