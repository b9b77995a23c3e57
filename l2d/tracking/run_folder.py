"""The files of a run: config.yaml, metrics.csv, result.json, model.safetensors. Every file is complete or absent."""

import csv
import glob
import io
import json
import os
import platform
import socket
import subprocess
import time
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import l2d
from l2d.atomic import TEMPORARY, append, atomic_write, obstacle, read_text
from l2d.config import check, flatten
from l2d.errors import UserError, notify, sentence
from l2d.identity import fingerprint, settings
from l2d.tensors import pack
from l2d.tracking.read import HEADLINE, checked_config, checked_manifest, checked_result, read_result

if TYPE_CHECKING:  # torch takes a second to import, and most commands do not need it
    from torch import Tensor

SCHEMA_VERSION = 2  # of result.json; files without the key are version 1
MANIFESTS = ".sweeps"  # below the output folder: one file per sweep, which lists its cells
SIGNS_OF_LIFE = ("result.json", "metrics.csv", "checkpoint.pt")  # files that a run writes while it lasts
LOCK = ".lock"
OWNER = ".owner"  # says who holds the lock; the lock's own file may be emptied or removed by filelock
APPENDED = [LOCK, "train.log", "metrics.csv"]  # opened where they are: a link might lead out of the folder
FILES = [
    "config.yaml", "result.json", "model.safetensors", "model.pt", "outcome.safetensors", OWNER, "checkpoint.pt", "checkpoint.previous.pt",
]  # replaced as a whole, also if they are links  # fmt: skip
_ENDED: set[tuple[Path, float]] = (
    set()
)  # what `_ended_since` knows: the many cells of a sweep are not read for each of them
LOCK_WAIT_S = 1  # `in_use` holds the lock for a moment, which must not stop a run from starting


class InUse(UserError):
    """Another process holds this run's folder."""


