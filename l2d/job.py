"""Hydra around run(cfg), and errors as sentences. torch is imported only once a run starts."""

import logging
import os
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from l2d.conf_files import config_dir
from l2d.errors import UserError, errors_as_sentences, sentence, show
from l2d.identity import register_resolvers
from l2d.lazy import importing
from l2d.sweep import plan, plan_line
from l2d.tracking.read import read_result
from l2d.tracking.run_folder import InUse, finished_line, remove_if_empty


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="train")
def job(cfg: DictConfig) -> dict[str, Any]:
    """One run, alone or as a cell of a sweep. A cell returns its failure, so that the sweep can go on."""
    if HydraConfig.get().mode == RunMode.RUN:
        with errors_as_sentences():  # inside, because Hydra adds lines to an exception that passes through it
            return _run(cfg)
    try:
        return {"metrics": _run(cfg)}
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> dict[str, Any]:
    """What a cell returns that ended in this error; the traceback of a bug goes to its log."""
    if isinstance(error, InUse):
        return {"in_use": sentence(error)}
    if isinstance(error, UserError):
        return {"error": sentence(error), "by_user": True}
    logging.getLogger("l2d").error("This cell failed.", exc_info=error)
    return {"error": f"{type(error).__name__}: {sentence(error)}", "by_user": False}


def register_plugins() -> None:
    """Hydra finds the plugins itself when they are installed from a wheel; in an editable install it does not."""
    plugins = Plugins.instance()  # first, because it reloads the plugins that it finds
    from hydra_plugins.l2d_parallel import ParallelLauncher
    from hydra_plugins.l2d_slurm import CellLauncher
    from hydra_plugins.l2d_sweeper import BenchSweeper, CellSweeper

    plugins.register(CellLauncher)
    plugins.register(BenchSweeper)
    plugins.register(CellSweeper)
    plugins.register(ParallelLauncher)
    # Stored, and not a YAML file, which Hydra would compare with the config of hydra-joblib-launcher where that is installed.
    target = f"{ParallelLauncher.__module__}.{ParallelLauncher.__qualname__}"
    node = OmegaConf.create({"_target_": target, "n_jobs": -1}, flags={"struct": False})  # it refuses other keys itself
    ConfigStore.instance().store("joblib", node, group="hydra/launcher", provider="l2d")


def _run(cfg: DictConfig) -> dict[str, Any]:
    register_resolvers()  # again, in the workers of a parallel launcher
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        action, why = plan(folder, cfg)
        if cfg.get("plan") is True:  # other values are validated by the run
            print(plan_line(folder, action, why))
            return {}
        if action == "skip" and not one_of_several() and (result := read_result(folder)):
            show(finished_line(folder, why))  # at once: torch is not imported
            metrics: dict[str, Any] = result["metrics"]
            return metrics
        with importing():
            from l2d.train import run

        return run(cfg)
    finally:
        _remove_if_rejected(folder)


def one_of_several() -> bool:
    """Whether torchrun or srun started this process, perhaps with others."""
    return not os.environ.keys().isdisjoint(("RANK", "SLURM_PROCID"))


def _remove_if_rejected(folder: Path) -> None:
    """Hydra creates the folder, and its `output_subdir` with three files, even for a run that is refused."""
    own = folder / (HydraConfig.get().output_subdir or "")
    if own != folder and not (folder / "config.yaml").exists():
        for name in ("config.yaml", "hydra.yaml", "overrides.yaml"):
            (own / name).unlink(missing_ok=True)
    remove_if_empty(own)
