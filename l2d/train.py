"""Read this first: run(cfg) takes a config through the package, Task -> System -> stages -> Outcome -> record."""

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from l2d.config import build, plain
from l2d.data import Loader
from l2d.errors import UserError
from l2d.evaluation.again import evaluate_kept
from l2d.evaluation.evaluator import Evaluator
from l2d.evaluation.kept import keep
from l2d.identity import reported_otherwise, run_name
from l2d.place import Place, Ranks
from l2d.signals import StopSignal
from l2d.systems import check_loss, load_system, weight_facts
from l2d.task import load_task
from l2d.tracking.facts import run_facts
from l2d.tracking.harmless import Harmless
from l2d.tracking.progress import ProgressReporter
from l2d.tracking.run_folder import ReadOnlyFolder, RunFolder
from l2d.tracking.trackers import NullTracker, Tracker, ending
from l2d.training.checkpoint import Checkpoints
from l2d.training.loop import fit
from l2d.training.state import TrainingState


def run(cfg: DictConfig) -> dict[str, Any]:
    """Train and evaluate what `cfg` describes, unless that was done before; return the metrics on the test set."""
    ranks = Ranks()
    with StopSignal() as stop, ranks.one_run():
        with (RunFolder if ranks.first else ReadOnlyFolder)(run_folder(cfg), cfg) as folder:
            result = folder.finished()
            display = ProgressReporter(cfg.verbose)
            display.terminal.quiet = not ranks.first
            reporter: Any = Harmless(display, "The display")
            if result:
                if reported_otherwise(cfg, result):
                    result = report_again(cfg, folder, result)
                reporter.finished_before(folder.path, result)
            else:
                with ranks:
                    result = train(cfg, folder, reporter, ranks, stop)
        if stop.received:  # while the finished system was evaluated: stop now, before the next cell of a sweep
            stop.leave()
    metrics: dict[str, Any] = result["metrics"]
    return metrics


def train(cfg: DictConfig, folder: RunFolder, reporter: Any, ranks: Ranks, stop: StopSignal) -> dict[str, Any]:
    """The whole way of one run, from the config to result.json."""
    check_loss(cfg)
    place = Place.open(cfg.trainer, cfg.seed, ranks)
    task = load_task(cfg)
    system = load_system(cfg, task)
    place = place.take(system, cfg.trainer)
    loader = Loader(task.train, place, cfg.trainer.batch_size, cfg.seed, train=True)
    evaluator = Evaluator(cfg, system, task, place, loader)
    tracker: Any = Harmless(build(cfg, "logger", Tracker) if ranks.first else NullTracker(), "The logger")
    facts = run_facts(cfg, task, system, place)

    with ending(tracker, reporter):
        stop.patiently()
        state = TrainingState(cfg, system, loader, Checkpoints(folder.path, folder.fingerprint), stop)
        folder.start(facts, resumed=state.restore())
        folder.rows = state.rows
        tracker.start(folder.path.name, plain(cfg), folder.path)
        reporter.start(facts, state.total_epochs, cfg.trainer.batch_size)
        for row in fit(state, reporter.step):
            last = row["epoch"] == state.total_epochs
            row |= evaluator.row(row["epoch"], final=last)
            folder.add_epoch(row, last)
            reporter.epoch(row)
            tracker.log(row)
        reporter.stop()
        evaluated = evaluator.evaluated
        ranks.part()
        if ranks.first:
            evaluated.result["kept"] = keep(
                folder.path, folder.fingerprint, system, evaluated.outcomes, task.ids(), cfg
            )
            folder.write_weights(system.state_dict(), weight_facts(facts))
        memory = {"peak_memory_mb": place.peak_memory_mb()}
        result = folder.write_result({"status": "finished", **evaluated.result, **memory})
        if ranks.first:
            state.checkpoints.remove()
        tracker.finish(result)
    reporter.final(folder.path, result)
    return result


def report_again(cfg: DictConfig, folder: RunFolder, result: dict[str, Any]) -> dict[str, Any]:
    """A finished run under another rule or evaluation, from what it kept; refused where it kept nothing to do so."""
    evaluated = evaluate_kept(cfg, folder.path, result)
    if evaluated is None:
        raise UserError(
            f"{folder.path} is finished under another rule or evaluation, and kept no scores to evaluate it again; "
            f"`l2d evaluate {folder.path}` reads its model, and force=true trains it again."
        )
    return folder.replace_result({**result, **evaluated.result})


def run_folder(cfg: DictConfig) -> Path:
    """The folder of the run that `cfg` describes: where Hydra put it, or the same place where there is no Hydra application around."""
    if HydraConfig.initialized() and not OmegaConf.is_missing(HydraConfig.get().runtime, "output_dir"):
        return Path(HydraConfig.get().runtime.output_dir)
    return Path(cfg.output_dir, run_name(cfg))


if __name__ == "__main__":
    from l2d.cli import train as main

    sys.modules.setdefault("l2d.train", sys.modules["__main__"])  # imported again below; do not load it twice
    main()
