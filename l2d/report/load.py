"""Run folders -> a tidy frame with a row per run. Reads result.json, config.yaml and metrics.csv, nothing else."""

import csv
import hashlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from omegaconf import OmegaConf

from l2d.errors import UserError, notify, visible
from l2d.evaluation.metrics import HEADLINE, REFERENCE
from l2d.identity import choices, settings
from l2d.report.methods import method_name
from l2d.report.metrics import LARGEST, read_metrics, read_number, read_own_metrics, read_whole
from l2d.report.settings import block_settings, differences, method_settings, without_decision
from l2d.tracking.read import YAML_LOADER, checked_result, config_text, epoch_lines

BLOCK = ["dataset", "experts", "setting"]  # one table of the report
CELL = [*BLOCK, "base", "num_experts", "method"]  # one cell of it: what is averaged over seeds
NEWEST_SCHEMA = 2
MAX_EPOCH = 1e9
RESERVED = {
    "setting",
    "trained_with",
    "state",
    "n",
    "seeds",
    "table",
}  # columns that are added later; no metric may have these names


class Run(NamedTuple):
    """One run folder: its row of the frame, and the settings that distinguish its block and its method from others."""

    row: dict[str, Any]
    block: dict[str, Any]
    method: dict[str, Any]


def load_runs(*folders: str | Path) -> pd.DataFrame:
    """A row per run found at or below the folders.

    `method` is the loss's and the system's name, `setting` the other differences between runs of a dataset and pattern, `trained_with`
    those of them that are no part of the decision. Metrics are those of finished runs only; `epoch` is how far a run came. A folder
    that cannot be read is named on stderr and left out.
    """
    runs = [run for path in _run_folders(folders) if (run := _read(path)) is not None]
    if not runs:
        raise UserError(f"No runs found in {', '.join(map(str, folders))}; give the folder that l2d train wrote to.")
    frame = pd.DataFrame([run.row for run in runs])
    frame["setting"] = differences(frame, ["dataset", "experts"], [run.block for run in runs])
    frame["trained_with"] = differences(frame, ["dataset", "experts"], [without_decision(run.block) for run in runs])
    more = differences(frame, ["method"], [run.method for run in runs])
    frame["method"] = [f"{name} {text}".strip() for name, text in zip(frame["method"], more, strict=True)]
    names = [metric.name for metric in (*HEADLINE, *REFERENCE)]
    for name in names:
        frame[name] = frame[name].astype(float) if name in frame else float("nan")
    first = [*CELL, "loss", "seed", "status", *names, "epoch", "epochs"]
    return frame[[*first, *(c for c in frame if c not in first)]].sort_values([*CELL, "seed"], ignore_index=True)


def load_curves(runs: pd.DataFrame) -> pd.DataFrame:
    """Every epoch of every run (metrics.csv), with the columns of its cell."""
    keys = [*CELL, "seed", "folder"]
    cells = runs[keys].to_dict("records")
    rows = [{**row, **cell} for cell in cells for row in _epochs(Path(cell["folder"]))]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=keys)


def _run_folders(folders: tuple[str | Path, ...]) -> list[Path]:
    found: set[Path] = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; give the folder that l2d train wrote to.")
        for name in ("result.json", "config.yaml"):
            found |= {path.parent.resolve() for path in folder.rglob(name)}
    return sorted(path for path in found if found.isdisjoint(path.parents))  # a folder inside a run is not a run


def _read(path: Path) -> Run | None:
    """The run in one folder; None, with a notice, if it cannot be read."""
    file = path / "config.yaml"
    try:
        str(path).encode()  # a table cannot hold a name that is not UTF-8
        config = _visible(yaml.load(config_text(path), Loader=YAML_LOADER))
        chosen = choices(config)
        file = path / "result.json"
        result = _visible(checked_result(path) or {"status": "partial"})
        if result.get("schema_version", 1) > NEWEST_SCHEMA:
            raise ValueError(f"schema_version={result['schema_version']} is newer than {NEWEST_SCHEMA}; update l2d")
        chosen |= {key: value for key, value in (result.get("choices") or {}).items() if value is not None}
        row = _row(path, result, config, chosen)
        return Run(row, block_settings(config, result), method_settings(config, result, chosen))
    except UserError as error:
        notify(f"{error} Its run is left out.")
    except Exception as error:  # of any class: one broken folder must not hide the others
        reason = " ".join(str(error).split()) or type(error).__name__
        notify(f"{file} cannot be read, so its run is left out: {reason[:300]}")
    return None


