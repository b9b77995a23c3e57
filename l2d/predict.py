"""l2d predict: what to do with new inputs, one row for each."""

import os
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from l2d.cli import COMMANDS
from l2d.compose import add_config_dir
from l2d.errors import Arguments, UserError, errors_as_sentences, notify
from l2d.identity import register_resolvers
from l2d.inference.write import ENDINGS, check_output, write
from l2d.tracking.trained import Run, run_with

if TYPE_CHECKING:  # torch takes seconds to import, and a mistake in the command should not wait for it
    from l2d.inference import Predictions

DESCRIPTION = """\
Decide about new inputs with the system of a finished run: for each the class to answer, or whom to ask.

  l2d predict outputs/folder/RUN photos --out decisions.csv
  l2d predict RUN a.jpg b.jpg @list.txt manifest.csv rule=budget rule.defer_at_most=10
  l2d predict RUN features.npz 'rule.available=[ada,bob]' experts.costs=0.05 --out decisions.parquet

INPUT is an image, a folder of images, @FILE (a path per line), a table with a column path, or for a system of vectors an .npz
(its array x) or a table. rule=..., experts.costs=... and trainer.device=... are as in `l2d evaluate`. An input that cannot be
read has its error in its row, and does not stop the others. Code that the run names and that is not l2d's own is run only with
trust=true: a folder may come from someone else."""


def main(arguments: list[str] | None = None) -> None:
    """l2d predict RUN INPUT ... KEY=VALUE ..."""
    parser = Arguments(
        "l2d predict",
        usage="l2d predict [--config-dir DIR] RUN INPUT ... [--out FILE] [--batch-size N] [KEY=VALUE ...]",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a finished run")
    parser.add_argument("words", nargs="*", metavar="INPUT", help="inputs, and settings as KEY=VALUE")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=".csv, .jsonl or .parquet; else CSV to standard output"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="inputs at a time; else as in training")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    with errors_as_sentences():
        register_resolvers()
        settings = [word for word in options.words if "=" in word and not os.path.exists(word.removeprefix("@"))]
        inputs = [word for word in options.words if word not in settings]
        if not inputs:
            raise UserError("There are no inputs; give files, folders or @LIST after the run.")
        if options.batch_size is not None and options.batch_size < 1:
            raise UserError(f"--batch-size {options.batch_size} must be at least 1.")
        if options.out is not None:
            check_output(options.out, ENDINGS)
        run, cfg = run_with(options.run, settings, options.config_dir, COMMANDS["predict"].settings)
        predict_run(run, cfg, inputs, options.out, options.batch_size)


def predict_run(run: Run, cfg: DictConfig, inputs: list[str], out: Path | None, batch_size: int | None) -> None:
    """Decide about the inputs and write a row for each."""
    from l2d.evaluation.rules import method_of
    from l2d.inference.system import TrainedSystem
    from l2d.place import Place, Ranks

    ranks = Ranks()
    if ranks.count > 1:
        raise UserError("l2d predict works in one process; start it without torchrun.")
    trained = TrainedSystem(run, cfg, Place.open(cfg.trainer, cfg.seed, ranks))
    decider = trained.decider(cfg)
    if trained.vouches_for == "none":
        notify(
            f"{method_of(cfg)} gives no estimates of accuracies: probability, expert_accuracy and gain are good for their order alone."
        )
    count, errors, first = 0, 0, ""
    with progress() as bar:
        task = bar.add_task("inputs", total=None)

        def counted() -> "Iterator[Predictions]":
            nonlocal count, errors, first
            stream = trained.stream(inputs, decider, batch_size, lambda seen: bar.advance(task, seen))
            for part in stream:
                wrong = [error for error in part["error"] if error]
                count, errors, first = count + len(part), errors + len(wrong), first or next(iter(wrong), "")
                yield part

        write(out, counted())
    if errors:
        notify(f"{errors:,} of {count:,} inputs could not be read; their rows say why. The first: {first}")


def progress() -> Progress:
    """The number of inputs so far, on a terminal alone."""
    terminal = Console(stderr=True)
    columns: list[Any] = [SpinnerColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    return Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)


if __name__ == "__main__":
    main()
