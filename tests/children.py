"""l2d-train and scripts in processes of their own, forked from a server that has imported everything and computed nothing."""

import multiprocessing
import os
import resource
import runpy
import sys
from pathlib import Path

from child import run_and_exit

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["l2d.cli", "l2d.job", "l2d.train", "torch._dynamo"])  # so that a child starts at once


def start(*arguments: str, output: str = "output.txt", limit: tuple | None = None, **environment: str):
    """Start l2d-train in the current folder; what it says goes to `output`, `limit` is a resource limit, as for setrlimit."""
    return _start(_train, arguments, output, limit, environment)


def start_script(script: Path, *arguments: str):
    """Start `python SCRIPT ...` in the current folder; what it says goes to output.txt."""
    return _start(_script, (str(script), *arguments), "output.txt", None, {})


def wait(child) -> int:
    """Its exit code; minus the number of the signal that killed it."""
    child.join()
    return child.exitcode


def _start(entry, arguments, output, limit, environment):
    surroundings = (os.getcwd(), output, limit, {**os.environ, **environment})
    child = _CONTEXT.Process(target=_run, args=(entry, arguments, *surroundings))
    child.start()
    return child


def _train(arguments) -> None:
    from l2d.cli import train

    sys.argv = ["l2d-train", *arguments]
    train()


def _script(arguments) -> None:
    sys.argv = list(arguments)
    sys.path.insert(0, os.path.dirname(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


def _run(entry, arguments, folder, output, limit, environment) -> None:
    def command() -> None:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        if limit:
            resource.setrlimit(*limit)
        entry(arguments)

    run_and_exit(command)
