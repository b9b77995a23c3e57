"""l2d evaluate: the metrics of a trained system, from its kept outcome, or on another test set that fits it."""

import json
import time
from argparse import RawDescriptionHelpFormatter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from l2d.atomic import atomic_write
from l2d.compose import add_config_dir
from l2d.conf_files import Folders
from l2d.errors import Arguments, UserError, errors_as_sentences, notify, show
from l2d.identity import choices, register_resolvers
from l2d.inference.write import write
from l2d.tracking.run_folder import environment
from l2d.tracking.trained import FROM_OUTCOME, Run, changed, find_run, refuse_other_data

if TYPE_CHECKING:  # torch takes seconds to import, and a mistake in the command should not wait for it
    from l2d.evaluation.evaluator import Evaluated
    from l2d.evaluation.outcome import Outcome
    from l2d.systems.weights import Weights
    from l2d.task import Task

DESCRIPTION = """\
Evaluate a trained system again and write the metrics to evaluation.json in its folder (or to out=FILE).

  l2d evaluate outputs/synthetic/RUN
  l2d evaluate RUN evaluation=full
  l2d evaluate RUN dataset=folder dataset.root=images experts=specialist

The setting is the config.yaml of the run. evaluation=... and rule=... are answered from what the run kept, without its model
and its data. dataset=..., experts=... and any other key=value read both again: the test set of that setting is predicted, its
classes and experts matched by name. Code that the run names and that is not l2d's own (a loss of yours, say) is run only
with trust=true: a folder may come from someone else. --samples writes a row per test sample beside evaluation.json, to
predictions.parquet (without pyarrow to predictions.csv): label, decision, who was asked and said what, right or wrong, beliefs."""
OWN_WORDS = ("ckpt=", "out=", "trust=")


