"""The sweeper of conf/hydra/sweeper/cells.yaml. Hydra takes plugins from this namespace package only; the work is in l2d/sweep.py."""

from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class CellSweeper(Sweeper):
    """A grid of cells: finished ones are skipped, and a failing one does not stop the others."""

    def __init__(self, params: dict[str, str]):
        self.params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from l2d.sweep import sweep  # here, because Hydra loads all plugins at its start

        assert self.hydra_context is not None and self.config is not None  # set up before
        words = [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
        return sweep(self.launcher, self.hydra_context, self.config, words)
