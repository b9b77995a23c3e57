"""What all cases of the fuzzer share: a command in a forked child, what it printed, and what none may print."""

import os
import resource
import signal
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from child import run_and_exit

import l2d.evaluate
import l2d.inspect.report
import l2d.job
import l2d.report.figures
import l2d.status
import l2d.train  # noqa: F401  before any fork, so that a case starts at once
from l2d import cli

TINY = ("dataset.num_train=64", "dataset.num_test=32", "trainer.epochs=1")
SECONDS = 20  # for one case; what trains normally then is told to stop, and must
MEMORY = 12 << 30  # address space of a case: what wants more must say so, instead of taking the machine down


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    stopped: bool  # whether it had to be told to stop
    stdout: str
    stderr: str


def start(words: list[str], folder: Path) -> int:
    """`l2d WORDS` in a forked child with a process group of its own, in `folder`/here; its process number."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        run_and_exit(lambda: _command(words, folder))
    return child


def _command(words: list[str], folder: Path) -> None:
    os.setpgid(0, 0)
    os.chdir(folder / "here")
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = ["l2d", *words]
    cli.main()


def ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait(child: int, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
    """Whether the child ended within this time; `until` ends the waiting earlier."""
    deadline = time.monotonic() + seconds
    while not ended(child):
        if time.monotonic() > deadline or until():
            return False
        time.sleep(0.005)
    return True


def run(words: list[str], folder: Path, seconds: float = SECONDS) -> Ended:
    """`l2d WORDS`; what takes longer is told to stop with SIGTERM, and then with SIGKILL."""
    child = start(words, folder)
    stopped = False
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if wait(child, seconds):
            break
        os.kill(child, signum)
        stopped = True
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = [(folder / name).read_text(errors="surrogateescape") for name in ("stdout", "stderr")]
    return Ended(code, stopped, *said)


def bad_output(end: Ended) -> str | None:
    """What no command may print: a traceback, a warning of Python, control characters."""
    for sign in ("Traceback", "Exception ignored", "Logging error", "Warning:"):
        if sign in end.stderr:
            return f"prints {sign!r}, exit code {end.code}"
    raw = sorted({c for c in end.stdout + end.stderr if is_control(c)})
    return f"prints the control characters {raw}" if raw else None


def is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") and character != "\n"


def one_sentence(end: Ended) -> bool:
    """Whether stderr ends in a line `l2d: ...`, after notices of the same form; or in the usage, for an unknown flag."""
    lines = end.stderr.splitlines()
    return end.stderr.startswith("usage: ") or (bool(lines) and all(line.startswith("l2d: ") for line in lines))
