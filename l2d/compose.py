"""Composes a config for commands that Hydra does not start; the folders are those of `l2d train`."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig

from l2d.conf_files import Folders, config_dir
from l2d.errors import UserError
from l2d.identity import register_resolvers


def add_config_dir(parser: ArgumentParser) -> None:
    """Give a command the option `--config-dir DIR`, which Hydra gives to `l2d train`."""
    parser.add_argument(
        "--config-dir", "-cd", action="append", default=[], metavar="DIR", help="a folder with groups of your own"
    )


def compose(overrides: Sequence[str], config_dirs: Folders = ()) -> DictConfig:
    """The config of `l2d train` with these overrides; groups are searched in `config_dirs` after the package's own."""
    register_resolvers()
    extra = [quoted(f"file://{_existing(folder)}") for folder in config_dirs]
    search = [f"hydra.searchpath=[{','.join(extra)}]"] if extra else []
    with hydra.initialize_config_dir(config_dir(), version_base="1.3"):
        return hydra.compose("train", [*search, *overrides])


def quoted(text: str) -> str:
    """The text quoted as a value in Hydra's grammar.

    >>> quoted("it's")
    "'it\\\\'s'"
    """
    return QuotedString(text, Quote.single).with_quotes()


def _existing(folder: str | Path) -> Path:
    if not Path(folder).is_dir():
        raise UserError(f"--config-dir {folder} is not a folder; give one with groups in it, such as {folder}/loss.")
    return Path(folder).absolute()
