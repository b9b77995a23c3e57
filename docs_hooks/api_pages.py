"""The reference of the Python API: a page per package with what its `__all__` lists, which mkdocstrings fills from the docstrings."""

import pkgutil
from importlib import import_module

import l2d

FOLDER = "reference/api"
# Modules without `__all__` from which users and the README import, and what they import.
MODULES = {
    "l2d.compose": ["compose"],
    "l2d.train": ["run"],
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
    lines = [
        f"- [`{name}`]({name}.md): {', '.join(f'[`{each}`][{name}.{each}]' for each in members)}"
        for name, members in public.items()
    ]
    return "\n".join(
        [
            "# Python API",
            "",
            "What can be imported, by package. `l2d.load` and `l2d.train.run` are where to begin.",
            "",
            *lines,
        ]
    )


def page(name: str, members: list[str]) -> str:
    options = "\n".join(f"        - {member}" for member in members)
    return f"# {name}\n\n::: {name}\n    options:\n      members:\n{options}\n"
