"""Where metrics go beside the run's folder. A tracker is anything with these three methods."""

from pathlib import Path
from typing import Any, Protocol

from l2d.errors import UserError


class Tracker(Protocol):
    def start(self, name: str, config: dict[str, Any], folder: Path) -> None: ...
    def log(self, row: dict[str, Any]) -> None: ...
    def finish(self, result: dict[str, Any]) -> None: ...


class FilesOnly:
    """Nothing beside the folder."""

    def start(self, name: str, config: dict[str, Any], folder: Path) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        pass

    def finish(self, result: dict[str, Any]) -> None:
        pass


class WandbTracker:
    """One W&B run per training run: the config, the epochs, the final metrics."""

    def __init__(self, project: str, entity: str | None, mode: str):
        if mode not in ("online", "offline", "disabled"):
            raise UserError(f"logger.mode={mode} must be online, offline or disabled.")
        self.project, self.entity, self.mode = project, entity, mode

    def start(self, name: str, config: dict[str, Any], folder: Path) -> None:
        import wandb

        self.run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,  # type: ignore[arg-type]
            name=name,
            config=config,
            dir=str(folder),
            reinit="create_new",  # the jobs of a multirun share a process, and must not share a run
        )
        self.run.define_metric("*", step_metric="epoch")

    def log(self, row: dict[str, Any]) -> None:
        self.run.log(row)

    def finish(self, result: dict[str, Any]) -> None:
        self.run.summary.update({k: v for k, v in result.get("metrics", {}).items() if not isinstance(v, list)})
        self.run.finish(exit_code=0 if result["status"] == "finished" else 1)
