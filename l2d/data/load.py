"""The dataset of a config, loaded once per process, and what identifies it. Importing this does not import torch."""

import hashlib
import inspect
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from l2d.config import bind, build, plain
from l2d.data.answers import join_answers
from l2d.data.contents import file_digests
from l2d.data.dataset import Dataset, content_digest
from l2d.data.manifest import cache_folder
from l2d.errors import UserError
from l2d.signals import StopSignal


def load_dataset(cfg: DictConfig) -> Dataset:
    """The dataset of the config, with the answers of the file that `annotators` names; the cells of a sweep in one process
    share one copy."""
    return _load(json.dumps(plain(cfg.dataset)))


def data_digest(cfg: DictConfig) -> str:
    """Identifies the data of a config by its listing, without decoding an input; '' where they follow from the settings.

    The same data under another path, or with other times, are the same. A dataset that has no listing is built. Files that
    the experts' settings name (recorded answers, groups of annotators) are part of the data.
    """
    digest = _data_digest(json.dumps(plain(cfg.dataset)))
    values = [value for key, value in plain(cfg.get("experts") or {}).items() if key != "_target_"]
    names = [os.path.expanduser(value) for value in values if isinstance(value, str) and Path(value).suffix]
    for file in filter(os.path.isfile, names):
        digest = _and_file(digest, Path(file), cache_folder(cfg.dataset.get("cache")))
    return digest


@lru_cache(maxsize=1)
def _load(settings: str) -> Dataset:
    cfg, answers = _without_answers(settings)
    dataset = build(cfg, "dataset", Dataset)
    return dataset if answers is None else join_answers(dataset, answers)


@lru_cache(maxsize=32)
def _data_digest(settings: str) -> str:
    cfg, answers = _without_answers(settings)
    function, arguments = bind(cfg, "dataset", {})
    lister = getattr(function, "lister", None)
    if lister is None:
        with StopSignal():  # it may take long
            digest = content_digest(load_dataset(cfg))
    else:
        named = inspect.signature(lister).parameters
        digest = lister(**{key: value for key, value in arguments.items() if key in named}).digest()
    if answers is None:
        return digest
    return _and_file(digest, answers, cache_folder(arguments.get("cache")))


def _and_file(digest: str, file: Path, cache: Path) -> str:
    """The digest of what `digest` identifies together with the content of a file."""
    content = file_digests(file.parent, [file.name], cache)[0]
    return hashlib.sha256(f"{digest} {content}".encode()).hexdigest()


def _without_answers(settings: str) -> tuple[DictConfig, Path | None]:
    """The dataset's settings without the file of recorded answers, and that file."""
    group: dict[str, Any] = json.loads(settings)
    answers = None
    if isinstance(group.get("annotators"), str):
        answers = Path(group.pop("annotators")).expanduser()
        if not answers.is_file():
            raise UserError(
                f"dataset.annotators={answers} is no file; name a table of recorded answers, or list annotators as in [ada,bob]."
            )
    return OmegaConf.create({"dataset": group}), answers
