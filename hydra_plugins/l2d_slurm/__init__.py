"""The launcher of conf/hydra/launcher/slurm.yaml. Hydra takes plugins from this namespace package only; the work is in l2d/slurm.py."""

from collections.abc import Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class CellLauncher(Launcher):
    """A Slurm job per cell; a job that is refused or killed is a failure of its own cell."""

    def __init__(self, **params: Any):
        self.params = {
            key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in params.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from l2d.slurm import check  # here, because Hydra loads all plugins at its start

        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        if not config.plan:
            check(self.params)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher

        from l2d.slurm import run_jobs

        cell = SlurmLauncher()  # what a job calls
        cell.setup(hydra_context=self.hydra_context, task_function=self.task_function, config=self.config)
        state = Singleton.get_state()
        arguments = [
            (list(overrides), "hydra.sweep.dir", number, f"job_id_for_{number}", state)
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]
        outcomes = run_jobs(cell, arguments, self.params)
        return [
            outcome if isinstance(outcome, JobReturn) else JobReturn(status=JobStatus.COMPLETED, _return_value=outcome)
            for outcome in outcomes
        ]
