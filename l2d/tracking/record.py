"""What a run leaves behind: config.yaml, metrics.csv, result.json, model.pt. Every file is whole or absent."""

import csv
import fcntl
import io
import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import l2d
from l2d.config import fingerprint, identity
from l2d.errors import UserError, sentence

MANIFESTS = ".sweeps"  # below the output folder: one file per sweep, which lists its cells
HEADLINE = ("system_error", "coverage", "classifier_accuracy")


class InUse(UserError):
    """Another process is at work on this run."""


class RunFolder:
    """The folder of one run, held by one process at a time: `with RunFolder(path, cfg) as folder`.

    A failure inside is recorded in result.json; a setting that is refused before training leaves nothing behind.
    """

    def __init__(self, path: Path, cfg: DictConfig):
        self.path, self.cfg = path, cfg
        self.rows: list[dict[str, Any]] = []
        self.started = False

    def __enter__(self) -> "RunFolder":
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock()
        try:
            self._refuse_another_run()
        except UserError:
            self.lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.started and error is not None:
            status = (
                {"status": "failed", "error": sentence(error)}
                if isinstance(error, Exception)
                else {"status": "interrupted"}
            )
            with suppress(UserError):  # the disk may be what failed
                self.write_result(status)
        if not (self.path / "config.yaml").exists():
            for name in (".lock", "train.log"):  # a library may have logged something before the refusal
                (self.path / name).unlink(missing_ok=True)
            remove_if_empty(self.path)
        self.lock.close()

    def finished(self) -> dict[str, Any] | None:
        """The result of this very setting, if it was completed before."""
        result = read_result(self.path)
        return result if result and result.get("status") == "finished" else None

    def start(self, facts: dict[str, Any], resumed: bool) -> None:
        """From here on the folder belongs to this run: an older attempt's files go, unless it is continued."""
        self.facts, self.started = facts, True
        for name in ("result.json",) if resumed else ("result.json", "metrics.csv", "model.pt"):
            (self.path / name).unlink(missing_ok=True)
        self._write("config.yaml", OmegaConf.to_yaml(self.cfg, resolve=True))
        self.write_result({"status": "running"})

    def add_epoch(self, row: dict[str, Any]) -> None:
        """One row of metrics.csv; lists (such as the share deferred to each expert) stay in result.json."""
        self.rows.append({k: v for k, v in row.items() if not isinstance(v, list)})
        columns = list(dict.fromkeys(k for row in self.rows for k in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        last = row["epoch"] == self.cfg.trainer.epochs  # until then a checkpoint holds the rows too
        self._write("metrics.csv", text.getvalue(), durable=last)

    def write_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """result.json: the outcome, behind what was chosen and where it ran."""
        whole = {**result, **self.facts, "fingerprint": fingerprint(self.cfg)}
        self._write("result.json", json.dumps(whole, indent=2, allow_nan=False) + "\n")
        return whole

    def write_weights(self, save: Callable[[BinaryIO], None]) -> None:
        atomic_write(self.path / "model.pt", save)

    def _write(self, name: str, text: str, durable: bool = True) -> None:
        atomic_write(self.path / name, lambda file: file.write(text.encode()), durable)

    def _lock(self) -> None:
        """The kernel drops the lock when its process dies, so a stale one never blocks."""
        self.lock = open(self.path / ".lock", "a+")  # noqa: SIM115  held for as long as the run
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.lock.seek(0)
            owner = self.lock.read().strip() or "another process"
            self.lock.close()
            raise InUse(f"{self.path} is in use by {owner}; wait for it, or stop it first.") from error
        self.lock.truncate(0)
        self.lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        self.lock.flush()

    def _refuse_another_run(self) -> None:
        saved = self.path / "config.yaml"
        if not saved.exists():
            return
        theirs, ours = _flat(identity(DictConfig(OmegaConf.load(saved)))), _flat(identity(self.cfg))
        different = sorted(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
        if different:
            raise UserError(
                f"{self.path} holds another run, which differs in {', '.join(different)}; choose another folder, or leave "
                "hydra.run.dir alone: every setting has a folder of its own."
            )


class Spectator(RunFolder):
    """The folder as the other ranks of a distributed run see it: they write nothing."""

    def __enter__(self) -> "Spectator":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def start(self, facts: dict[str, Any], resumed: bool) -> None:
        self.facts = facts

    def _write(self, name: str, text: str, durable: bool = True) -> None:
        pass

    def write_weights(self, save: Callable[[BinaryIO], None]) -> None:
        pass


def read_result(folder: Path) -> dict[str, Any] | None:
    """A folder's result.json; None where there is none that can be read."""
    try:
        result = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def headline(metrics: dict[str, Any]) -> str:
    return "  ".join(f"{key} {metrics[key]:.2f}" for key in HEADLINE)


def sweep_progress() -> str:
    """'[3 of 60, 12 min left]' inside a sweep, '' outside one; the time left follows from the cells finished since its start."""
    found = sweep_manifest()
    if found is None:
        return ""
    _, manifest = found
    todo = [Path(cell["folder"]) for cell in manifest["cells"] if not cell["skipped"]]
    fresh = sum(_ended_since(folder, manifest["started"]) for folder in todo)
    ended, total = len(manifest["cells"]) - len(todo) + fresh, len(manifest["cells"])
    left = (time.time() - manifest["started"]) / fresh * (total - ended) if fresh else None
    return f"[{ended} of {total}" + (f", {duration(left)} left]" if left else "]")


def sweep_manifest() -> tuple[Path, dict[str, Any]] | None:
    """The file that lists the cells of the sweep this run belongs to, and its content; None outside a sweep.

    Several sweeps may list the same cell: the one that was started last is meant.
    """
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    settings, found = HydraConfig.get(), []
    for path in Path(settings.runtime.cwd, settings.sweep.dir, MANIFESTS).glob("*.json"):
        with suppress(OSError, ValueError):
            manifest = json.loads(path.read_text())
            if any(cell["folder"] == settings.runtime.output_dir for cell in manifest["cells"]):
                found.append((path, manifest))
    return max(found, key=lambda entry: entry[1]["started"], default=None)


def _ended_since(folder: Path, moment: float) -> bool:
    """Whether a run there came to an end after this moment: an older result may be a failure that is tried again."""
    result = read_result(folder)
    return result is not None and result["status"] != "running" and (folder / "result.json").stat().st_mtime >= moment


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def atomic_write(path: Path, write: Callable[[BinaryIO], Any], durable: bool = True) -> None:
    """The file appears under its name only when it is complete, and on the disk unless it may be lost with the power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); what was there before is whole.") from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_if_empty(folder: Path) -> None:
    """Take back the folders that were made for a run that never started."""
    start = Path(HydraConfig.get().runtime.cwd) if HydraConfig.initialized() else Path.cwd()
    for path in (folder, *folder.parents):
        if path == start:  # the user's own folder, however empty
            return
        try:
            path.rmdir()
        except OSError:
            return


@cache
def environment() -> dict[str, Any]:
    """Versions and the commit of the code, so that a result can be repeated: as they were when this process loaded it."""
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
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {k: v for key, sub in tree.items() for k, v in _flat(sub, f"{prefix}.{key}" if prefix else key).items()}
