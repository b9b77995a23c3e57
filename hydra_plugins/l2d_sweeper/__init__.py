"""The sweeper of conf/hydra/sweeper/cells.yaml. Hydra takes plugins from this namespace package only; the work is in l2d/sweep.py."""

from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class CellSweeper(Sweeper):
    """The cells of one grid or of several: finished ones are skipped, and a failing one does not stop the others."""

    def __init__(self, params: dict[str, str], grids: list[dict[str, str]]):
        self.params, self.grids = params, grids

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from l2d.sweep import sweep, union  # here, because Hydra loads all plugins at its start

        assert self.hydra_context is not None and self.config is not None  # set up before
        swept = union(self.hydra_context.config_loader, self.params, self.grids, arguments)
        return sweep(self.launcher, self.hydra_context, self.config, swept)
