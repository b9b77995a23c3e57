"""l2d-train, l2d and scripts in processes of their own, forked from a server that has imported everything and computed nothing."""

import multiprocessing
import os
import resource
import runpy
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from child import run_and_exit

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["l2d.cli", "l2d.job", "l2d.train", "torch._dynamo"])  # so that a child starts at once


def start(*arguments: str, output: str = "output.txt", limit: tuple | None = None, **environment: str):
    """Start it in the current folder; what it says goes to `output`, `limit` is a resource limit, as for setrlimit."""
    return _fork(_train, arguments, os.getcwd(), output, limit, {**os.environ, **environment})


def start_l2d(arguments: list[str], folder: str, environment: dict[str, str], output: str, errors: str):
    """Start `l2d ARGUMENTS` with this folder, environment, and files for what it prints."""
    return _fork(_l2d, arguments, folder, environment, output, errors)


def run_l2d(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess:
    """`l2d WORDS` in a process of its own, in this folder or the current one: its exit code and what it printed."""
    with TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        child = start_l2d(list(words), str(folder or os.getcwd()), {**os.environ}, str(out), str(err))
        return subprocess.CompletedProcess(words, wait(child), out.read_text(), err.read_text())


def start_script(script: Path, *arguments: str, folder: str = ".", environment: dict[str, str] | None = None):
    """Start `python SCRIPT ARGUMENTS` in a folder; what it says goes to output.txt there."""
    place = os.path.abspath(folder), environment or {**os.environ}, "output.txt", "output.txt"
    return _fork(_script, [str(script), *arguments], *place)


def wait(child) -> int:
    """Its exit code; minus the number of the signal that killed it."""
    child.join()
    return child.exitcode


def _fork(function, *arguments):
    child = _CONTEXT.Process(target=function, args=arguments)
    child.start()
    return child


def _become(folder, environment, output, errors) -> None:
    multiprocessing.set_start_method(None, force=True)  # otherwise its own children would come from another server
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path, flags in ((1, output, os.O_TRUNC), (2, errors, 0)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags), number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115


def _train(arguments, folder, output, limit, environment) -> None:
    def command() -> None:
        _become(folder, environment, output, output)
        if limit:
            resource.setrlimit(*limit)
        from l2d.cli import train

        sys.argv = ["l2d-train", *arguments]
        train()

    run_and_exit(command)


def _l2d(arguments, *place) -> None:
    def command() -> None:
        _become(*place)
        from l2d.cli import main

        sys.argv = ["l2d", *arguments]
        main()

    run_and_exit(command)


def _script(words, *place) -> None:
    def command() -> None:
        _become(*place)
        sys.argv = words
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")

    run_and_exit(command)
