"""The reference of the Python API: a page per package with what its `__all__` lists, which mkdocstrings fills from the docstrings."""

import inspect
import pkgutil
import sys
from importlib import import_module

import markup

import l2d

FOLDER = "reference/api"
# Modules without `__all__` from which users and the README import, and what they import.
MODULES = {
    "l2d.compose": ["compose"],
    "l2d.train": ["run", "run_folder"],
    "l2d.task": ["Task", "load_task"],
    "l2d.tracking.trackers": ["Tracker"],
    "l2d.evaluation.kept": ["read_kept"],
    "l2d.errors": ["UserError"],
}


def pages() -> dict[str, str]:
    """Page -> Markdown: an overview, `l2d` itself, its packages and modules."""
    public = {**packages(), **MODULES}
    made = {f"{FOLDER}/{name}.md": page(name, members) for name, members in public.items()}
    return {f"{FOLDER}/index.md": overview(public), **made}


def packages() -> dict[str, list[str]]:
    """Package -> the public names that its `__all__` lists."""
    names = ["l2d", *(f"l2d.{module.name}" for module in pkgutil.iter_modules(l2d.__path__) if module.ispkg)]
    listed = {name: getattr(import_module(name), "__all__", []) for name in names}
    return {name: [each for each in all_of if each[0] != "_"] for name, all_of in listed.items() if all_of}


def overview(public: dict[str, list[str]]) -> str:
    """Every package with links to its names."""
    lines = [
        f"- [`{name}`]({name}.md): {', '.join(f'[`{each}`]({name}.md#{path(name, each)})' for each in members)}"
        for name, members in public.items()
    ]
    intro = "What can be imported, by package. `l2d.load` and `l2d.train.run` are where to begin."
    return "\n".join(["# Python API", "", intro, "", *lines])


def page(name: str, members: list[str]) -> str:
    """What the module says about itself, then every name."""
    says = inspect.getdoc(import_module(name)) or ""
    return "\n\n".join([f"# {name}", markup.escape(says), *(entry(name, each) for each in members)])


def entry(name: str, member: str) -> str:
    """A function or class, for mkdocstrings; of another object, which has no docstring, its type."""
    found = getattr(import_module(name), member)
    where = path(name, member)
    if inspect.isroutine(found) or inspect.isclass(found):
        return f"::: {where}"
    kind = type(found)
    says = (inspect.getdoc(kind) or "").split("\n\n")[0] if kind.__module__.startswith("l2d.") else ""
    return f"## {member} {{: #{where} }}\n\nOf type `{kind.__name__}`. {markup.escape(says)}"


def path(name: str, member: str) -> str:
    """Where mkdocstrings finds it: not at l2d.decisions.best, which is a module for it, but at l2d.decisions.best.best."""
    found = getattr(import_module(name), member)
    is_module = f"{name}.{member}" in sys.modules
    return f"{found.__module__}.{found.__qualname__}" if is_module else f"{name}.{member}"
