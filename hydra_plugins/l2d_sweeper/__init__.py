"""The sweepers of conf/hydra/sweeper. Hydra takes plugins from this namespace package only; the work is in l2d/sweep.py and l2d/bench."""

from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class _Launching(Sweeper):
    """A sweeper that hands its cells to a launcher."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )


class CellSweeper(_Launching):
    """The cells of one grid or of several: finished ones are skipped, and a failing one does not stop the others."""

    def __init__(self, params: dict[str, str], grids: list[dict[str, str]]):
        self.params, self.grids = params, grids

    def sweep(self, arguments: list[str]) -> Any:
        from l2d.sweep import sweep, union  # here, because Hydra loads all plugins at its start

        assert self.hydra_context is not None and self.config is not None  # set up before
        swept = union(self.hydra_context.config_loader, self.params, self.grids, arguments)
        return sweep(self.launcher, self.hydra_context, self.config, swept)


class BenchSweeper(_Launching):
    """The runs of `l2d bench`: trials first, then the runs with what they chose. `record` is the file with the protocol."""

    def __init__(self, record: str):
        self.record = record

    def sweep(self, arguments: list[str]) -> Any:
        from l2d.bench.rounds import Rounds, read_record, write_record

        assert self.hydra_context is not None and self.config is not None
        path = Path(self.record)
        protocol, _ = read_record(path)
        ran = Rounds(self.launcher, self.hydra_context, self.config, protocol).run(arguments)
        if not self.config.plan:
            write_record(path, protocol, ran)
