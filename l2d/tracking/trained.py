"""A trained system on disk: its folder, its setting, and what may be changed when it is used."""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from l2d.compose import compose
from l2d.conf_files import Folders, group_files
from l2d.config import check, plain
from l2d.data.load import data_digest
from l2d.errors import UserError
from l2d.identity import eight_digits, identity
from l2d.source import named_code
from l2d.tracking.read import YAML_LOADER, checked_config, checked_result

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

WEIGHTS = ("model.safetensors", "model.pt", "checkpoint.pt", "checkpoint.previous.pt")
OUTCOME = "outcome.safetensors"
CALLED = ("dataset", "experts", "backbone", "loss", "system", "rule", "evaluation")  # groups whose targets are called
FROM_OUTCOME = {"evaluation", "rule", "costs"}  # groups that can change without predicting again


class Run(NamedTuple):
    """A trained system on disk."""

    folder: Path
    weights: Path | None  # None: the folder as a whole, whose kept outcome may be used
    config: dict[str, Any]
    result: dict[str, Any]  # result.json; empty where there is none


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
    for change in groups:
        if change.key_or_group not in composed:  # an experiment or a task changes other groups
            raise UserError(f"{change.input_line} is not possible here; give the settings that it stands for.")
    chosen = {change.key_or_group: composed[change.key_or_group] for change in groups}
    if "experts" in chosen and "num" in chosen["experts"]:
        chosen["experts"].num = run.config["experts"].get("num")  # the weights have this many columns
    defaults = {str(key): value for key, value in composed.items()}  # for settings that the run did not have yet
    trainer = {"trainer": {**composed.trainer, **run.config["trainer"]}}
    cfg = DictConfig(defaults | run.config | trainer | chosen)
    OmegaConf.set_struct(cfg, True)
    for change in parsed:
        if change not in groups:
            try:
                OmegaConf.update(cfg, change.key_or_group, change.value(), merge=False)  # {a: 1} is the whole value
            except (ValueError, ConfigAttributeError, ConfigKeyError) as error:  # ValueError: a name below a list
                raise UserError(
                    f"{change.input_line}: there is no setting {change.key_or_group}{_those_of(cfg, change)}."
                ) from error
    return _ready(cfg), {_touched(str(change.key_or_group)) for change in parsed}


def run_with(path: str, words: list[str], config_dirs: Folders, allowed: tuple[str, ...]) -> tuple[Run, DictConfig]:
    """The run in `path`, and its setting with these words KEY=VALUE changed; each begins with one of `allowed`, or is trust=true."""
    trust = [word for word in words if word.startswith("trust=")]
    changes = [word for word in words if word not in trust]
    if not set(trust) <= {"trust=true", "trust=false"}:
        raise UserError(f"{trust[-1]} must be true or false.")
    run = find_run(path, trust=trust[-1:] == ["trust=true"])
    for change in changes:
        if not change.startswith(allowed):
            raise UserError(f"{change} cannot be changed here; this takes {', '.join(allowed)}, trust.")
    return run, changed(run, changes, config_dirs)[0]


def setting_of(run: Run) -> DictConfig:
    """The saved setting as it is."""
    absent = {"system", "rule", "init", "freeze"} - run.config.keys()
    if absent:
        raise UserError(
            f"{run.folder / 'config.yaml'} has no {', '.join(sorted(absent))}: it is of an earlier version; train again."
        )
    return _ready(DictConfig(run.config))


def _ready(cfg: DictConfig) -> DictConfig:
    """The setting, checked, for weights that come from a file: nothing is downloaded, nothing is started from."""
    if "pretrained" in cfg.backbone:
        cfg.backbone.pretrained = False
    cfg.init, cfg.freeze = None, []
    check(cfg)
    return cfg


def _those_of(cfg: DictConfig, change: "Override") -> str:
    """The settings of the group that a key is meant to be in, as the end of a sentence."""
    group, _, below = str(change.key_or_group).partition(".")
    here = plain(cfg.get(group)) if below else None
    if not isinstance(here, dict):
        return ""
    known = [f"{group}.{key}" for key in here if key not in ("_target_", "name")]
    return f"; {group}={here.get('name')} has {', '.join(known)}"


def _touched(key: str) -> str:
    """The group of a key; what asking costs is no part of the experts that answered."""
    return "costs" if key == "experts.costs" else key.partition(".")[0]


def refuse_foreign_code(run: Run) -> None:
    """A run's folder may come from someone else: what its config.yaml names is imported and called.

    A name below `l2d.` is not enough: modules of l2d also hold what they import, `importlib.import_module` among it.
    """
    for group in CALLED:
        for key, name in named_code({group: run.config.get(group) or {}}).items():
            if name not in own_code(group):
                raise UserError(
                    f"{run.folder / 'config.yaml'} names {key}={name}, which is no {group} of l2d's own and would be run; "
                    "if you trust this folder, add trust=true."
                )
    if "${" in json.dumps(run.config):
        raise UserError(f"{run.folder / 'config.yaml'} has a value with ${{...}}; a run writes none, so it was edited.")


@cache
def own_code(group: str) -> set[str]:
    """package.module.name of all code that the package's own YAML files name in a group."""
    files = group_files()[group].values()
    contents = [yaml.load(file.read_text(encoding="utf-8"), Loader=YAML_LOADER) for file in files]
    return {name for content in contents for name in named_code(content).values()}


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
