"""The command line: Hydra around run(cfg), and errors as sentences. torch is imported only once a run starts."""

import os
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from l2d.config import config_dir, register_resolvers
from l2d.errors import UserError, errors_as_sentences


def train() -> None:
    """l2d-train."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets exceptions through to here, instead of Hydra's shortened report
    register_resolvers()
    with errors_as_sentences():
        _job()


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="train")
def _job(cfg: DictConfig) -> dict[str, Any]:
    from l2d.train import run

    try:
        return run(cfg)
    except UserError:
        _remove_if_empty(Path(HydraConfig.get().runtime.output_dir))
        if HydraConfig.get().mode == RunMode.RUN:
            with errors_as_sentences():  # here rather than in train(), which Hydra reaches with a note of its own
                raise
        raise


def _remove_if_empty(folder: Path) -> None:
    """Take back the folders that Hydra made for a run that never started."""
    for path in (folder, *folder.parents):
        try:
            path.rmdir()
        except OSError:
            return
