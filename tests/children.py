"""l2d-train in processes of its own, forked from a server that has imported everything and computed nothing."""

import multiprocessing
import os
import resource
import sys

from child import run_and_exit

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["l2d.cli", "l2d.job", "l2d.train", "torch._dynamo"])  # so that a child starts at once


def start(*arguments: str, output: str = "output.txt", limit: tuple | None = None, **environment: str):
    """Start it in the current folder; what it says goes to `output`, `limit` is a resource limit, as for setrlimit."""
    child = _CONTEXT.Process(target=_run, args=(arguments, os.getcwd(), output, limit, {**os.environ, **environment}))
    child.start()
    return child


def wait(child) -> int:
    """Its exit code; minus the number of the signal that killed it."""
    child.join()
    return child.exitcode


def _run(arguments, folder, output, limit, environment) -> None:
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
        from l2d.cli import train

        sys.argv = ["l2d-train", *arguments]
        train()

    run_and_exit(command)
