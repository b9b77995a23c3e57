"""Hydra around run(cfg), and errors as sentences. torch is imported only once a run starts."""

import logging
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from l2d.config import config_dir
from l2d.errors import UserError, errors_as_sentences, sentence
from l2d.identity import register_resolvers
from l2d.sweep import plan
from l2d.tracking.run_folder import InUse, remove_if_empty

# At import, because the workers of a parallel launcher need them too.
register_resolvers()
sys.path.append("")  # the current folder: a user's own modules, named by _target_


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="train")
def job(cfg: DictConfig) -> dict[str, Any]:
    if HydraConfig.get().mode == RunMode.RUN:
        with errors_as_sentences():  # in here, because Hydra adds lines of its own to an exception that passes it
            return _run(cfg)
    try:
        return {"metrics": _run(cfg)}
    except InUse as error:
        return {"in_use": sentence(error)}
    except Exception as error:  # one cell: the sweep goes on, and tells at its end
        if isinstance(error, UserError):
            return {"error": sentence(error), "by_user": True}
        logging.getLogger("l2d").exception("This cell failed.")
        return {"error": f"{type(error).__name__}: {sentence(error)}", "by_user": False}


def _run(cfg: DictConfig) -> dict[str, Any]:
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        if cfg.get("plan") is True:  # anything else that is not false is refused by the run
            action, why = plan(folder, bool(cfg.get("force")))
            print(f"{action:<8} {folder}  {why}")
            return {}
        from l2d.train import run

        return run(cfg)
    finally:
        remove_if_empty(folder)  # Hydra made it, whatever became of the run
