"""Where metrics go besides the run's folder. A tracker is any class with the three methods of `Tracker`."""

import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from omegaconf import OmegaConf

from l2d.atomic import atomic_write, read_text
from l2d.errors import UserError, notify
from l2d.identity import method_parts
from l2d.tracking.read import HEADLINE
from l2d.tracking.run_folder import environment, sweep_manifest
from l2d.tracking.shown import best_epoch, deferral, described, first_line, reliability, scalars

START_SECONDS = 5  # how long the start of a run waits for W&B before the run is kept offline
FINISH_SECONDS = 10  # how long the end of a run waits for the last upload; the rest stays on disk
WEIGHTS_SECONDS = 600  # the same, if weights are uploaded

Mode = Literal["online", "offline", "disabled"]


@runtime_checkable
class Tracker(Protocol):
    """`start` is called once, `log` after every epoch, `finish` once, also if the run fails: see result["status"]."""

    def start(self, name: str, config: dict[str, Any], folder: Path) -> None: ...
    def log(self, row: dict[str, Any]) -> None: ...
    def finish(self, result: dict[str, Any]) -> None: ...


@contextmanager
def ending(tracker: Tracker, reporter: Any) -> Iterator[None]:
    """If the run fails or is stopped inside, remove its bar and finish it in the tracker, so that it is not shown as running."""
    try:
        yield
    except BaseException as error:
        reporter.stop()
        tracker.finish({"status": "failed" if isinstance(error, Exception) else "interrupted"})
        raise


class NullTracker:
    """Tracks nothing: the run's folder has its own files."""

    def start(self, name: str, config: dict[str, Any], folder: Path) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        pass

    def finish(self, result: dict[str, Any]) -> None:
        pass