def _row(path: Path, result: dict[str, Any], config: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    epochs = _epochs(path)
    num_experts = chosen.get("num_experts") or len(result.get("experts") or [])
    if not num_experts:
        raise ValueError("it does not say how many experts there were")
    named = len(result.get("experts") or [])
    if named and named != num_experts:
        raise ValueError(f"choices.num_experts is {num_experts}, and it names {named} experts")
    error = result.get("error")
    row = {
        **{
            key: str(chosen.get(key) or "") for key in ("dataset", "experts", "backbone", "loss", "formulation", "base")
        },
        **{key: str(chosen.get(key) or "") for key in ("system", "optim")},
        "method": method_name(chosen, config),
        "num_experts": read_whole(num_experts, "num_experts"),
        "seed": read_whole(result.get("seed", chosen.get("seed", 0)), "seed"),
        "status": str(result["status"]),
        **{f"bayes_{k}": read_number(v, f"bayes.{k}") for k, v in (result.get("bayes") or {}).items()},
        "epoch": int(epochs[-1]["epoch"]) if epochs else 0,
        "epochs": read_number(config["trainer"].get("epochs"), "trainer.epochs"),
        "regret": _regret(result),
        "seconds": read_number(result.get("seconds"), "seconds"),
        "fingerprint": str(result.get("fingerprint") or _fingerprint(config)),
        "error": None if error is None else str(error),
        **{key: result.get(key) for key in ("device", "precision", "parameters", "git_commit")},
        "versions": " ".join(f"{name} {version}" for name, version in (result.get("versions") or {}).items()),
        "folder": str(path),
    }
    own = read_own_metrics(result.get("own_metrics"))
    metrics = read_metrics(result.get("metrics"), own) if row["status"] == "finished" else {}
    renamed = {metric["name"]: f"own_{metric['name']}" for metric in own if metric["name"] in {*row, *RESERVED}}
    own = [{**metric, "name": renamed.get(metric["name"], metric["name"])} for metric in own]
    return {**row, **{renamed.get(k, k): v for k, v in metrics.items()}, "own_metrics": json.dumps(own)}


def _regret(result: dict[str, Any]) -> float:
    """The expected excess over the best achievable error, from evaluation=full; NaN where it is not known.

    One that cannot be read is named where the figures of its parts are drawn.
    """
    try:
        return read_number((result.get("evaluation") or {})["regret"]["total"], "evaluation.regret.total")
    except (KeyError, TypeError, ValueError):
        return math.nan


def _fingerprint(config: dict[str, Any]) -> str:
    """A fingerprint of the settings, for a run without result.json; the data on disk are not read."""
    return hashlib.sha256(json.dumps(settings(OmegaConf.create(config)), sort_keys=True).encode()).hexdigest()[:8]


def _epochs(path: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv as numbers, NaN where a cell is none or out of range; none where the file is absent, empty or cut off."""
    try:
        header, *lines = csv.reader(epoch_lines(path), strict=True)
    except (OSError, ValueError, csv.Error):
        return []
    if "epoch" not in header or any(len(line) > len(header) for line in lines):
        return []
    rows = [dict(zip(header, map(_number, line), strict=False)) for line in lines if line]
    return [row for row in rows if 0 <= row.get("epoch", math.nan) <= MAX_EPOCH]


def _number(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if abs(value) <= LARGEST else math.nan


def _visible(tree: Any) -> Any:
    """The tree with every string as `visible` gives it: names are shown in tables, figures, files and on the terminal."""
    if isinstance(tree, dict):
        return {visible(key) if isinstance(key, str) else key: _visible(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_visible(value) for value in tree]
    return visible(tree) if isinstance(tree, str) else tree
