"""The dataset of a config, loaded once per process. Importing this does not import torch."""

import json
from functools import lru_cache

from omegaconf import DictConfig, OmegaConf

from l2d.config import build, plain
from l2d.data.dataset import Dataset


def load_dataset(cfg: DictConfig) -> Dataset:
    """The dataset of the config; the cells of a sweep in one process share one copy."""
    return _load(json.dumps(plain(cfg.dataset)))


@lru_cache(maxsize=1)
def _load(settings: str) -> Dataset:
    return build(OmegaConf.create({"dataset": json.loads(settings)}), "dataset", Dataset)
