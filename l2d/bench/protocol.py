"""The protocol of a benchmark: which tasks, methods, trials and seeds, and the overrides of each run."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from l2d.compose import quoted
from l2d.conf_files import Folders, group_files
from l2d.errors import UserError

Trial = dict[str, float]  # key -> value, as in {"optim.lr": 0.1}


class Entry(NamedTuple):
    """One run of the benchmark."""

    task: str
    method: str
    trial: Trial
    seed: int
    overrides: list[str]


@dataclass(frozen=True)
class Protocol:
    bench: int  # the version
    size: str  # quick or full
    tasks: dict[str, list[str]]  # name -> overrides
    methods: dict[str, list[str]]
    settings: list[str]  # overrides of every run
    grid: dict[str, list[float]]  # of the trials
    tuning_seeds: list[int]
    seeds: list[int]
    anchor: str
    added: list[str]  # methods that the user added
    words: list[str]  # the user's own overrides of every run: with any, the numbers are those of another benchmark

    def trials(self, words: Sequence[str] = ()) -> list[Entry]:
        """The runs that choose among the trials of every method on every task; `words` are further overrides, of where and how."""
        settings = [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]
        return [
            self._entry(task, method, trial, seed, words)
            for task, method, trial, seed in product(self.tasks, self.methods, settings, self.tuning_seeds)
        ]

    def reported(self, chosen: dict[tuple[str, str], Trial], words: Sequence[str] = ()) -> list[Entry]:
        """The runs that are reported: every task and method with its chosen trial, on other seeds."""
        return [
            self._entry(task, method, trial, seed, words)
            for (task, method), trial in chosen.items()
            for seed in self.seeds
        ]

    def num_runs(self) -> tuple[int, int]:
        """How many runs choose, and how many are reported."""
        pairs = len(self.tasks) * len(self.methods)
        per_pair = len(list(product(*self.grid.values()))) * len(self.tuning_seeds)
        return pairs * per_pair, pairs * len(self.seeds)

    def _entry(self, task: str, method: str, trial: Trial, seed: int, words: Sequence[str]) -> Entry:
        chosen = [f"{key}={value}" for key, value in trial.items()]
        ours = [*self.settings, *self.tasks[task], *self.methods[method], *chosen, f"seed={seed}"]
        return Entry(task, method, trial, seed, replaced(ours, [*self.words, *words]))

    def write(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, content: dict[str, Any]) -> "Protocol":
        return cls(**content)


def replaced(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """Our overrides without those whose key, or whose group, the user's have; then the user's.

    >>> replaced(["backbone=mlp", "backbone.hidden=96", "seed=0"], ["backbone=linear"])
    ['seed=0', 'backbone=linear']
    """
    keys = {word.partition("=")[0].lstrip("+~") for word in theirs}

    def kept(word: str) -> bool:
        key = word.partition("=")[0]
        return key not in keys and key.partition(".")[0] not in keys

    return [*filter(kept, ours), *theirs]


class Chosen(NamedTuple):
    """What the command line chooses."""

    size: str
    tasks: list[str] | None = None  # None: those of the size
    methods: list[str] | None = None
    paths: dict[str, str] = {}  # noqa: RUF012  # real task -> path
    added: list[Path] = []  # noqa: RUF012  # YAML files of methods
    seeds: int | None = None
    config_dirs: Folders = ()
    words: Sequence[str] = ()


def make_protocol(chosen: Chosen) -> Protocol:
    """The protocol of a command line; UserError for names that do not exist."""
    written = yaml.safe_load(files("l2d.bench").joinpath("protocol.yaml").read_text(encoding="utf-8"))
    size, real = written[chosen.size], written["real"]
    unknown = set(chosen.paths) - set(real)
    if unknown:
        raise UserError(f"--data {min(unknown)}=...: the tasks that take a path are {', '.join(real)}.")
    options = group_files([*chosen.config_dirs, *(folder_of(file) for file in chosen.added)])
    embedded = [name for name in options["task"] if name not in real]
    names = size["tasks"] if chosen.tasks is None else chosen.tasks
    tasks = {name: [f"task={name}"] for name in names if name not in real}
    for name in [name for name in names if name in real] + [name for name in chosen.paths if name not in names]:
        if name not in chosen.paths:
            raise UserError(f"The task {name} needs its data: --data {name}=PATH.")
        path = Path(chosen.paths[name]).absolute()
        parts = {"path": path, "folder": path.parent, "name": path.name}
        quoted_parts = {part: quoted(str(value)) for part, value in parts.items()}
        tasks[name] = [f"task={name}", *(word.format(**quoted_parts) for word in real[name])]
    for name in tasks:
        if name not in options["task"]:
            raise UserError(f"--tasks {name} is not a task; choose of {', '.join([*embedded, *real])}.")
    methods = {name: words_of(name, options) for name in (chosen.methods or size["methods"])}
    added = {file.stem: [f"{file.absolute().parent.name}={file.stem}"] for file in chosen.added}
    anchor = written["anchor"]
    methods = {anchor: words_of(anchor, options), **methods, **added}
    seeds = size["seeds"] if chosen.seeds is None else list(range(chosen.seeds))
    return Protocol(
        written["bench"], chosen.size, tasks, methods, written["settings"], written["grid"], written["tuning_seeds"],
        seeds, anchor, list(added), list(chosen.words),
    )  # fmt: skip


def words_of(method: str, options: dict[str, dict[str, Path]]) -> list[str]:
    """The overrides of a method: a loss, a system, or both with a plus between.

    >>> words_of("ova+two_stage", {"loss": {"ova": Path()}, "system": {"two_stage": Path()}})
    ['loss=ova', 'system=two_stage']
    """
    words = []
    for name in method.split("+"):
        group = next((group for group in ("loss", "system") if name in options[group]), None)
        if group is None:
            losses = [loss for loss in options["loss"] if loss != "none"]
            raise UserError(
                f"--methods {name} is neither a loss ({', '.join(losses)}) nor a system ({', '.join(options['system'])})."
            )
        words.append(f"{group}={name}")
    return words


def folder_of(file: Path) -> Path:
    """The config folder of a method's YAML file, which lies in loss/ or system/ of that folder."""
    if not file.is_file():
        raise UserError(f"--add {file} is no file; give the YAML file of a loss or a system.")
    if file.absolute().parent.name not in ("loss", "system") or file.suffix != ".yaml":
        raise UserError(
            f"--add {file}: put the file where `l2d train --config-dir` finds it, as in my_conf/loss/{file.stem}.yaml or my_conf/system/..."
        )
    return file.absolute().parent.parent