def main(arguments: list[str] | None = None) -> None:
    """l2d evaluate RUN KEY=VALUE ..."""
    parser = Arguments(
        "l2d evaluate",
        usage="l2d evaluate [--config-dir DIR] RUN [--samples] [KEY=VALUE ...]",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or the weights in it")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="changes, out=FILE, trust=true")
    parser.add_argument("--samples", action="store_true", help="write what was done with each test sample, too")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    with errors_as_sentences():
        register_resolvers()
        words = [options.run, *options.settings]
        own = dict(word.split("=", 1) for word in words if word.startswith(OWN_WORDS))
        if not options.run.startswith("ckpt="):
            own.setdefault("ckpt", options.run)
        changes = [word for word in options.settings if not word.startswith(OWN_WORDS)]
        if own.get("trust", "false") not in ("true", "false"):
            raise UserError(f"trust={own['trust']} must be true or false.")
        run = find_run(own["ckpt"], trust=own.get("trust") == "true")
        out = Path(own.get("out") or run.folder / "evaluation.json")
        evaluate_run(run, changes, options.config_dir, out, options.samples)


def evaluate_run(
    run: Run, changes: list[str], config_dirs: Folders, out: Path, samples: bool = False
) -> dict[str, Any]:
    """Evaluate a run with some settings changed; print the metrics and write them to `out`, and with `samples` a table of all test
    samples beside it."""
    started = time.perf_counter()
    cfg, touched = changed(run, changes, config_dirs)

    from l2d.evaluation.again import evaluate_kept
    from l2d.tracking.harmless import Harmless
    from l2d.tracking.progress import ProgressReporter

    evaluated, source = None, "outcome"
    if run.weights is None and touched <= FROM_OUTCOME:
        if (run.result.get("data") or {}).get("truth"):
            refuse_other_data(cfg, run)
        evaluated = evaluate_kept(cfg, run.folder, run.result)
    if evaluated is None:
        evaluated, source = from_weights(cfg, run, touched), "weights"
    table = write_samples(out.parent, evaluated.outcomes["test"]) if samples else None
    result = {
        **evaluated.result,
        **({"samples": table.name} if table else {}),
        "source": source,
        "run": str(run.folder),
        "changes": changes,
        "choices": {**choices(cfg), "num_experts": evaluated.outcomes["test"].answers.shape[1]},
        "seconds": time.perf_counter() - started,
        **environment(),
    }
    atomic_write(out, lambda file: file.write((json.dumps(result, indent=2, allow_nan=False) + "\n").encode()))
    reporter: Any = Harmless(ProgressReporter(verbose=True), "The display")
    reporter.final(out, result)
    if table:
        show(f"Samples: {table}")
    return result


def write_samples(folder: Path, outcome: "Outcome") -> Path:
    """Write what was done with each sample to predictions.parquet, or where that is not possible to predictions.csv."""
    from l2d.inference.samples import sample_kinds, sample_parts

    path = folder / ("predictions.parquet" if find_spec("pyarrow") else "predictions.csv")
    write(path, sample_parts(outcome), sample_kinds(outcome))
    return path


def from_weights(cfg: DictConfig, run: Run, touched: set[str]) -> "Evaluated":
    """Load the weights, predict the test set of the setting and evaluate it."""
    from l2d.evaluation.evaluator import Known, evaluate, evaluation_loaders, predict_splits
    from l2d.inference.restore import give_weights, weights_of
    from l2d.place import Place, Ranks
    from l2d.systems import load_system
    from l2d.task import load_task

    ranks = Ranks()
    if ranks.count > 1:
        raise UserError("l2d evaluate works in one process; start it without torchrun.")
    path, weights = weights_of(run)
    refuse_other_held_out(cfg, run)
    same_data = not touched & {"dataset", "seed"}
    if same_data:
        refuse_other_data(cfg, run)
    else:
        cfg.held_out = 0  # held out is only what the weights are known not to have been trained on
    place = Place.open(cfg.trainer, cfg.seed, ranks)
    task = load_task(cfg)
    system = load_system(cfg, task)
    task = matched(task, weights, path, any_experts=bool(system.about_panel))
    own = system.state_dict()
    weights = weights._replace(tensors=weights.tensors | {name: own[name] for name in system.about_panel})
    here = f"backbone={cfg.backbone.name} with {task.num_classes} classes and {task.num_experts} experts"
    give_weights(system, weights, path, here)
    place = place.take(system, cfg.trainer)
    loaders = evaluation_loaders(cfg, system, task, place)
    return evaluate(cfg, system, predict_splits(system, loaders, cfg.seed, settle=False), Known.of(task))


def refuse_other_held_out(cfg: DictConfig, run: Run) -> None:
    """What a run held out was decided when it was trained: any other sample of that data was trained on."""
    before = run.config.get("held_out") or 0
    if cfg.held_out != before:
        raise UserError(
            f"held_out={cfg.held_out:g}: this run was trained with held_out={before:g}, and rules are fitted on what it was not "
            "trained on; leave it out, or train again."
        )


def matched(task: "Task", weights: "Weights", path: Path, any_experts: bool = False) -> "Task":
    """The task with its classes and experts in the order that the weights were trained for, matched by name; `any_experts` may be
    others, in their own order."""
    classes, experts = weights.facts.get("class_names"), weights.facts.get("expert_names")
    if classes is None:
        notify(f"{path} does not name its classes, so they are taken in the order of this dataset.")
        classes = task.class_names
    experts = task.expert_names if any_experts else experts or task.expert_names
    unknown = [name for name in task.class_names if name not in classes]
    if unknown or len(classes) != len(task.class_names):
        raise UserError(
            f"{path} was trained for {len(classes)} classes ({_some(classes)}), and this dataset has {len(task.class_names)}"
            f" ({_some(unknown or task.class_names)} {'unknown to it' if unknown else ''}".rstrip()
            + "); they must be the same."
        )
    absent = [name for name in experts if name not in task.expert_names]
    if absent or len(experts) != task.num_experts:
        raise UserError(
            f"{path} was trained for {len(experts)} experts ({_some(experts)}), and this setting has {task.num_experts} "
            f"({_some(task.expert_names)}); they must be the same, in any order."
        )
    return task.reordered(classes, experts)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


if __name__ == "__main__":
    main()
