"""Hostile command lines: random words behind every command."""

import json
import random
import shutil
import signal
from pathlib import Path
from typing import Any

from fuzz_case import TINY, Ended, bad_output, run
from omegaconf import OmegaConf

from l2d.compose import compose
from l2d.conf_files import config_dir, group_files

RUN = "run"  # the folder of a finished run, where a case names it
YOUNG = {"held_out", "init", "freeze", "record", "record_mb", "rule", "system", "evaluation"}  # drawn more often
SHARES = {"train": 11, "evaluate": 3, "data": 2, "status": 2, "report": 2}  # of the commands
LEFT_OUT = {"dataset.download", "trainer.compile"}  # the network; a C++ compiler, for minutes

HOSTILE = [
    "0", "1", "2", "3", "7", "64", "-1", "-0.5", "0.5", "1.5", "1e-300", "1e300", "1e400", "1000000000", "1000000000000",
    "9223372036854775807", "9223372036854775808", "1" + "0" * 40, "-1000000000000", "nan", "inf", "-inf", ".nan", "-.inf",
    "true", "false", "null", "", "''", '""', "???", "none", "auto", "abc", "x" * 300, "ü", "模型", "🐙", "\u202e", "e\u0301",
    "\udcff", "a b", "'a\\nb'", "a/b", "../up", "./here", "/dev/null/x", "/proc/nowhere/x", "[]", "[1,2]", "[0.5,0.9]",
    "[[1],[2]]", "[nan]", "['a',null]", "{}", "{a:1}", "{a:{b:[1]}}", "${seed}", "${nowhere}", "${dataset}", "${experts.num}",
    "${oc.env:NOWHERE}", "${oc.env:HOME}", "${no.such:1}", "${l2d.run_name:}", "${", "$", "a=b", "a,b", "1,2", "[", "{", "'",
    "range(1,3)", "choice(1,2)", "glob(*)", "int(3.5)", "float(x)", "0x10", "1_000", "0o17", "1:30", "2024-01-01", "l2d.losses",
    "no.such.thing", "no.such", ".", "..", "%s",
    "once", "per_epoch", "vanilla", "picce", "ova", "ce", "cosine", "constant", "bf16", "fp16", "float32", "cpu", "cuda", "mps", "tpu",
    "run", "scores", "decisions", "0.9", "[backbone]", "[backbone,loss]", "[nonsense]", "[l2d.evaluation.METRICS]", "[os.path]",
    "os.getcwd", "os.path", "torch.nn.Identity", "torch.nn.Linear", "l2d.decisions.decide", "l2d.systems.System", "json",
    "\x1b[31mred", "'\x1b]0;title\x07'", "a\x08b", "'\x9b31m'", "'a\rb'", "<script>alert(1)</script>", "'a$\\foo$b'", "'=1+1'",
]  # fmt: skip
HYDRA = [
    "hydra.run.dir=mine", "hydra.run.dir=''", "hydra.run.dir=null", "hydra.run.dir=a/b/c", "hydra.run.dir=${nowhere}",
    "hydra.run.dir=" + "y" * 300, "hydra.run.dir=/dev/null/x", "hydra.run.dir=ü/模型", "hydra.run.dir=7", "hydra.run.dir=[1]",
    "hydra.job.chdir=true", "hydra.job.name=x/y", "hydra.job.num=3", "hydra.verbose=true", "hydra.verbose=nothing",
    "hydra.mode=RUN", "hydra.mode=WALK", "hydra.nothing=1", "+hydra.nothing=1", "hydra/launcher=nothing", "hydra=null",
    "hydra/hydra_logging=none", "hydra/job_logging=disabled", "hydra/job_logging=none", "hydra/job_logging=stdout",
    "hydra/job_logging=nothing", "hydra.run.dir=../beside", "hydra.job.env_set.X=1", "+hydra.job.env_set.X=1",
    "hydra.job.config.override_dirname.kv_sep=1", "hydra.sweep.dir=elsewhere", "hydra.runtime.output_dir=elsewhere",
    "hydra.run.dir=run", "hydra/sweeper=basic", "hydra/sweeper=nothing", "hydra.searchpath=[nowhere]", "hydra.sweeper._target_=os.getcwd",
    "hydra.launcher._target_=no.such", "hydra.output_subdir=x", "hydra.callbacks.x._target_=os.getcwd", "~hydra.run", "hydra.job=1",
]  # fmt: skip


