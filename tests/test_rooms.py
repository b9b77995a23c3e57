"""The import graph: a room (a package of l2d) imports only from the rooms before it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import l2d

ROOT = Path(l2d.__file__).parent
# First what every room may use, then the rooms in the order in which data passes through them.
GROUND = [
    "lazy",
    "errors",
    "kernels",
    "slurm",
    "signals",
    "atomic",
    "tensors",
    "conf_files",
    "settings",
    "config",
    "place",
]
ROOMS = [
    *GROUND, "source", "data", "identity", "compose", "experts", "task", "models", "losses", "systems", "decisions", "training",
    "evaluation", "tracking", "inference", "report",
]  # fmt: skip
# Commands and tools, which may use every room, and which no room uses.
COMMANDS = {
    "cli",
    "__main__",
    "bench",
    "cell_configs",
    "check",
    "completion",
    "dashboard",
    "evaluate",
    "export",
    "inspect",
    "job",
    "monitor",
    "parallel",
    "predict",
    "status",
    "sweep",
    "theory",
    "train",
}


def room_of(module: str) -> str:
    """l2d.data.files -> data."""
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from, also inside functions; what only type checkers read does not count."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {room_of(name.name) for name in node.names if name.name.startswith("l2d.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "l2d":
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("l2d."):
            found.add(room_of(str(node.module)))
    return found


def files() -> dict[Path, str]:
    """file -> its room or command."""
    return {path: path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}


def test_every_file_belongs_to_a_room_or_a_command():
    known = {*ROOMS, *COMMANDS, "__init__", "conf"}
    assert {str(path.relative_to(ROOT)) for path, room in files().items() if room not in known} == set()


def test_a_room_imports_only_from_the_rooms_before_it():
    wrong = []
    for path, room in files().items():
        if room in ROOMS:
            before = set(ROOMS[: ROOMS.index(room) + 1])
            wrong += [f"{path.relative_to(ROOT)} imports {other}" for other in imports(path) - before]
    assert sorted(wrong) == []


def test_only_the_job_imports_the_train_module():
    users = {str(path.relative_to(ROOT)) for path in files() if "train" in imports(path)}
    assert users == {"job.py"}


def test_few_functions_have_more_than_six_parameters():
    """Settings of a target are keys of its YAML, and stay as many as they are."""
    wide = set()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                count = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
                count -= bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
                if count > 6:
                    wide.add(node.name)
    targets = {
        "synthetic",
        "imagenet_dogs",
        "features",
        "folder",
        "list_folder",
        "disjoint",
        "overlapped",
        "with_generalist",
        "full_evaluation",
        "population_system",
    }
    assert wide <= targets


IMPORT_ALL = """
import logging, os, pkgutil, sys
import filelock, matplotlib.pyplot, multiprocessing.pool, pandas, rich, timm, torch, wandb  # they may do as they like
before = (list(sys.path), dict(os.environ), list(logging.root.handlers))
for name in ("fcntl", "resource"):
    sys.modules[name] = None  # as on Windows: importing them would fail
import importlib, l2d
for module in pkgutil.walk_packages(l2d.__path__, "l2d."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert (list(sys.path), dict(os.environ), list(logging.root.handlers)) == before
assert matplotlib.rcParams._get_backend_or_none() is None
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf
assert not OmegaConf.has_resolver("l2d.run_name")
basic = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
assert Plugins.instance().class_name_to_class[basic].__name__ == "BasicSweeper"
assert not os.listdir(".")
print("imported")
"""


@pytest.mark.slow
def test_importing_the_package_has_no_side_effects_and_needs_nothing_of_unix(tmp_path):
    code = [sys.executable, "-W", "error", "-c", IMPORT_ALL]
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    child = subprocess.run(code, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert child.stdout == "imported\n", child.stderr[-2000:]
