"""The command `l2d`. A command's module is imported only when that command is run, so that the help is fast."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from l2d.errors import show, visible
from l2d.lazy import importing


class Command(NamedTuple):
    entry: str  # module:function, called with the list of arguments
    usage: str  # what follows the name. Completion reads it: the first word is a path (DIR), or a choice (bash|zsh)
    summary: str
    settings: tuple[str, ...] = ("",)  # what KEY may begin with
    options: str = ""  # for completion: --NAME, with a VALUE where one follows


COMMANDS = {
    "train": Command("l2d.cli:train", "[KEY=VALUE ...]", "train a system, or with -m a grid of systems"),
    "evaluate": Command(
        "l2d.evaluate:main", "RUN [--samples] [KEY=VALUE ...]", "evaluate trained weights again", options="--samples"
    ),
    "predict": Command(
        "l2d.predict:main",
        "RUN INPUT ... [--out FILE] [KEY=VALUE ...]",
        "decide about new inputs: answer, or ask whom",
        ("rule", "experts.costs", "trainer.", "dataset.workers"),
        "--out FILE --batch-size N",
    ),
    "export": Command(
        "l2d.export:main",
        "RUN [--out FILE] [--check INPUT] [KEY=VALUE ...]",
        "write the system as one file: ONNX or torch.export",
        ("rule", "experts.costs"),
        "--out FILE --opset N --batch N --check INPUT",
    ),
    "monitor": Command(
        "l2d.monitor:main",
        "DECISIONS ANSWERS [--out FILE] [--parts N]",
        "watch a system in use: load, beliefs, drift, missing answers",
        options="--out FILE --parts N --alert NAME=NUMBER",
    ),
    "report": Command(
        "l2d.report.cli:main",
        "DIR ... [--out DIR]",
        "make tables, figures and a page from finished runs",
        options="--out DIR --baseline METHOD --deploy KEY=VALUE --samples",
    ),
    "dashboard": Command(
        "l2d.dashboard:main",
        "ENTITY/PROJECT [DIR ...] [--dry-run]",
        "save a W&B workspace for a project, and a W&B report with tables",
        options="--dataset NAME --dry-run",
    ),
    "status": Command(
        "l2d.status:main",
        "[DIR ...] [--watch]",
        "show which runs are finished, running, failed or missing",
        options="--watch",
    ),
    "data": Command(
        "l2d.inspect:main",
        "check [KEY=VALUE ...]",
        "check data and experts before training",
        options="--sheet PNG --decode N",
    ),
    "check": Command(
        "l2d.check:main",
        "loss=NAME [KEY=VALUE ...]",
        "judge a loss by its exact minimisers on random joints",
        ("loss",),
        "--joints N --seed S --out FILE",
    ),
    "bench": Command(
        "l2d.bench.cli:main",
        "[quick|full] [KEY=VALUE ...]",
        "compare methods on tasks with a known optimum",
        options="--methods A,B --tasks A,B --add FILE --data TASK=PATH --seeds N --out DIR",
    ),
    "completion": Command("l2d.completion:main", "bash|zsh|fish", "print a script for completion in your shell"),
}
EXAMPLES = """\
Examples:
  l2d train loss=picce_ova experts.num=8 seed=1
  l2d train -m loss=ce,picce_ce experts.num=1,4,16 seed=0,1,2
  l2d report outputs --out report

KEY=VALUE changes a setting; `l2d train --help` lists them all. With --config-dir DIR, train, evaluate, predict,
export, data and check also find your own settings. `l2d COMMAND --help` explains a command."""


def main(arguments: list[str] | None = None) -> None:
    """l2d COMMAND ..."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("--help", "-h", "help"):
        show(overview())
    elif name == "--version":
        print(import_module("l2d").__version__)
    elif name in COMMANDS:
        run(name, rest)
    else:
        name = visible(name)
        sys.stderr.write(f"l2d: {name} is not a command; {_suggestion(name)}\n")
        sys.exit(2)


def run(name: str, arguments: list[str]) -> None:
    """Import a command and call it."""
    module, _, function = COMMANDS[name].entry.partition(":")
    with importing():
        called = getattr(import_module(module), function)
    called(arguments)


def renamed() -> None:
    """The old names of commands (`l2d-report` and others), which say what replaces them."""
    old = Path(sys.argv[0]).stem
    name = old.removeprefix("l2d-")
    sys.stderr.write(f"l2d: {old} is now `l2d {name}`, and the old name will be removed in the next version.\n")
    run(name, sys.argv[1:])


def train(arguments: list[str] | None = None) -> None:
    """l2d train, and l2d-train: through Hydra, except its help."""
    sys.argv[1:] = options_first(sys.argv[1:] if arguments is None else arguments)  # Hydra reads them there
    if sys.argv[1:] in (["--help"], ["-h"]):
        show(train_help())
        return
    import warnings

    from l2d.errors import errors_as_sentences
    from l2d.identity import register_resolvers
    from l2d.job import job, register_plugins

    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets exceptions through to here, instead of Hydra's shortened report
    warnings.filterwarnings("error", "provider=.* is not available", UserWarning)  # hydra.searchpath=[nowhere]
    register_resolvers()
    with errors_as_sentences(), together():
        register_plugins()
        job()


def together() -> AbstractContextManager[Any]:
    """Around a command that several processes run together (torchrun, srun): from its start on each notices the end of another."""
    from l2d.job import one_of_several

    if not one_of_several():
        return nullcontext()
    from l2d.place import Ranks

    return Ranks().one_command()


def options_first(words: list[str]) -> list[str]:
    """Hydra takes options before overrides only; a user may mix them.

    >>> options_first(["seed=0,1", "-m", "loss=ce", "--config-dir", "mine"])
    ['-m', '--config-dir', 'mine', 'seed=0,1', 'loss=ce']
    """
    options: list[str] = []
    overrides: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        is_value = before in ("--config-dir", "-cd") or (before.startswith("-") and "=" not in word and word[:1] != "~")
        (options if word.startswith("-") or is_value else overrides).append(word)
    return options + overrides


def overview() -> str:
    """The help of `l2d`: a line per command, and examples."""
    usages = {f"l2d {name} {command.usage}": command.summary for name, command in COMMANDS.items()}
    width = max(map(len, usages))
    lines = [f"  {usage:<{width}}  {summary}" for usage, summary in usages.items()]
    title = "l2d: train systems that, for each input, either answer themselves or ask one of several experts."
    return "\n".join([title, "", *lines, "", EXAMPLES])


def train_help() -> str:
    """Hydra's help template filled with the groups and the default files, comments and all, without loading Hydra."""
    from textwrap import indent

    import yaml

    from l2d.conf_files import config_dir, default_options, group_files

    text, groups = Path(config_dir(), "train.yaml").read_text(), group_files()
    parts = [
        f"{group}: # {option}\n{indent(groups[group][option].read_text(), '  ')}"
        for group, option in default_options().items()
        if group in groups and option
    ]
    own = text.partition("\n\n")[2].partition("\nhydra:")[0].strip()  # what follows the list of defaults
    choices = "".join(f"{group}: {', '.join(files)}\n" for group, files in groups.items())
    template = str(yaml.safe_load(text)["hydra"]["help"]["template"])
    return template.replace("$APP_CONFIG_GROUPS", choices).replace("$CONFIG", "".join(parts) + own)


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    if "=" in name:
        return f"did you mean `l2d train {name}`?"
    close = get_close_matches(name, COMMANDS, 1)
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(COMMANDS)}."
