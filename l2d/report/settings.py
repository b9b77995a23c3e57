"""The settings that distinguish runs: two runs are averaged as seeds of one cell only if these are equal."""

import json
from functools import cache
from typing import Any

import pandas as pd
import yaml
from omegaconf import OmegaConf

from l2d.conf_files import group_files
from l2d.config import flatten, plain
from l2d.identity import FREE_GROUPS, FREE_KEYS, without_neutral
from l2d.tracking.read import YAML_LOADER

# The decision rule is applied after training, so it is not part of a run's identity; the metrics depend on it.
NOT_COMPARED = (FREE_GROUPS - {"rule"}) | {"seed", "loss", "system"}
KEYS_NOT_COMPARED = {**FREE_KEYS, "trainer": FREE_KEYS["trainer"] | {"eval_every"}, "experts": {"num"}}
# Settings that version 0.1 did not have, with the values that it used.
VERSION_1: dict[str, Any] = {
    "rule": {"_target_": "l2d.decisions.best", "name": "best", "loss_matrix": None, "available": None, "absence": None},
    "init": None,
    "freeze": [],
}


def block_settings(config: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Everything that determines the result, except the method, the number of experts and the seed; flat."""
    older = {**VERSION_1, "held_out": (config.get("evaluation") or {}).get("holdout", 0)}
    flat: dict[str, Any] = {}
    for group, value in {**older, **config}.items():
        if group not in NOT_COMPARED:
            kept = _without(value, KEYS_NOT_COMPARED.get(group, set()))
            flat |= flatten({group: without_neutral(kept) if group == "experts" and isinstance(kept, dict) else kept})
    digest = (result.get("data") or {}).get("digest")  # absent in older runs, empty where data follow from the settings
    return {**flat, **_code(result, method=False), "data": str(digest)[:6] if digest else "unknown"}


def without_decision(settings: dict[str, Any]) -> dict[str, Any]:
    """Flat settings without those that a finished run can be decided again under."""
    return {key: value for key, value in settings.items() if not key.startswith(("rule.", "experts.costs"))}


def method_settings(config: dict[str, Any], result: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """The settings in which two runs of a method of the same name may differ; flat."""
    system = complete("system", str(chosen.get("system") or "score"), config)
    system = {f"system.{key}": value for key, value in system.items() if key != "_target_"}
    return {**complete("loss", str(chosen.get("loss")), config), **system, **_code(result, method=True)}


@cache
def packaged(group: str) -> dict[str, dict[str, Any]]:
    """name -> settings of every file in the package's conf/GROUP, unresolved."""
    files = {}
    for name, path in group_files()[group].items():
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=YAML_LOADER)
        files[name] = _without(content.get(group, content), {"name", "defaults"})
    return files


def complete(group: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """What the config says of a group, flat; keys that a run of an older version did not have are as in the file of its name."""
    return {**_resolved(group, name, config), **flatten(_without(config.get(group) or {}, {"name"}))}


def overridden(group: str, name: str, settings: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """The `key=value`s in which flat settings differ from the package's file of this name."""
    file = _resolved(group, name, config)
    keys = dict.fromkeys([*settings, *file])
    return [f"{k}={_text(settings.get(k))}" for k in keys if _text(settings.get(k)) != _text(file.get(k))]


def _resolved(group: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """The package's file of this name in a config, flat; empty where there is none."""
    file = packaged(group).get(name, {})
    if any("${" in str(value) for value in flatten(file).values()):
        file = plain(OmegaConf.create({**config, group: file})[group])
    return flatten(file)


def differences(frame: pd.DataFrame, within: list[str], settings: list[dict[str, Any]]) -> list[str]:
    """For each run the `key=value`s that differ among the runs with the same `within`; empty where nothing differs."""
    labels = [""] * len(frame)
    for rows in frame.groupby(within).indices.values():
        keys = dict.fromkeys(key for i in rows for key in settings[i])
        varying = [key for key in keys if len({_text(settings[i].get(key)) for i in rows}) > 1]
        for i in rows:
            labels[i] = " ".join(f"{key}={_text(settings[i].get(key))}" for key in varying)
    return labels


def _code(result: dict[str, Any], method: bool) -> dict[str, str]:
    """The versions of a user's own code: of the loss and the system, or of everything else."""
    digests = (result.get("code") or {}).items()
    return {f"{key}.code": str(digest)[:6] for key, digest in digests if key.startswith(("loss.", "system.")) == method}


def _without(value: Any, keys: set[str]) -> Any:
    """A group without these keys; a value that is not a group is returned unchanged."""
    return {k: v for k, v in value.items() if k not in keys} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    """As a user would type it; 1.0 and 1 are the same setting."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)