class Grammar:
    """What can be written on a command line: the groups with their options, and the keys of each."""

    def __init__(self) -> None:
        root = Path(config_dir())
        self.groups = {group: sorted(files) for group, files in group_files().items() if not group.startswith("hydra")}
        self.keys = _keys(OmegaConf.to_container(compose([])))
        self.young = [key for key in self.keys if key.split(".")[0] in YOUNG]
        self.own_keys = {
            (group, option): _keys({group: OmegaConf.to_container(OmegaConf.load(root / group / f"{option}.yaml"))})
            for group, options in self.groups.items()
            for option in options
            if group not in ("dataset", "experiment")
        }

    def case(self, rng: random.Random) -> list[str]:
        """`l2d train` with one to four overrides behind those that make the run small, sometimes as a grid; or another
        command, most often on a finished run."""
        words = [word for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))) for word in self.words(rng)]
        name = rng.choices(list(SHARES), list(SHARES.values()))[0]
        if name == "train":
            return [name, *(["-m"] if rng.random() < 0.04 else []), *TINY, *words]
        if name == "evaluate":
            return [name, RUN, *words]
        if name == "data":
            return [name, "check", *TINY, *words, *self.flags(rng, "--sheet", "--decode", "--config-dir", "--nothing")]
        folders = [rng.choice((RUN, RUN, ".", value_of(rng))) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
        return [name, *folders, *(self.flags(rng, "--out", "--baseline", "--nothing") if name == "report" else [])]

    def flags(self, rng: random.Random, *names: str) -> list[str]:
        """One flag with a hostile value, more often none."""
        return [f"{rng.choice(names)}={value_of(rng)}"] if rng.random() < 0.4 else []

    def words(self, rng: random.Random) -> list[str]:
        """One override; or the choice of an option together with one of that option's own keys."""
        if rng.random() < 0.85:
            return [self.word(rng)]
        (group, option), keys = rng.choice(list(self.own_keys.items()))
        return [f"{group}={option}", f"{rng.choice(keys)}={rng.choice(HOSTILE)}"]

    def word(self, rng: random.Random) -> str:
        keys = self.young if rng.random() < 0.25 else self.keys
        kind, key, value = rng.random(), rng.choice(keys), rng.choice(HOSTILE)
        if kind < 0.6:
            return f"{key}={value}"
        if kind < 0.75:
            group = rng.choice(list(self.groups))
            return f"{group}={rng.choice([*self.groups[group], *self.groups[group], value])}"
        if kind < 0.83:
            return rng.choice(HYDRA)
        if kind < 0.89:
            return rng.choice((f"~{key}", f"~{key.split('.')[0]}", f"~{key}={value}", f"~{value}"))
        if kind < 0.97:
            other = rng.choice(
                (key, f"{key}.deeper", f"{key.split('.')[0]}.betas", f"{key.split('.')[0]}.new", "new", value)
            )
            return f"{rng.choice(('+', '++', ''))}{other}={rng.choice(HOSTILE)}"
        return value_of(rng)


def value_of(rng: random.Random) -> str:
    """A hostile word that is not an option."""
    return rng.choice(HOSTILE).lstrip("-")


def _keys(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted paths of all leaves and of the groups above them."""
    found = []
    for key, value in tree.items():
        if prefix + key in LEFT_OUT:
            continue
        found.append(prefix + key)
        if isinstance(value, dict):
            found += _keys(value, f"{prefix}{key}.")
    return found


def make_finished(scratch: Path) -> Path:
    """The folder of a finished run, which cases get a copy of."""
    folder = scratch / "finished"
    (folder / "here").mkdir(parents=True)
    assert run(["train", *TINY, "held_out=0.2", f"hydra.run.dir={RUN}"], folder).code == 0
    return folder / "here" / RUN


def run_case(
    grammar: Grammar, rng: random.Random, folder: Path, finished: Path
) -> tuple[str | None, list[Ended], list[str]]:
    """What a case did that none may do, how it ended, and its words."""
    words = grammar.case(rng)
    (folder / "here").mkdir(parents=True)
    if any(word.rpartition("=")[2] == RUN for word in words):
        shutil.copytree(finished, folder / "here" / RUN)
    end = run(words, folder)
    return violation(words, folder, end), [end], words


def violation(words: list[str], folder: Path, end: Ended) -> str | None:
    """What this case did that none may do."""
    runs = {path.parent: json.loads(path.read_text())["status"] for path in folder.rglob("result.json")}
    stopped = "interrupted" in runs.values() or "Stopped before the first step" in end.stderr
    if end.stopped and not (end.code == 128 + signal.SIGTERM and stopped):
        return f"hangs (exit code {end.code} once told to stop)"
    verbose = any(word.startswith("hydra.verbose=") for word in words)  # Hydra's own tables have tabs
    if wrong := bad_output(end._replace(stdout=end.stdout.replace("\t", " ")) if verbose else end):
        return wrong
    if end.code not in (0, 2) and not end.stopped:
        return f"exit code {end.code}"
    one_sentence = end.stderr.startswith("l2d: ") and end.stderr.count("\n") == 1
    if end.code == 2 and "-m" not in words and not one_sentence and not end.stderr.startswith("usage: "):
        return "no single sentence"
    if not (folder / "here").is_dir():
        return "removes the folder it was started in"
    writes = words[0] in ("report", "data", "evaluate") and end.code == 0  # files that are no run
    for path in folder.rglob("*"):
        if path.name.endswith("tmp"):
            return f"leaves {path.name}"
        if path.is_dir() and path != folder / "here" and not any(path.iterdir()):
            return f"leaves the empty folder {path.name}"
        inside = path.parent == folder or ".sweeps" in path.parts or any(p in runs for p in path.parents)
        sheet = (
            words[0] == "data" and path.is_file() and path.read_bytes().startswith(b"\x89PNG")
        )  # shows what is wrong
        if path.is_file() and not inside and not writes and not sheet:
            return f"leaves {path.relative_to(folder)} behind without a run"
    for path, status in runs.items():
        if status == "running" or not (path / "config.yaml").exists():
            return f"leaves a run with status {status} that is not whole"
    return None
