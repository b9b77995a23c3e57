"""The launcher behind hydra/launcher=joblib. Hydra takes plugins from this namespace package only; the work is in l2d/parallel.py."""

from typing import Any

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ParallelLauncher(Launcher):
    """`n_jobs` processes take the cells in turn; -1: one per processor. `others` are refused with a sentence."""

    def __init__(self, n_jobs: Any, **others: Any):
        self.n_jobs, self.others = n_jobs, others

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from l2d.parallel import check  # here, because Hydra loads all plugins at its start

        check(self.n_jobs, self.others)
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Any, initial_job_idx: int) -> Any:
        from l2d.parallel import launch

        return launch(self, job_overrides, initial_job_idx)
