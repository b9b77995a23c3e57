"""What a run leaves behind: config.yaml, metrics.csv, result.json, model.pt. Every file is whole or absent."""

import csv
import io
import json
import os
import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

from omegaconf import DictConfig, OmegaConf

import l2d


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, Any]] = []
        path.mkdir(parents=True, exist_ok=True)

    def write_config(self, cfg: DictConfig) -> None:
        self._write("config.yaml", OmegaConf.to_yaml(cfg, resolve=True))

    def add_epoch(self, row: dict[str, Any]) -> None:
        """One row of metrics.csv; lists (such as the share deferred to each expert) stay in result.json."""
        self.rows.append({k: v for k, v in row.items() if not isinstance(v, list)})
        columns = list(dict.fromkeys(k for row in self.rows for k in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        self._write("metrics.csv", text.getvalue())

    def write_result(self, result: dict[str, Any]) -> None:
        self._write("result.json", json.dumps(result, indent=2, allow_nan=False) + "\n")

    def write_weights(self, save: Callable[[BinaryIO], None]) -> None:
        atomic_write(self.path / "model.pt", save)

    def _write(self, name: str, text: str) -> None:
        atomic_write(self.path / name, lambda file: file.write(text.encode()))


def atomic_write(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """The file appears under its name only when it is complete and on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def environment() -> dict[str, Any]:
    """Versions and the commit of the code, so that a result can be repeated."""
    packages = ("torch", "torchvision", "timm", "hydra-core", "omegaconf", "numpy", "pandas")
    versions = {"l2d": l2d.__version__, "python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"versions": versions, "git_commit": _git_commit()}


def _git_commit() -> str | None:
    """The commit this package runs from, with '+changes' if its files differ from it; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        return commit + ("+changes" if _git(root, "status", "--porcelain", "--", "l2d", "conf").strip() else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
    ).stdout
