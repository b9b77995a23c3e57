"""Hostile input: random overrides must end in a result, or in one sentence with exit code 2.

Never in a traceback, a hang, or a folder that is neither absent nor whole. Case i of a seed is always the same, so
`scripts/fuzz --seed 0 --start 17 --count 1 --verbose` repeats one.
"""

import argparse
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from child import run_and_exit
from omegaconf import OmegaConf

import l2d.evaluate
import l2d.job
import l2d.train  # noqa: F401  before any fork, so that a case starts at once
from l2d import cli
from l2d.compose import compose
from l2d.conf_files import config_dir, group_files

TINY = ("dataset.num_train=64", "dataset.num_test=32", "trainer.epochs=1")
SECONDS = 20  # for one case; what trains normally then is told to stop, and must
MEMORY = 12 << 30  # address space of a case: what wants more must say so, instead of taking the machine down
RUN = "run"  # the folder of a finished run, where a case names it
YOUNG = {"held_out", "init", "freeze", "record", "record_mb", "rule", "system", "evaluation"}  # drawn more often
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
        """`l2d train` with one to four overrides behind those that make the run small, sometimes as a grid; or `l2d
        evaluate` of a finished run."""
        words = [word for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))) for word in self.words(rng)]
        if rng.random() < 0.15:
            return ["evaluate", RUN, *words]
        return ["train", *(["-m"] if rng.random() < 0.04 else []), *TINY, *words]

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
        return value.lstrip("-")  # not an option


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


def run(words: list[str], folder: Path) -> tuple[int, bool]:
    """l2d in a forked child, in `folder`: its exit code, and whether it had to be told to stop."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _child(words, folder)
    deadline, told = time.monotonic() + SECONDS, False
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL if told else signal.SIGTERM)
            deadline, told = time.monotonic() + SECONDS, True
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def _child(words: list[str], folder: Path) -> None:
    def command() -> None:
        os.chdir(folder / "here")
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["l2d", *words]
        cli.main()

    run_and_exit(command)


def violation(words: list[str], folder: Path, code: int, told: bool) -> str | None:
    """What this case did that none may do."""
    said = (folder / "stderr").read_text(errors="replace")
    runs = {path.parent: json.loads(path.read_text())["status"] for path in folder.rglob("result.json")}
    stopped = "interrupted" in runs.values() or "Stopped before the first step" in said
    if told and not (code == 128 + signal.SIGTERM and stopped):
        return f"hangs (exit code {code} once told to stop)"
    if "Traceback" in said or (code not in (0, 2) and not told):
        return f"exit code {code}"
    one_sentence = said.startswith("l2d: ") and said.count("\n") == 1
    if code == 2 and "-m" not in words and not one_sentence and not said.startswith("usage: "):  # a flag that is none
        return "no single sentence"
    if not (folder / "here").is_dir():
        return "removes the folder it was started in"
    for path in folder.rglob("*"):
        if path.name.endswith(".tmp"):
            return f"leaves {path.name}"
        if path.is_dir() and path != folder / "here" and not any(path.iterdir()):
            return f"leaves the empty folder {path.name}"
        if (
            path.is_file()
            and path.parent != folder
            and not any(p in runs for p in path.parents)
            and ".sweeps" not in path.parts
        ):
            return f"leaves {path.relative_to(folder)} behind without a run"
    for path, status in runs.items():
        if status == "running" or not (path / "config.yaml").exists():
            return f"leaves a run with status {status} that is not whole"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--verbose", action="store_true", help="print every case and what came of it")
    options = parser.parse_args()
    started, grammar, outcomes, bad = time.monotonic(), Grammar(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="l2d-fuzz-") as scratch:
        os.environ |= {"HOME": scratch, "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
        finished = Path(scratch, "finished")
        (finished / "here").mkdir(parents=True)
        assert run(["train", *TINY, "held_out=0.2", f"hydra.run.dir={RUN}"], finished) == (0, False)
        gc.freeze()  # a child need not look through all of torch for what to collect
        for number in range(options.start, options.start + options.count):
            words = grammar.case(random.Random(f"{options.seed} {number}"))
            folder = Path(scratch, str(number))
            (folder / "here").mkdir(parents=True)
            if any(word.rpartition("=")[2] == RUN for word in words):
                shutil.copytree(finished / "here" / RUN, folder / "here" / RUN)
            code, told = run(words, folder)
            wrong = violation(words, folder, code, told)
            kind = "still training" if told else {0: "a result", 2: "a sentence"}.get(code, "neither")
            outcomes[kind] += not wrong
            bad += bool(wrong)
            if wrong or options.verbose:
                print(f"case {number}: {wrong or kind}: {words}".encode("utf-8", "backslashreplace").decode())
                print((folder / "stderr").read_text(errors="replace")[-3000:], flush=True)
            shutil.rmtree(folder)
    counts = ", ".join(f"{count} ended in {kind}" for kind, count in outcomes.items() if count)
    print(
        f"seed {options.seed}: {options.count} cases in {time.monotonic() - started:.0f} s: {counts}, {bad} violations"
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
