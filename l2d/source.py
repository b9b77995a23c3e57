"""A user's own code: which parts of a config name it, and a digest of its source. Nothing is imported or run for that."""

import ast
import hashlib
import importlib.util
import io
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from l2d.config import flatten

CODE_KEYS = ("_target_", "formulation", "base", "metrics")  # of any group: their values may name code
STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
PACKAGE_FOLDERS = {"site-packages", "dist-packages"}  # of this environment, of the user, of the system below them


def named_code(groups: dict[str, Any]) -> dict[str, str]:
    """key -> package.module.name, for all code that a config names."""
    found: dict[str, str] = {}
    for key, value in flatten(groups).items():
        if key.rpartition(".")[2] in CODE_KEYS:
            for number, name in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(name, str) and "." in name:
                    found[f"{key}.{number}" if isinstance(value, list) else key] = name
    return found


def code_digests(groups: dict[str, Any]) -> dict[str, str]:
    """key -> digest of the source that it names, for a user's own code; l2d and installed packages have a version instead."""
    digests = {key: source_digest(name) for key, name in named_code(groups).items()}
    return {key: digest for key, digest in digests.items() if digest}


@lru_cache(maxsize=256)  # a process imports code once, so it also reads it once
def source_digest(name: str) -> str:
    """Of the module that holds `package.module.name` and of all user's modules that it imports, without their comments;
    '' where none of it is a user's own source file."""
    if "" not in sys.path:
        sys.path.append("")  # the current folder, as when the name is imported
    found: dict[str, Path] = {}
    parts = name.split(".")
    _collect([".".join(parts[:end]) for end in range(1, len(parts) + 1)], found)
    if not found:
        return ""
    digest = hashlib.sha256()
    for module, file in sorted(found.items()):
        digest.update(repr((module, _code(file))).encode())
    return digest.hexdigest()[:16]


def _collect(modules: list[str], found: dict[str, Path]) -> None:
    """Add to `found` those of the modules that are a user's own files, and all that they import."""
    for module in modules:
        file = None if module in found else _file(module)
        if file is not None:
            found[module] = file
            _collect(list(_imported(module, file)), found)


def _file(module: str) -> Path | None:
    """The source file of a module that is neither installed nor l2d's own."""
    first, *rest = module.split(".")
    for folder in _folders(first):
        base = folder.joinpath(first, *rest)
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.is_file():
                return file
    return None


@lru_cache(maxsize=256)
def _folders(package: str) -> list[Path]:
    """The folders of sys.path that hold a user's package or module of this name."""
    if package == "l2d" or package in sys.stdlib_module_names:
        return []
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # not there, or without a file, as __main__
        return []
    if spec is None:
        return []
    places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
    return [Path(place).resolve().parent for place in places if not _is_installed(Path(place))]


def _is_installed(place: Path) -> bool:
    """Whether a package or module is Python's own or was installed, be it as a link out of the environment's folder."""
    named = {*place.absolute().parts, *place.resolve().parts}
    return bool(named & PACKAGE_FOLDERS) or place.resolve().is_relative_to(STDLIB)


def _imported(module: str, file: Path) -> Iterator[str]:
    """The names of all modules that a file imports, and of what it imports from them, which may be modules too."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    tree = ast.Module([], [])
    with suppress(SyntaxError, ValueError, OSError):  # it is said when it is imported
        tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            start = [*above, *(node.module.split(".") if node.module else [])]
            names = [[*start, alias.name] for alias in node.names]
        for parts in names:
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _code(file: Path) -> list[str]:
    """The tokens of a file without comments and blank lines; its lines where Python cannot read it."""
    text = file.read_text(errors="replace")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return text.splitlines()
    return [token.string for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
