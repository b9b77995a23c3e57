"""l2d evaluate: the metrics of a trained system, from its kept outcome, or on another test set that fits it."""

import json
import time
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from l2d.atomic import atomic_write
from l2d.compose import add_config_dir, compose
from l2d.conf_files import Folders, group_files
from l2d.config import check
from l2d.data.load import data_digest
from l2d.errors import Arguments, UserError, errors_as_sentences, notify
from l2d.identity import choices, eight_digits, identity, register_resolvers
from l2d.source import named_code
from l2d.tracking.read import checked_config, checked_result
from l2d.tracking.run_folder import environment

if TYPE_CHECKING:  # torch takes seconds to import, and a mistake in the command should not wait for it
    from l2d.evaluation.evaluator import Evaluated
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
with trust=true: a folder may come from someone else."""
WEIGHTS = ("model.safetensors", "model.pt", "checkpoint.pt", "checkpoint.previous.pt")
OUTCOME = "outcome.safetensors"
OWN_WORDS = ("ckpt=", "out=", "trust=")
CALLED = ("dataset", "experts", "backbone", "loss", "system", "rule", "evaluation")  # groups whose targets are called
FROM_OUTCOME = {"evaluation", "rule", "costs"}  # groups that can change without predicting again


class Run(NamedTuple):
    """A trained system on disk."""

    folder: Path
    weights: Path | None  # None: the folder as a whole, whose kept outcome may be used
    config: dict[str, Any]
    result: dict[str, Any]  # result.json; empty where there is none


def main(arguments: list[str] | None = None) -> None:
    """l2d evaluate RUN KEY=VALUE ..."""
    parser = Arguments(
        "l2d evaluate",
        usage="l2d evaluate [--config-dir DIR] RUN [KEY=VALUE ...]",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or the weights in it")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="changes, out=FILE, trust=true")
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
        evaluate_run(run, changes, options.config_dir, Path(own.get("out") or run.folder / "evaluation.json"))


def find_run(path: str, trust: bool = False) -> Run:
    """The run in a folder, or the one whose weights these are. Only with `trust` may it name code that is not l2d's own."""
    given = Path(path)
    weights = None if given.is_dir() else given
    folder = given if weights is None else given.parent
    if not any((folder / name).is_file() for name in (*WEIGHTS, OUTCOME)) or (weights and not weights.is_file()):
        raise UserError(
            f"{path} has no weights; give the folder of a run, or its model.safetensors or checkpoint.pt, with its "
            "config.yaml beside it."
        )
    run = Run(folder, weights, saved_config(folder), checked_result(folder) or {})
    if not trust:
        refuse_foreign_code(run)
    refuse_edited(run)
    return run


def saved_config(folder: Path) -> dict[str, Any]:
    """The config.yaml of a run as plain values, those of version 0.1 with today's keys."""
    file = folder / "config.yaml"
    saved = OmegaConf.to_container(checked_config(folder), resolve=False)  # a run writes it resolved
    groups = {"dataset", "experts", "backbone", "loss", "trainer"}
    if not isinstance(saved, dict) or not all(isinstance(saved.get(group), dict) for group in groups):
        raise UserError(f"{file} is not the config of a run: it must have {', '.join(sorted(groups))}.")
    evaluation = saved.get("evaluation")
    if isinstance(evaluation, dict) and "holdout" in evaluation:
        saved["held_out"] = evaluation.pop("holdout")
        evaluation["metrics"] = []
    return {str(key): value for key, value in saved.items()}


