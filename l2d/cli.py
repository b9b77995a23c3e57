"""The command line: Hydra around run(cfg), and errors as sentences. torch is imported only once a run starts."""

import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from l2d.config import config_dir, register_resolvers
from l2d.errors import UserError


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="train")
def _job(cfg: DictConfig) -> dict[str, Any]:
    from l2d.train import run

    try:
        return run(cfg)
    except UserError as error:
        _remove_if_empty(Path(HydraConfig.get().runtime.output_dir))
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise
        _refuse(error)


def train() -> None:
    """l2d-train."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets exceptions through to here, instead of Hydra's shortened report
    register_resolvers()
    try:
        _job()
    except (UserError, HydraException, OmegaConfBaseException) as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "reference_type"))]
    sys.stderr.write("l2d: " + " ".join(kept) + "\n")
    if os.environ.get("L2D_TRACEBACK"):
        traceback.print_exception(error)
    sys.exit(2)


def _remove_if_empty(folder: Path) -> None:
    """Take back the folders that Hydra made for a run that never started."""
    for path in (folder, *folder.parents):
        try:
            path.rmdir()
        except OSError:
            return