class RunFolder:
    """The folder of one run, held by one process at a time: `with RunFolder(path, cfg) as folder`.

    A failure inside is recorded in result.json; a setting that is rejected before training leaves no files.
    """

    def __init__(self, path: Path, cfg: DictConfig):
        self.path, self.cfg = path, cfg
        self.rows: list[dict[str, Any]] = []
        self.columns: list[str] = []  # of metrics.csv, as far as this process has written it
        self.started = self.completed = False
        self.begun, self.attempts, self.seconds_before = time.monotonic(), 1, 0.0

    def __enter__(self) -> "RunFolder":
        self.path.mkdir(parents=True, exist_ok=True)
        for name in (*APPENDED, *FILES):
            if what := obstacle(self.path / name, links=name not in APPENDED):
                raise UserError(f"{self.path / name} is {what}, and a run keeps a file there; remove it.")
        self._lock()
        try:
            with suppress(UserError):  # the lock works without it
                self._write(OWNER, f"process {os.getpid()} on {socket.gethostname()}", durable=False)
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.started and not self.completed and error is not None:
            status = (
                {"status": "failed", "error": sentence(error)}
                if isinstance(error, Exception)
                else {"status": "interrupted"}
            )
            with suppress(UserError):  # the disk may be what failed
                self.write_result(status)
        rejected = not (self.path / "config.yaml").exists()
        if rejected:
            (self.path / "train.log").unlink(missing_ok=True)  # a library may have logged before the error
            with suppress(PermissionError):  # Windows: an open file cannot be removed; filelock does when it is closed
                (self.path / LOCK).unlink(missing_ok=True)
        self._unlock()
        if rejected:
            remove_if_empty(self.path)

    @cached_property
    def fingerprint(self) -> str:
        """Of the setting, its data and its code, as they are when the run begins."""
        return fingerprint(self.cfg)

    def finished(self) -> dict[str, Any] | None:
        """The result of this setting if it was completed before and is not forced, else None; a UserError for settings that
        cannot work, a folder that holds another run, and a result that is not whole. It only reads, so a sweep may ask too."""
        self._refuse_another_run()
        check(self.cfg)
        result = read_result(self.path)
        if self.cfg.force or not result or result.get("status") != "finished":
            return None
        return result

    def start(self, facts: dict[str, Any], resumed: bool) -> None:
        """From here on the folder belongs to this run: the files of an earlier attempt are removed, unless `resumed`."""
        self.facts, self.started = facts, True
        self._count_earlier_attempts()
        self.write_result({"status": "running"})  # first: a run that is killed from here on is still known as this one
        old = [] if resumed else ["metrics.csv", "model.pt", "model.safetensors", "outcome.safetensors"]
        for path in (*(self.path / name for name in old), *self.path.glob(TEMPORARY)):
            path.unlink(missing_ok=True)
        self._point_out_older_runs()
        self._write("config.yaml", OmegaConf.to_yaml(self.cfg, resolve=True))

    def add_epoch(self, row: dict[str, Any], last: bool) -> None:
        """One row of metrics.csv; lists (such as the share deferred to each expert) stay in result.json.

        The row is appended. The whole file is written for an attempt's first row, for a new column, and for the last row.
        """
        row = {k: v for k, v in row.items() if not isinstance(v, list)}
        self.rows.append(row)
        kept = bool(self.columns) and (self.path / "metrics.csv").is_file()
        whole = last or not kept or not row.keys() <= set(self.columns)
        if whole:
            self.columns = list(dict.fromkeys(k for row in self.rows for k in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        if whole:
            writer.writeheader()
            writer.writerows(self.rows)
            self._write("metrics.csv", text.getvalue(), durable=last)  # until then a checkpoint holds the rows too
        else:
            writer.writerow(row)
            self._append("metrics.csv", text.getvalue())

    def write_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write result.json and return its content: the schema version, `result`, the facts, what it took and the fingerprint."""
        took = {"attempts": self.attempts, "seconds": self.seconds_before + time.monotonic() - self.begun}
        whole = {"schema_version": SCHEMA_VERSION, **result, **self.facts, **took, "fingerprint": self.fingerprint}
        self._write("result.json", json.dumps(whole, indent=2, allow_nan=False) + "\n")
        self.completed = result["status"] == "finished"  # from here on nothing replaces it
        return whole

    def replace_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write the result.json and config.yaml of a finished run again, reported under other settings."""
        self._write("result.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
        self._write("config.yaml", OmegaConf.to_yaml(self.cfg, resolve=True))
        return result

    def write_weights(self, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
        """Write model.safetensors, which says of which run it is."""
        content = pack(tensors, {**metadata, "fingerprint": json.dumps(self.fingerprint)})
        atomic_write(self.path / "model.safetensors", lambda file: file.write(content))

    def _write(self, name: str, text: str, durable: bool = True) -> None:
        atomic_write(self.path / name, lambda file: file.write(text.encode()), durable)

    def _append(self, name: str, text: str) -> None:
        append(self.path / name, text.encode())

    def _count_earlier_attempts(self) -> None:
        """Attempts at this run that did not finish it."""
        before = read_result(self.path) or {}
        attempts, again = before.get("attempts"), self.cfg.get("force") or self.cfg.get("resume") == "never"
        if isinstance(attempts, int) and before.get("status") != "finished" and not again:
            self.attempts, self.seconds_before = attempts + 1, _seconds_taken(self.path, before)

    def _lock(self) -> None:
        """The kernel releases the lock when its process dies, so a stale lock never blocks."""
        self.lock = FileLock(self.path / LOCK)
        try:
            self.lock.acquire(timeout=LOCK_WAIT_S)
        except (Timeout, FileNotFoundError) as error:  # not found: the owner removed its folder
            raise InUse(f"{self.path} is in use by {self._owner()}; wait for it, or stop it first.") from error
        except OSError as error:
            raise UserError(
                f"{self.path / LOCK} cannot be locked ({error.strerror}); choose an output_dir that can be written."
            ) from error

    def _unlock(self) -> None:
        with suppress(OSError):
            (self.path / OWNER).unlink()
        self.lock.release()

    def _owner(self) -> str:
        try:
            return read_text(self.path / OWNER) or "another process"
        except (OSError, ValueError):
            return "another process"

    def _point_out_older_runs(self) -> None:
        """A run of the same name by version 0.1 is not taken for this one: it does not say on which data it was made."""
        siblings = self.path.parent.glob(f"{glob.escape(self.path.name.rpartition('-')[0])}-????????/result.json")
        older = [
            path.parent
            for path in siblings
            if "schema_version" not in (read_result(path.parent) or {"schema_version": 0})
        ]
        if older:
            notify(
                f"{older[0]} was made by version 0.1, whose results do not say on which data; it is not taken for this run. "
                "`l2d report` shows it all the same."
            )

    def _refuse_another_run(self) -> None:
        saved = self.path / "config.yaml"
        if not saved.exists():
            return
        before = (read_result if self.cfg.get("force") else checked_result)(self.path) or {}
        if before and before.get("schema_version") != SCHEMA_VERSION:
            raise UserError(
                f"{self.path} holds a run of another version of l2d, which cannot be continued; choose another folder, or leave "
                "hydra.run.dir alone."
            )
        theirs, ours = flatten(settings(checked_config(self.path))), flatten(settings(self.cfg))
        different = sorted(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
        if before and not different and before.get("fingerprint") != self.fingerprint:
            different = ["its data, its own code, or the run that it started from"]
        if different:
            raise UserError(
                f"{self.path} holds another run, which differs in {', '.join(different)}; choose another folder, or leave "
                "hydra.run.dir alone: every setting has a folder of its own."
            )


class ReadOnlyFolder(RunFolder):
    """The folder for all ranks but the first: nothing is written."""

    def _append(self, name: str, text: str) -> None:
        pass

    def __enter__(self) -> "ReadOnlyFolder":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def start(self, facts: dict[str, Any], resumed: bool) -> None:
        self.facts = facts

    def _write(self, name: str, text: str, durable: bool = True) -> None:
        pass

    def write_weights(self, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
        pass


def in_use(folder: Path) -> bool:
    """Whether a living process holds the run in this folder."""
    lock = folder / LOCK
    if not lock.exists() or obstacle(lock, links=False):
        return False
    try:
        with FileLock(lock).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # another user's folder: it may be read only
        return (folder / OWNER).exists()


def _seconds_taken(folder: Path, result: dict[str, Any]) -> float:
    """The time of all attempts at a run that is not finished; one that was killed took until its last sign of life."""
    seconds = result.get("seconds")
    if not isinstance(seconds, int | float):
        return 0.0
    if result.get("status") != "running":
        return seconds
    signs = [(folder / name).stat().st_mtime for name in SIGNS_OF_LIFE if (folder / name).exists()]
    return seconds + max(0.0, max(signs) - (folder / "result.json").stat().st_mtime)


def record_death(folder: Path, reason: str) -> None:
    """Record a run as failed whose process was killed, unless it had not begun or another process has the folder by now."""
    if not (folder / LOCK).exists() or obstacle(folder / LOCK, links=False):
        return
    with suppress(OSError, Timeout, UserError), FileLock(folder / LOCK).acquire(timeout=LOCK_WAIT_S):
        result = read_result(folder)
        if result and result.get("status") == "running":
            dead = {"status": "failed", "error": reason, "seconds": _seconds_taken(folder, result)}
            content = json.dumps(result | dead, indent=2) + "\n"
            atomic_write(folder / "result.json", lambda file: file.write(content.encode()))


def headline(metrics: dict[str, Any]) -> str:
    """The headline metrics in one line."""
    return "  ".join(f"{key} {metrics[key]:.2f}" for key in HEADLINE)


def finished_line(folder: Path, headline: str) -> str:
    """What is printed about a run that is not repeated."""
    return f"finished before (force=true runs it again)  {folder}  {headline}"


def sweep_progress() -> str:
    """'[3 of 60, 12 min left]' inside a sweep, '' outside one; the time left follows from the cells finished since its start."""
    found = sweep_manifest()
    if found is None:
        return ""
    _, manifest = found
    todo = [Path(cell["folder"]) for cell in manifest["cells"] if not cell.get("skipped")]
    ended_now = sum(_ended_since(folder, manifest["started"]) for folder in todo)
    ended, total = len(manifest["cells"]) - len(todo) + ended_now, len(manifest["cells"])
    passed = max(0.0, time.time() - manifest["started"])  # the clock may have been set back
    left = passed / ended_now * (total - ended) if ended_now else None
    return f"[{ended} of {total}" + (f", {duration(left)} left]" if left else "]")


def sweep_manifest() -> tuple[Path, dict[str, Any]] | None:
    """The file that lists the cells of the sweep this run belongs to, and its content; None outside a sweep.

    Where several sweeps list the same cell, the one that was started last is returned.
    """
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    settings, found = HydraConfig.get(), []
    for path in Path(settings.runtime.cwd, settings.sweep.dir, MANIFESTS).glob("*.json"):
        with suppress(UserError):  # one that is damaged cannot be the one that this sweep just wrote
            manifest = checked_manifest(path)
            if manifest and any(cell["folder"] == settings.runtime.output_dir for cell in manifest["cells"]):
                found.append((path, manifest))
    return max(found, key=lambda entry: entry[1]["started"], default=None)


def _ended_since(folder: Path, moment: float) -> bool:
    """Whether a run there came to an end after this moment: an older result may be a failure that is tried again."""
    if (folder, moment) not in _ENDED:
        result = read_result(folder)
        if result is None or result["status"] == "running" or (folder / "result.json").stat().st_mtime < moment:
            return False
        _ENDED.add((folder, moment))
    return True


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def remove_if_empty(folder: Path) -> None:
    """Remove the empty folders that were made for a run that never started."""
    start = Path(HydraConfig.get().runtime.cwd) if HydraConfig.initialized() else Path.cwd()
    for path in (folder, *folder.parents):
        if path == start:  # never the working folder, even if it is empty
            return
        try:
            path.rmdir()
        except OSError:
            return


@cache
def environment() -> dict[str, Any]:
    """Versions and the commit of the code, so that a result can be reproduced; read once per process."""
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
