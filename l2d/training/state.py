"""Where a training is: what a checkpoint holds, when one is due, and when to stop."""

import math
import time
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from l2d.config import fingerprint, plain
from l2d.errors import UserError
from l2d.tracking.run_folder import RunFolder
from l2d.training.checkpoint import NAMES, save_checkpoint
from l2d.training.device import Device, random_state, restore_random_state
from l2d.training.ranks import Ranks
from l2d.training.signals import StopSignal


class TrainingState:
    """The position (epoch, step), the running loss, and all that changes while a model is trained."""

    def __init__(
        self,
        folder: RunFolder,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: LambdaLR,
        steps_per_epoch: int,
        settings: DictConfig,
        device: Device,
        ranks: Ranks,
        stop: StopSignal,
    ):
        self.folder, self.model, self.optimizer, self.schedule = folder, model, optimizer, schedule
        self.steps_per_epoch = steps_per_epoch
        self.settings = SimpleNamespace(**plain(settings))  # asked several times a step, for which a config is too slow
        self.device, self.ranks, self.stop = device, ranks, stop
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=device.precision == "fp16")
        self.epoch = self.step = self.skipped = 0
        self.losses = torch.zeros(steps_per_epoch, device=device.device)  # of the epoch's steps
        self.saved, self.saved_epoch = time.monotonic(), 0
        # A device that works ahead is asked only at the log interval; the CPU has nothing to wait for.
        self.look_every = settings.log_every if device.device.type == "cuda" else 1

    def refuses(self, loss: Tensor) -> bool:
        """Whether this step is left out: only if `skip_nonfinite` allows it (which waits for the device every step)."""
        if not self.settings.skip_nonfinite or self.ranks.agree(0 if math.isfinite(loss.item()) else 1) == 0:
            return False
        self.skipped += 1
        if self.skipped > self.settings.skip_nonfinite:
            self._fail(self.step + 1, f", after {self.settings.skip_nonfinite} such steps were skipped")
        return True

    def advance(self, loss: Tensor) -> None:
        self.losses[self.step] = loss.detach()
        self.step += 1
        if self.step % self.look_every == 0:
            self.mean_loss()

    def mean_loss(self) -> float:
        """The epoch's mean so far, over all ranks; refuses to go on after a loss that was no number, unless it was skipped."""
        losses = self.losses[: self.step]
        if self.settings.skip_nonfinite:
            losses = losses.nan_to_num(0, 0, 0)
        total = self.ranks.mean(losses.sum().item())
        if not math.isfinite(total):
            good = int(losses.isfinite().long().cumprod(0).sum())  # steps before the first bad one
            self._fail(-self.ranks.agree(-good) + 1)
        return total / max(self.step, 1)

    def next_epoch(self) -> None:
        self.epoch, self.step = self.epoch + 1, 0
        self.losses.zero_()
        if self.epoch == self.settings.epochs:
            return  # what is left is to write the result
        if self.settings.checkpoint_epochs and self.epoch - self.saved_epoch >= self.settings.checkpoint_epochs:
            self.save()
        self.save_if_due()  # an epoch may be shorter than the interval at which the device is asked

    def save_if_due(self) -> None:
        """Between steps: a checkpoint if the interval has passed, and one to stop on if a signal came to any rank."""
        if self.step % self.look_every:
            return
        minutes = self.settings.checkpoint_minutes
        due = minutes is not None and time.monotonic() - self.saved >= 60 * minutes
        asked = self.ranks.agree(2 * self.stop.received + due)
        if asked:
            self.save()
        if asked // 2:
            self.stop.received = asked // 2
            self.stop.leave()

    def save(self) -> None:
        self.mean_loss()
        state = {
            "fingerprint": fingerprint(self.folder.cfg),
            "ranks": self.ranks.count,
            "epoch": self.epoch,
            "step": self.step,
            "skipped": self.skipped,
            "rows": self.folder.rows,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "own": self.ranks.collect({"losses": self.losses.cpu(), "random": random_state(self.device.device)}),
        }
        if self.ranks.first:
            save_checkpoint(self.folder.path, state)
        self.saved, self.saved_epoch = time.monotonic(), self.epoch

    def load(self, state: dict[str, Any]) -> None:
        if state["ranks"] != self.ranks.count:
            raise UserError(
                f"This run was started with {state['ranks']} processes and continues exactly only with as many, "
                f"not {self.ranks.count}; use that number, or resume=never."
            )
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise UserError(
                "The checkpoint's weights are those of another architecture or number of experts."
            ) from error
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        self.epoch, self.step, self.skipped = state["epoch"], state["step"], state["skipped"]
        self.saved_epoch = self.epoch
        own = state["own"][self.ranks.rank]
        self.losses.copy_(own["losses"])
        self.folder.rows[:] = state["rows"]
        restore_random_state(own["random"], self.device.device)

    def _fail(self, step: int, after: str = "") -> None:
        lr = self.schedule.base_lrs[0] * self.schedule.lr_lambdas[0](self.epoch * self.steps_per_epoch + step - 1)
        good = next((path for path in (self.folder.path / name for name in NAMES) if path.exists()), None)
        raise UserError(
            f"The loss was not finite at epoch {self.epoch + 1}, step {step} (learning rate {lr:.3g}){after}; "
            + (f"the last good checkpoint is {good}; " if good else "there is no checkpoint before it; ")
            + "lower optim.lr, set trainer.clip_grad, or allow some such steps with trainer.skip_nonfinite."
        )