def changed(run: Run, changes: list[str], config_dirs: Folders) -> tuple[DictConfig, set[str]]:
    """The saved setting with `changes`, and the groups they touch. A group's name takes that choice as `l2d train`
    composes it, any other key a value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(changes)
    for change in parsed:
        if change.is_add() or change.is_delete() or change.is_sweep_override():
            raise UserError(f"{change.input_line} is not possible here; give key=value.")
    known = group_files(config_dirs)
    groups = [change for change in parsed if change.key_or_group in known]
    composed = compose([str(change.input_line) for change in groups], config_dirs)
    chosen = {change.key_or_group: composed[change.key_or_group] for change in groups}
    if "experts" in chosen and "num" in chosen["experts"]:
        chosen["experts"].num = run.config["experts"].get("num")  # the weights have this many columns
    defaults = {str(key): value for key, value in composed.items()}  # for settings that the run did not have yet
    trainer = {"trainer": {**composed.trainer, **run.config["trainer"]}}
    cfg = DictConfig(defaults | run.config | trainer | chosen)
    if "pretrained" in cfg.backbone:
        cfg.backbone.pretrained = False  # nothing to download: the weights come from the file
    OmegaConf.set_struct(cfg, True)
    for change in parsed:
        if change not in groups:
            try:
                OmegaConf.update(cfg, change.key_or_group, change.value(), merge=False)  # {a: 1} is the whole value
            except ValueError as error:  # a name below a list
                raise UserError(f"{change.input_line}: there is no setting {change.key_or_group}.") from error
    cfg.init, cfg.freeze = None, []
    check(cfg)
    return cfg, {_touched(str(change.key_or_group)) for change in parsed}


def _touched(key: str) -> str:
    """The group of a key; what asking costs is no part of the experts that answered."""
    return "costs" if key == "experts.costs" else key.partition(".")[0]


def evaluate_run(run: Run, changes: list[str], config_dirs: Folders, out: Path) -> dict[str, Any]:
    """Evaluate a run with some settings changed; print the metrics and write them to `out`."""
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
    result = {
        **evaluated.result,
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
    return result


def from_weights(cfg: DictConfig, run: Run, touched: set[str]) -> "Evaluated":
    """Load the weights, predict the test set of the setting and evaluate it."""
    from l2d.data import Loader
    from l2d.evaluation.evaluator import Known, evaluate, predict_splits
    from l2d.place import Place, Ranks
    from l2d.systems import load_system
    from l2d.task import load_task

    ranks = Ranks()
    if ranks.count > 1:
        raise UserError("l2d evaluate works in one process; start it without torchrun.")
    path = run.weights or next((run.folder / name for name in WEIGHTS if (run.folder / name).is_file()), None)
    if path is None:
        raise UserError(
            f"{run.folder} has no weights, which this needs; its kept outcome answers evaluation=... and rule=... alone."
        )
    weights = trained_weights(path, run)
    same_data = not touched & {"dataset", "seed"}
    if same_data:
        refuse_other_data(cfg, run)
    else:
        cfg.held_out = 0  # held out is only what the weights are known not to have been trained on
    place = Place.open(cfg.trainer, cfg.seed, ranks)
    task = matched(load_task(cfg), weights, path)
    system = load_system(cfg, task)
    try:
        system.load_state_dict(weights.tensors)
    except RuntimeError as error:
        difference = str(error).splitlines()[1:2] or [str(error)]
        here = f"{task.num_classes} classes and {task.num_experts} experts"
        raise UserError(
            f"{path} does not fit backbone={cfg.backbone.name} with {here}: {difference[0].strip()}"
        ) from error
    place = place.take(system, cfg.trainer)
    loaders = {
        name: Loader(split, place, cfg.trainer.batch_size, cfg.seed)
        for name, split in task.splits().items()
        if name != "train"
    }
    return evaluate(cfg, system, predict_splits(system, loaders, cfg.seed, settle=False), Known.of(task))


def trained_weights(path: Path, run: Run) -> "Weights":
    """The tensors in a run's weights or checkpoint, and the names of the classes and experts they were trained for."""
    from l2d.systems.weights import Weights, read_weights
    from l2d.training.checkpoint import read_checkpoint

    if path.name.startswith("checkpoint"):
        state = read_checkpoint(path)
        weights = Weights(state["system"], {"fingerprint": state["fingerprint"]})
    else:
        weights = read_weights(path)
    theirs, ours = weights.facts.get("fingerprint"), run.result.get("fingerprint")
    if (
        theirs and not ours and "data" in weights.facts and not run.config.get("init")
    ):  # a file and its config.yaml alone
        ours = eight_digits(identity(DictConfig(run.config), weights.facts["data"]))
    if theirs and ours and theirs != ours:
        raise UserError(
            f"{path} holds the weights of another run than the config.yaml beside it; restore the right ones."
        )
    experts = [expert["name"] for expert in run.result.get("experts") or []]
    recorded = {"class_names": run.result.get("class_names"), "expert_names": experts or None}
    return weights._replace(facts={name: value for name, value in recorded.items() if value} | weights.facts)


def matched(task: "Task", weights: "Weights", path: Path) -> "Task":
    """The task with its classes and experts in the order that the weights were trained for, matched by name."""
    classes, experts = weights.facts.get("class_names"), weights.facts.get("expert_names")
    if classes is None:
        notify(f"{path} does not name its classes, so they are taken in the order of this dataset.")
        classes = task.class_names
    experts = experts or task.expert_names
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


def refuse_foreign_code(run: Run) -> None:
    """A run's folder may come from someone else: what its config.yaml names is imported and called."""
    for key, name in named_code({group: run.config.get(group) or {} for group in CALLED}).items():
        raise UserError(
            f"{run.folder / 'config.yaml'} names {key}={name}, which is not part of l2d and would be run; "
            "if you trust this folder, add trust=true."
        )
    if "${" in json.dumps(run.config):
        raise UserError(f"{run.folder / 'config.yaml'} has a value with ${{...}}; a run writes none, so it was edited.")


def refuse_edited(run: Run) -> None:
    """The config.yaml must be the one of the weights, where that is known: not for version 0.1, nor with `init`."""
    digest = (run.result.get("data") or {}).get("digest")
    if digest is None or run.config.get("init"):
        return
    whole = identity(DictConfig(run.config), digest)
    before, now = run.result.get("code") or {}, whole.get("code", {})
    if before != now:
        keys = ", ".join(sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)))
        raise UserError(
            f"The code that {run.folder / 'config.yaml'} names ({keys}) is not what the run was trained with; restore it, or "
            "train again."
        )
    if eight_digits(whole) != run.result.get("fingerprint"):
        raise UserError(
            f"{run.folder / 'config.yaml'} was changed after the run; restore it, and give what should be different as KEY=VALUE."
        )


def refuse_other_data(cfg: DictConfig, run: Run) -> None:
    """The data of an unchanged setting must be those that the run was trained on."""
    recorded = (run.result.get("data") or {}).get("digest")
    if recorded is not None and recorded != data_digest(cfg):
        raise UserError(
            f"The data of {run.folder} are no longer those that it was trained on; to evaluate it on what is there now, "
            "give dataset.root=..."
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


if __name__ == "__main__":
    main()
