"""Run folders -> a tidy frame with a row per run. Reads result.json, config.yaml and metrics.csv, nothing else."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import OmegaConf

from l2d.config import flatten
from l2d.errors import UserError, notify
from l2d.identity import FREE_GROUPS, FREE_KEYS, choices, fingerprint

METRICS = ("system_error", "coverage", "classifier_accuracy")
BLOCK = ["dataset", "experts", "setting"]  # one table of the report
CELL = [*BLOCK, "base", "num_experts", "method"]  # one cell of it: what is averaged over seeds
_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_runs(*folders: str | Path) -> pd.DataFrame:
    """A row per run found at or below the folders.

    `method` is the formulation as tables show it, `setting` what else tells runs of a dataset and pattern apart.
    Metrics are those of finished runs only; `epoch` is how far a run came. What cannot be read is named and left out.
    """
    runs = [run for path in _run_folders(folders) if (run := _read(path)) is not None]
    if not runs:
        raise UserError(f"No runs found in {', '.join(map(str, folders))}; give the folder that l2d-train wrote to.")
    frame = pd.DataFrame([row for row, _ in runs])
    configs = [config for _, config in runs]
    frame["setting"] = _labels(frame, ["dataset", "experts"], [_setting(config) for config in configs])
    losses = [flatten(_without(config.get("loss", {}), {"name"})) for config in configs]
    extra = _labels(frame, ["formulation", "base"], losses)
    frame["method"] = [f"{name} {more}".strip() for name, more in zip(frame["formulation"], extra, strict=True)]
    for metric in METRICS:
        frame[metric] = frame[metric].astype(float) if metric in frame else float("nan")
    first = [*CELL, "loss", "seed", "status", *METRICS, "epoch", "epochs"]
    return frame[[*first, *(c for c in frame if c not in first)]].sort_values([*CELL, "seed"], ignore_index=True)


def load_curves(runs: pd.DataFrame) -> pd.DataFrame:
    """Every epoch of every run (metrics.csv), beside the columns that say which cell it belongs to."""
    keys = [*CELL, "seed", "folder"]
    read = [(run, _metrics(Path(run.folder))) for run in runs[keys].itertuples(index=False)]
    curves = [rows.assign(**run._asdict()) for run, rows in read if rows is not None and len(rows)]
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=keys)


def _run_folders(folders: tuple[str | Path, ...]) -> list[Path]:
    found: set[Path] = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; give the folder that l2d-train wrote to.")
        for name in ("result.json", "config.yaml"):
            found |= {path.parent.resolve() for path in folder.rglob(name)}
    return sorted(path for path in found if found.isdisjoint(path.parents))  # what a run keeps below it is no run


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The row of one run and its config; None, with a warning, if the folder cannot be read."""
    file = path / "config.yaml"
    try:
        config = yaml.load(file.read_text(), Loader=_YAML)
        chosen = choices(OmegaConf.create(config))
        file = path / "result.json"
        result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"status": "partial"}
        return _row(path, result, config, {**chosen, **(result.get("choices") or {})}), config
    except Exception as error:  # whatever is wrong with one folder must not hide the others
        reason = " ".join(str(error).split()) or type(error).__name__
        notify(f"{file} cannot be read, so its run is left out: {reason}")
        return None


def _row(path: Path, result: dict, config: dict, chosen: dict) -> dict[str, Any]:
    status = str(result["status"])
    metrics = result.get("metrics") or {}
    if status == "finished" and not all(isinstance(metrics.get(m), int | float) for m in METRICS):
        raise ValueError(f"it says finished but lacks one of {', '.join(METRICS)}")
    rows = _metrics(path)
    num_experts = chosen.get("num_experts") or len(result.get("experts") or []) or None
    if num_experts is None:
        raise ValueError("it does not say how many experts there were")
    return {
        **{key: value for key, value in chosen.items() if key != "seed"},
        "formulation": str(chosen.get("formulation") or chosen["loss"]),
        "base": str(chosen.get("base") or "own"),
        "num_experts": int(num_experts),
        "seed": int(result.get("seed", chosen.get("seed", 0))),
        "status": status,
        **(metrics if status == "finished" else {}),
        **{f"bayes_{key}": value for key, value in (result.get("bayes") or {}).items()},
        "epoch": int(rows["epoch"].iloc[-1]) if rows is not None and len(rows) else 0,
        "epochs": config.get("trainer", {}).get("epochs"),
        "seconds": result.get("seconds"),
        "fingerprint": result.get("fingerprint") or fingerprint(OmegaConf.create(config)),
        "error": result.get("error"),
        **{key: result.get(key) for key in ("device", "precision", "parameters", "git_commit")},
        "versions": " ".join(f"{name} {version}" for name, version in (result.get("versions") or {}).items()),
        "folder": str(path),
    }


def _metrics(path: Path) -> pd.DataFrame | None:
    try:
        rows = pd.read_csv(path / "metrics.csv")
    except (OSError, ValueError):  # absent, empty, or cut off
        return None
    return rows if "epoch" in rows else None


def _setting(config: dict) -> dict[str, Any]:
    """Everything that determines the result, but for the loss, the number of experts and the seed."""
    kept = {group: value for group, value in config.items() if group not in {*FREE_GROUPS, "seed", "loss"}}
    dropped = FREE_KEYS | {"experts": FREE_KEYS.get("experts", set()) | {"num"}}
    return flatten({group: _without(value, dropped.get(group, set())) for group, value in kept.items()})


def _without(settings: Any, keys: set[str]) -> Any:
    """A group without these keys; a setting that is no group stays as it is."""
    return {k: v for k, v in settings.items() if k not in keys} if isinstance(settings, dict) else settings


def _labels(frame: pd.DataFrame, within: list[str], settings: list[dict[str, Any]]) -> list[str]:
    """For each run the `key=value`s that differ among the runs with the same `within`; empty where nothing differs."""
    labels = [""] * len(frame)
    for rows in frame.groupby(within).indices.values():
        keys = dict.fromkeys(key for i in rows for key in settings[i])
        varying = [key for key in keys if len({_text(settings[i].get(key)) for i in rows}) > 1]
        for i in rows:
            labels[i] = " ".join(f"{key}={_text(settings[i].get(key))}" for key in varying)
    return labels


def _text(value: Any) -> str:
    """As a user would type it; 1.0 and 1 are the same setting."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)
