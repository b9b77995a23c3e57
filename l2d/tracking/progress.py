"""What a run prints on the terminal: a header, progress, the final table. Inside a sweep: one line per cell."""

import errno
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from l2d.errors import visible
from l2d.evaluation import REFERENCE
from l2d.identity import method_parts
from l2d.tracking.read import HEADLINE
from l2d.tracking.run_folder import duration, finished_line, headline, sweep_manifest, sweep_progress

# label -> metric; printed beside the accuracy of the system
COMPARED_WITH = {"classifier alone": "classifier_accuracy"}
COMPARED_WITH |= {metric.label.removesuffix(" (%)").lower(): metric.name for metric in REFERENCE}

MAX_LIMITS = 8  # experts whose limits are printed


class Terminal(Console):
    """Raises an error of writing; rich would end the program with SystemExit when the reader of a pipe is gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class ProgressReporter:
    """On a terminal a live bar, otherwise a plain line per epoch, at most one a second."""

    def __init__(self, verbose: bool):
        self.verbose = verbose
        self.terminal = Terminal(highlight=False, soft_wrap=True)
        self.bar: Progress | None = None
        self.last_step: tuple[float, int] | None = None  # (time, step in the epoch)
        self.first_row: tuple[float, int] | None = None  # (time, epoch)

    def start(self, facts: dict[str, Any], epochs: int, batch_size: int) -> None:
        """Print the header and show the bar."""
        self.epochs, self.batch_size = epochs, batch_size
        self.last_line = time.monotonic()
        self.quiet = not self.verbose or sweep_manifest() is not None
        if not self.quiet:
            shown = {**facts["choices"], "num_experts": num_experts(facts)}
            shown |= {key: facts[key] for key in ("device", "precision")}
            shown["parameters"] = f"{facts['parameters']:,}"
            self.terminal.print(
                Text("  ").join(Text.assemble((key, "dim"), visible(f" {shown[key]}")) for key in shown)
            )
        if self.verbose and self.terminal.is_interactive and self.terminal.file.isatty():
            columns = (TextColumn("{task.fields[what]}"), BarColumn(), TextColumn("{task.description}"))
            self.bar = Progress(
                *columns, TimeRemainingColumn(), TextColumn("left"), console=self.terminal, transient=True
            )
            self.what = visible(f"{facts['choices']['loss']} J={num_experts(facts)} epoch")
            self.task = self.bar.add_task("", total=epochs, what=f"{self.what} 1/{epochs}")
            self.bar.start()

    def stop(self) -> None:
        """Remove the bar."""
        bar, self.bar = self.bar, None
        if bar:
            bar.stop()

    def step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        """Show the loss after `step` of `steps` steps; epochs count from 0."""
        if not self.bar:
            return
        text, now = f"loss {loss:.4f}", time.monotonic()
        if self.last_step:
            before, last_step = self.last_step
            text += f"  {(step - last_step) * self.batch_size / max(now - before, 1e-9):,.0f} images/s"
        self.last_step = now, step
        what = f"{self.what} {epoch + 1}/{self.epochs}"
        self.bar.update(self.task, completed=epoch + step / steps, description=text, what=what)

    def epoch(self, row: dict[str, Any]) -> None:
        """Show the metrics of a finished epoch."""
        text = f"loss {row['loss']:.4f}  {row['images_per_second']:,.0f} images/s"
        text += "".join(f"  {key} {row[key]:.2f}" for key in HEADLINE if key in row)
        self.first_row, self.last_step = self.first_row or (time.monotonic(), row["epoch"]), (time.monotonic(), 0)
        if self.bar:
            what = f"{self.what} {row['epoch']}/{self.epochs}"
            self.bar.update(self.task, completed=row["epoch"], description=text, what=what)
        elif not self.quiet and time.monotonic() - self.last_line > 1:
            self.print(f"epoch {row['epoch']}/{self.epochs}  {text}{self._left(row['epoch'])}")
            self.last_line = time.monotonic()

    def _left(self, epoch: int) -> str:
        """The remaining time, estimated without the first epoch, which includes the start of the device and the workers."""
        since, first = self.first_row or (0.0, epoch)
        if epoch in (first, self.epochs):
            return ""
        return f"  {duration((time.monotonic() - since) / (epoch - first) * (self.epochs - epoch))} left"

    def finished_before(self, folder: Path, result: dict[str, Any]) -> None:
        self.print(finished_line(folder, headline(result["metrics"])))

    def final(self, folder: Path, result: dict[str, Any]) -> None:
        """Print the final metrics beside what they are compared with; inside a sweep one line."""
        position = sweep_progress()
        if position:
            self.print(f"{position} {folder.name}  {headline(result['metrics'])}  {result['seconds']:.1f} s")
            return
        metrics, choices, num = result["metrics"], result["choices"], num_experts(result)
        experts = f", {num} expert{'' if num == 1 else 's'}" if num else ""
        title = f"{' '.join(method_parts(choices))}{experts}, seed {choices['seed']}"
        rows = [(title, metrics)] + ([("best achievable", result["bayes"])] if result["bayes"] else [])
        width = max(len(title) for title, _ in rows) + 2
        own = [metric["name"] for metric in result.get("own_metrics") or [] if metric["role"] == "headline"]
        columns = [*HEADLINE, *(name for name in own if isinstance(metrics.get(name), int | float))]
        self.print(" " * width + "".join(f"{key:>21}" for key in columns))
        for title, values in rows:
            self.print(
                title.ljust(width) + "".join(f"{values[key]:>21.2f}" if key in values else "" for key in columns)
            )
        compared = {label: metrics[key] for label, key in COMPARED_WITH.items() if metrics.get(key) is not None}
        accuracies = {"system": 100 - metrics["system_error"], **compared}
        self.print("accuracy: " + ", ".join(f"{label} {value:.2f}" for label, value in accuracies.items()))
        regret = (result.get("evaluation") or {}).get("regret")
        if regret:
            parts = ", ".join(f"{part} {regret[part]:.2f}" for part in ("classifier", "decision", "expert"))
            self.print(f"regret {regret['total']:.2f}: {parts}")
        for line in asking_lines(result):
            self.print(line)
        self.print(f"{result['seconds']:.1f} s, in {folder}")

    def print(self, line: str) -> None:
        self.terminal.print(visible(line), markup=False)
        self.terminal.file.flush()  # an error shows here, not when the process ends


def asking_lines(result: dict[str, Any]) -> list[str]:
    """What asking costs, where it costs anything or several are asked, and whether the limits of a rule were kept."""
    metrics, limits = result["metrics"], (result.get("decision") or {}).get("limits") or []
    lines = []
    if metrics.get("system_cost") is not None or (metrics.get("set_size") or 1) > 1:
        cost = [] if metrics.get("system_cost") is None else [f"system cost {metrics['system_cost']:.2f}"]
        cost += [f"{metrics['questions_asked']:.2f} questions"]
        lines.append(f"per 100 cases: {', '.join(cost)}")
    if limits:
        unit = {"percent": "%"}.get(result["decision"]["unit"], f" {result['decision']['unit']}")
        rows = [_limit(row, unit) for row in limits if row["at_most"] is not None]
        lines.append("asked: " + ", ".join(rows[:MAX_LIMITS]) + (", ..." if rows[MAX_LIMITS:] else ""))
        constrained = (result.get("evaluation") or {}).get("constrained")
        lost = f"expected accuracy given up {result['decision']['given_up']:.2f}"
        best = f", regret to the best under these limits {constrained['regret']:.2f}" if constrained else ""
        lines.append(lost + best)
    return lines


def _limit(row: dict[str, Any], unit: str) -> str:
    price = "never asked" if row["price"] is None else f"price {row['price']:.3f}"
    over = f", {row['over']:.4g} too many" if row["over"] else ""
    return f"{row['who']} {row['load']:.4g} of {row['at_most']:.4g}{unit} ({price}{over})"


def num_experts(facts: dict[str, Any]) -> int | None:
    """The number of experts listed, else that of the config, which may be None (experts.num=null)."""
    return len(facts.get("experts") or ()) or facts["choices"]["num_experts"]
