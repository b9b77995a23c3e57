"""The reference of the commands: what each prints with --help, and the first comment of every script."""

import io
import os
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

import markup

from l2d.cli import COMMANDS, main

WIDTH = "110"  # columns; argparse would take those of the terminal


def page(scripts: Path) -> str:
    """`l2d`, its commands, and the scripts of a checkout, as Markdown."""
    parts = ["# Commands", "What every command prints with `--help`.", "## l2d", fenced(help_of())]
    for name, command in COMMANDS.items():
        says = markup.escape(command.summary)
        parts += [f"## l2d {name}", f"{says[0].upper()}{says[1:]}.", fenced(help_of(name))]
    rows = [(f"<code>scripts/{file.name}</code>", markup.inline(first_comment(file))) for file in programs(scripts)]
    intro = "In a checkout; each makes `.venv` first where that is needed."
    return "\n\n".join([*parts, "## Scripts", intro, markup.table(("script", "what it does"), rows)])


def help_of(*command: str) -> str:
    """What `l2d COMMAND --help` prints."""
    printed = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": WIDTH, "NO_COLOR": "1"}), redirect_stdout(printed), suppress(SystemExit):
        main([*command, "--help"])
    return printed.getvalue().rstrip()


def programs(folder: Path) -> list[Path]:
    """The files of the folder that can be run."""
    return sorted(file for file in folder.iterdir() if os.access(file, os.X_OK))


def first_comment(file: Path) -> str:
    """The comment lines below the first line of a script, as one text."""
    lines = file.read_text().splitlines()[1:]
    count = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(line.removeprefix("#").strip() for line in lines[:count])


def fenced(text: str) -> str:
    return f"```text\n{text}\n```"
