"""l2d check: is this loss any good? torch is imported only once the configuration is composed."""

import json
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from l2d.atomic import atomic_write, obstacle
from l2d.compose import add_config_dir, compose
from l2d.conf_files import Folders, group_files
from l2d.errors import Arguments, UserError, errors_as_sentences, notices_once, notify, show

if TYPE_CHECKING:
    from l2d.theory.per_sample import PerSample

DESCRIPTION = """\
Judge a loss on random finite joints p(y, m) of the label and the experts' answers, whose best decision is known: the exact
risk is minimised, and the table says how often the minimiser decides worse than Bayes, how far its beliefs are off, whether
the loss jumps, whether it is convex, and how the experts' pull grows with their number; with the worst joint found.

  l2d check loss=picce_ce
  l2d check loss=ce,picce_ce,ova --out losses.json
  l2d check loss=all
  l2d check --config-dir mine loss=my_loss loss.q=0.7"""


def main(arguments: list[str] | None = None) -> None:
    """l2d check loss=NAME ..."""
    parser = Arguments(
        "l2d check",
        usage="l2d check loss=NAME[,NAME ...] [loss.KEY=VALUE ...] [--joints N] [--seed S] [--out FILE] [--config-dir DIR]",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="KEY=VALUE", help="loss=NAME, several names, or all; loss.KEY=VALUE"
    )
    parser.add_argument("--joints", type=int, default=140, metavar="N", help="random joints (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the joints (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all numbers to a JSON file")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.joints < 1:
        parser.error(f"--joints {options.joints} must be at least 1")
    if not 0 <= options.seed < 2**63:
        parser.error(f"--seed {options.seed} must be at least 0 and less than 2^63")
    with errors_as_sentences():
        if options.out:
            _check_writable(options.out)
        losses = chosen_losses(options.words, options.config_dir)
        with notices_once():  # a loss is built for many numbers of classes and experts
            check(losses, options.joints, options.seed, options.out)


def chosen_losses(words: list[str], config_dirs: Folders) -> dict[str, DictConfig]:
    """Name -> config of every loss that the command line names, with the settings that it gives to all of them."""
    chosen = [word.partition("=")[2] for word in words if word.startswith("loss=")]
    settings = [word for word in words if not word.startswith("loss=")]
    for word in settings:
        if not word.lstrip("+~").startswith("loss."):
            raise UserError(f"{word} has no effect on what is checked; give loss=NAME and loss.KEY=VALUE.")
    known = group_files([folder for folder in config_dirs if Path(folder).is_dir()])["loss"]
    every = [name for name in known if name != "none"]  # which systems without a loss bring along
    names = [name for value in chosen for name in (every if value == "all" else value.split(","))]
    if not names:
        raise UserError(f"loss=NAME is missing; choose of {', '.join(every)}, or loss=all.")
    return {
        " ".join([name, *settings]): compose([f"loss={name}", *settings], config_dirs) for name in dict.fromkeys(names)
    }


def check(losses: dict[str, DictConfig], joints: int, seed: int, out: Path | None) -> None:
    """Judge the losses and print what was found; with `out` write all numbers there."""
    import torch

    from l2d.theory.check import as_json, case_json, check_loss
    from l2d.theory.families import SHAPES, draw_cases
    from l2d.theory.table import one_loss, several_losses

    builders = {name: builder(name, cfg) for name, cfg in losses.items()}
    for build in builders.values():  # errors first, before any work
        for shape in SHAPES:
            build(*shape)
    cases = draw_cases(joints, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny: more threads would only wait for each other
    judgements = []
    bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with bar:
        task = bar.add_task("", total=len(losses) * joints)
        for number, (name, build) in enumerate(builders.items(), 1):
            bar.update(task, description=name)
            if bar.disable and len(losses) > 1:
                notify(f"{name} ({number} of {len(losses)})")
            judgements.append(check_loss(name, build, cases, seed, lambda more: bar.advance(task, more)))
    torch.set_num_threads(threads)
    if out:
        found = {judgement.name: as_json(judgement) for judgement in judgements}
        content = {"seed": seed, "joints": [case_json(case) for case in cases], "losses": found}
        atomic_write(out, lambda file: file.write(json.dumps(content, indent=1).encode()))
    show(f"{joints} random joints, seed {seed}\n")
    show(one_loss(judgements[0]) if len(judgements) == 1 else several_losses(judgements))


def builder(name: str, cfg: DictConfig) -> "Callable[[int, int], PerSample]":
    """(K, J) -> the loss of a config, as a training would build it."""
    from l2d.systems import Sizes, make_system
    from l2d.theory.per_sample import PerSample

    @cache
    def build(num_classes: int, num_experts: int) -> PerSample:
        sizes = Sizes(num_classes, num_experts, (num_classes + num_experts,), complete=False)
        return PerSample(name, make_system(cfg, sizes, with_backbone=False), num_classes, num_experts)

    return build


def _check_writable(path: Path) -> None:
    """UserError for an --out that cannot become a file, before the work and not after it."""
    if what := obstacle(path):
        raise UserError(f"--out {path} cannot be written: it is {what}.")
    if not path.parent.is_dir():
        raise UserError(f"--out {path} cannot be written: there is no folder {path.parent}.")