class WandbTracker:
    """One W&B run per run folder. Its id is in the file `wandb_id`, so a resumed training continues the same W&B run.

    W&B never stops a training: if it cannot be reached the run is kept on disk, and a later failure is reported once.
    """

    def __init__(self, project: str, entity: str | None, mode: Mode, weights: bool):
        self.project, self.entity, self.mode, self.weights = project, entity, mode, weights
        self.run: Any = None
        self.wandb: Any = None

    def start(self, name: str, config: dict[str, Any], folder: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its usage reports wait for the network at exit
        os.environ.setdefault("WANDB_HTTP_TIMEOUT", str(START_SECONDS))
        import wandb

        self.wandb, self.folder, self.failed = wandb, folder, False
        self._try(lambda: self._open(self._arguments(name, config)))

    def _arguments(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        chosen = described(name, config)
        known, sweep = self.folder / "wandb_id", sweep_manifest()
        return {
            "project": self.project,
            "entity": self.entity,
            "name": name,
            "id": read_text(known).strip() if known.exists() and not config["force"] else secrets.token_hex(4),
            "group": sweep[0].stem if sweep else None,
            "job_type": "train",
            "tags": [str(chosen["dataset"]), str(chosen["experts"]), *method_parts(chosen)],
            "config": {**config, "choices": chosen, "code": environment()},
            "dir": str(self.folder),
            "reinit": "create_new",  # a multirun has several runs in one process
            "settings": self.wandb.Settings(
                init_timeout=START_SECONDS,
                finish_timeout=WEIGHTS_SECONDS if self.weights else FINISH_SECONDS,
                finish_timeout_raises=True,
                silent=True,
                console="off",
                # record nothing about the machine, its environment or its git remote, which may contain a token
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_save_requirements=False,
            ),
        }

    def _open(self, arguments: dict[str, Any]) -> None:
        why = self._why_unavailable() if self.mode == "online" else ""
        if self.mode == "online" and not why:
            try:
                self.run = self.wandb.init(**arguments, mode="online", resume="allow")
                logging.getLogger("l2d").info("W&B: %s", self.run.url)
            except Exception as error:  # of any class: the training must go on
                why = first_line(error)
                arguments["id"] = secrets.token_hex(4)  # the id of the failed attempt cannot be used again
        if self.run is None:
            self.run = self.wandb.init(**arguments, mode="offline" if why else self.mode)
        if why:
            notify(f"W&B is not available ({why}); this run is kept offline, upload it with: {self._sync()}")
        if self.mode != "disabled":
            atomic_write(self.folder / "wandb_id", lambda file: file.write(f"{self.run.id}\n".encode()), durable=False)
        self.run.define_metric("*", step_metric="epoch")

    def _why_unavailable(self) -> str:
        """Why W&B would reject a run: no key, a wrong key, no connection. Empty if it is available."""
        try:
            return "" if self.wandb.login(prompt=False, verify=True) else "no API key; `wandb login` stores one"
        except Exception as error:
            return first_line(error)

    def log(self, row: dict[str, Any]) -> None:
        self._try(lambda: self.run.log(scalars(row)))

    def finish(self, result: dict[str, Any]) -> None:
        if self.run is not None:
            self._try(lambda: self._close(result))

    def _close(self, result: dict[str, Any]) -> None:
        finished = result["status"] == "finished"
        try:
            if finished:
                self._log_outcome(result)
        finally:
            try:
                self.run.finish(exit_code=0 if finished else 1)
            except TimeoutError:
                notify(f"W&B did not upload the whole run in time; upload the rest with: {self._sync()}")
        if self.mode == "offline":
            logging.getLogger("l2d").info("W&B: upload this run with: %s", self._sync())

    def _log_outcome(self, result: dict[str, Any]) -> None:
        """The last and the best metrics, a row for charts over the number of experts, deferrals per expert, calibration."""
        metrics = result["metrics"]
        self.run.summary.update(scalars(metrics) | best_epoch(self.folder))
        columns, rows = deferral(result)
        table = self.wandb.Table(columns=columns, data=rows)
        bars = self.wandb.plot.bar(table, "expert", "deferred_to", title="Deferred to each expert, % of the test set")
        final = {f"final/{key}": metrics[key] for key in HEADLINE}
        self.run.log({"final/num_experts": len(rows), **final, "deferral": bars, **self._reliability(result)})
        artifact = self.wandb.Artifact(f"result-{self.run.id}", type="result")
        for file in ("result.json", "model.safetensors") if self.weights else ("result.json",):
            artifact.add_file(str(self.folder / file), policy="immutable")  # uploaded from where it is, not copied
        self.run.log_artifact(artifact)

    def _reliability(self, result: dict[str, Any]) -> dict[str, Any]:
        """Accuracy against confidence, a table and a line; needs evaluation=full."""
        diagrams = {}
        for who, ((columns, rows), ece) in reliability(result).items():
            title = f"Reliability of the {who}, %" + ("" if ece is None else f" (ECE {ece:.1f})")
            table = self.wandb.Table(columns=columns, data=rows)
            diagrams[f"reliability/{who}"] = self.wandb.plot.line(table, "confidence", "accuracy", title=title)
            self.run.summary[f"ece/{who}"] = ece
        return diagrams

    def _try(self, action: Callable[[], None]) -> None:
        """A failure of W&B is reported and ends the tracking, not the training."""
        if self.failed:
            return
        try:
            action()
        except Exception as error:
            self.failed = True
            notify(f"W&B failed ({first_line(error)}); the training goes on without it, and its files are complete.")

    def _sync(self) -> str:
        return f"wandb sync {Path(self.run.settings.sync_dir)}"


class TensorBoardTracker:
    """Event files below the run's folder, for `tensorboard --logdir outputs`."""

    def __init__(self) -> None:
        if not find_spec("tensorboard"):
            raise UserError("TensorBoard is not installed; pip install 'l2d[tensorboard]' adds it.")
        self.writer: Any = None

    def start(self, name: str, config: dict[str, Any], folder: Path) -> None:
        self.config, self.folder = config, folder / "tensorboard"

    def log(self, row: dict[str, Any]) -> None:
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step hides what an earlier attempt logged from this epoch on
            self.writer = SummaryWriter(self.folder, purge_step=row["epoch"])
            self.writer.add_text("config", f"```yaml\n{OmegaConf.to_yaml(OmegaConf.create(self.config))}```")
        for key, value in scalars(row).items():
            self.writer.add_scalar(key, value, row["epoch"])

    def finish(self, result: dict[str, Any]) -> None:
        if self.writer is not None:
            self.writer.close()


class MultiTracker:
    """W&B and TensorBoard at once."""

    def __init__(self, project: str, entity: str | None, mode: Mode, weights: bool):
        self.trackers: list[Tracker] = [TensorBoardTracker(), WandbTracker(project, entity, mode, weights)]

    def start(self, name: str, config: dict[str, Any], folder: Path) -> None:
        for tracker in self.trackers:
            tracker.start(name, config, folder)

    def log(self, row: dict[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.log(row)

    def finish(self, result: dict[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.finish(result)
