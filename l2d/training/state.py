"""The state of a training: what a checkpoint holds, when one is due, and when to stop."""

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from l2d.config import build, plain
from l2d.data import Loader
from l2d.errors import UserError
from l2d.lazy import importing
from l2d.place.place import random_state, restore_random_state
from l2d.signals import StopSignal
from l2d.systems import Stage, System
from l2d.training.checkpoint import Checkpoints
from l2d.training.schedule import make_schedule


class TrainingState:
    """The position (stage, epoch, step), the losses of the epoch, and all that changes while a system is trained."""

    def __init__(self, cfg: DictConfig, system: System, loader: Loader, checkpoints: Checkpoints, stop: StopSignal):
        self.cfg, self.system, self.place, self.checkpoints, self.stop = cfg, system, loader.place, checkpoints, stop
        self.settings = SimpleNamespace(**plain(cfg.trainer))  # read several times a step; a DictConfig is too slow
        self.stages = system.stages()
        self.frozen = {id(p) for p in system.parameters() if not p.requires_grad}
        self.loaders = [loader if stage.rows is None else loader.take(stage.rows) for stage in self.stages]
        one = any(each.batch_size == 1 for each in self.loaders)
        if one and any(isinstance(module, _BatchNorm) for module in system.modules()):
            raise UserError("Batch norm cannot train on batches of one sample; use a trainer.batch_size of at least 2.")
        self.stage = self.epoch = self.step = self.skipped = 0
        self.rows: list[dict[str, Any]] = []  # of metrics.csv
        self.losses = torch.zeros(max(map(len, self.loaders)), device=self.place.device)  # of the epoch's steps
        self.saved, self.epochs_since_save = time.monotonic(), 0
        # A GPU runs ahead of the host, which waits for it only at the log interval; on the CPU there is nothing to wait for.
        self.check_every = self.settings.log_every if self.place.device.type == "cuda" else 1
        alone = self.place.device.type == "cpu" and self.place.ranks.count == 1
        self.host_losses = self.losses.numpy() if alone else None  # the same memory: a number is written there sooner
        self.begin_stage(0)

    def begin_stage(self, number: int) -> None:
        """Freeze all but the parameters of a stage and start its optimiser and schedule."""
        self.stage, self.epoch, self.step = number, 0, 0
        stage = self.stages[number]
        self.system.stage = stage.name
        trained = {id(p) for p in stage.parameters} - self.frozen
        for parameter in self.system.parameters():
            parameter.requires_grad_(id(parameter) in trained)
        parameters = [p for p in stage.parameters if p.requires_grad]
        if not parameters:
            raise UserError(f"freeze={plain(self.cfg.freeze)} leaves stage {stage.name} nothing to train; freeze less.")
        # fused CPU optimisers do not support GradScaler
        fused = self.place.device.type == "cuda" or (self.place.device.type == "cpu" and self.place.precision != "fp16")
        with importing():  # torch imports a part of its compiler with the first optimiser
            self.optimizer = build(self.cfg, "optim", Optimizer, params=parameters, fused=fused)
        optim, epochs = self.cfg.optim, self.stage_epochs(number)
        self.schedule = make_schedule(self.optimizer, optim.schedule, self.steps_per_epoch, epochs, optim.warmup_epochs)
        self.scaler = torch.amp.GradScaler(self.place.device.type, enabled=self.place.precision == "fp16")
        self.model = self.place.ranks.wrap(self.system, self.settings.sync_batchnorm, self.place.device)

    @property
    def current(self) -> Stage:
        return self.stages[self.stage]

    @property
    def loader(self) -> Loader:
        return self.loaders[self.stage]

    @property
    def steps_per_epoch(self) -> int:
        return len(self.loader)

    @property
    def steps_of_stage(self) -> int:
        """Steps done in this stage."""
        return self.epoch * self.steps_per_epoch + self.step

    def stage_epochs(self, number: int) -> int:
        return self.stages[number].epochs or self.settings.epochs

    @property
    def total_epochs(self) -> int:
        return sum(self.stage_epochs(number) for number in range(len(self.stages)))

    @property
    def finished_epochs(self) -> int:
        """Over all stages."""
        return self.epoch + sum(self.stage_epochs(number) for number in range(self.stage))

    def train_mode(self) -> None:
        """Training mode for all that is trained; frozen modules stay in evaluation mode (batch norm, dropout)."""
        self.model.train()
        if all(p.requires_grad for p in self.system.parameters()):
            return
        for module in self.system.modules():
            parameters = list(module.parameters())
            if parameters and not any(p.requires_grad for p in parameters):
                module.eval()

    def should_skip(self, loss: Tensor) -> bool:
        """Whether to skip this step: its loss is NaN or infinite on any rank. With `skip_nonfinite=0` never, and without waiting for the device."""
        if not self.settings.skip_nonfinite:
            return False
        if self.place.ranks.all_reduce_max(0 if math.isfinite(loss.item()) else 1) == 0:
            return False
        self.skipped += 1
        if self.skipped > self.settings.skip_nonfinite:
            self._fail(self.step + 1, f", after {self.settings.skip_nonfinite} such steps were skipped")
        return True

    def advance(self, loss: Tensor) -> None:
        """Count a step: its loss is looked at if it is time to, and the learning rate is that of the next one."""
        value = None
        if self.host_losses is None:
            self.losses[self.step] = loss.detach()
        else:
            self.host_losses[self.step] = value = loss.item()
        self.step += 1
        self.schedule.set(self.steps_of_stage)
        if self.step % self.check_every == 0 and (value is None or not math.isfinite(value)):
            self.mean_loss()

    def mean_loss(self) -> float:
        """The epoch's mean so far, over all ranks; waits for the device. Fails after a NaN or infinite loss that was not skipped."""
        losses = self.losses[: self.step]
        if self.settings.skip_nonfinite:
            losses = losses.nan_to_num(0, 0, 0)
        total = self.place.ranks.mean(losses.sum().item())
        if not math.isfinite(total):
            good = int(losses.isfinite().long().cumprod(0).sum())  # steps before the first bad one
            self._fail(-self.place.ranks.all_reduce_max(-good) + 1)
        return total / max(self.step, 1)

    def next_epoch(self) -> None:
        """Move on to the next epoch, or to the first of the next stage, with a checkpoint if one is due."""
        self.epoch, self.step = self.epoch + 1, 0
        self.epochs_since_save += 1
        self.losses.zero_()
        if self.finished_epochs == self.total_epochs:
            return  # only the result remains to be written
        if self.epoch == self.stage_epochs(self.stage):
            self.begin_stage(self.stage + 1)
        if self.settings.checkpoint_epochs and self.epochs_since_save >= self.settings.checkpoint_epochs:
            self.save()
        self.save_if_due()  # an epoch may be shorter than the log interval

    def save_if_due(self) -> None:
        """Between steps: a checkpoint if the interval has passed, and one before stopping if any rank received a signal."""
        if self.step % self.check_every:
            return
        minutes = self.settings.checkpoint_minutes
        due = minutes is not None and time.monotonic() - self.saved >= 60 * minutes
        request = self.place.ranks.all_reduce_max(2 * self.stop.received + due)
        if request:
            self.save()
        if request // 2:
            self.stop.received = request // 2
            self.place.ranks.part()
            self.stop.leave()

    def save(self) -> None:
        self.mean_loss()
        state = {
            "ranks": self.place.ranks.count,
            "position": [self.stage, self.epoch, self.step],
            "skipped": self.skipped,
            "rows": self.rows,
            "system": self.system.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "own": self.place.ranks.collect({"losses": self.losses.cpu(), "random": random_state(self.place.device)}),
        }
        if self.place.ranks.first:
            self.checkpoints.save(state)
        self.saved, self.epochs_since_save = time.monotonic(), 0

    def restore(self) -> bool:
        """Load the checkpoint that `resume` names, if there is one; return whether there is."""
        if self.cfg.resume == "never" or self.cfg.force:
            self.checkpoints.remove()
            return False
        saved = self.checkpoints.latest() if self.cfg.resume == "auto" else self.checkpoints.load(Path(self.cfg.resume))
        if saved:
            self.load(saved)
        position, ranks = self.finished_epochs * self.steps_per_epoch + self.step, self.place.ranks
        if ranks.all_reduce_max(position) != -ranks.all_reduce_max(-position):
            raise UserError(
                "The processes do not find the same checkpoints; put output_dir on a disk that all of them share."
            )
        return saved is not None

    def load(self, state: dict[str, Any]) -> None:
        """Continue from the position of a checkpoint."""
        if state["ranks"] != self.place.ranks.count:
            raise UserError(
                f"This run was started with {state['ranks']} processes and continues exactly only with as many, "
                f"not {self.place.ranks.count}; use that number, or resume=never."
            )
        try:
            self.system.load_state_dict(state["system"])
        except RuntimeError as error:
            raise UserError(
                "The checkpoint's weights are those of another architecture or number of experts."
            ) from error
        stage, epoch, step = state["position"]
        if stage != self.stage:
            self.begin_stage(stage)
        self.epoch, self.step, self.skipped = epoch, step, state["skipped"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.set(self.steps_of_stage)
        self.scaler.load_state_dict(state["scaler"])
        own = state["own"][self.place.ranks.rank]
        self.losses.copy_(own["losses"])
        self.rows[:] = state["rows"]
        restore_random_state(own["random"], self.place.device)

    def _fail(self, step: int, after: str = "") -> None:
        lr = self.schedule.rates[0] * self.schedule.multiplier(self.epoch * self.steps_per_epoch + step - 1)
        last = self.checkpoints.existing()
        raise UserError(
            f"The loss was not finite at epoch {self.finished_epochs + 1}, step {step} (learning rate {lr:.3g}){after}; "
            + (f"the last good checkpoint is {last}; " if last else "there is no checkpoint before it; ")
            + "lower optim.lr, set trainer.clip_grad, or allow some such steps with trainer.skip_nonfinite."
        )
