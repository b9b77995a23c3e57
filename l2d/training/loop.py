"""The training loop and the forward pass over a split. Nothing here knows about deferral."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2d.data.loader import Batch, Loader
from l2d.training.device import Device
from l2d.training.state import TrainingState


def fit(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    loader: Loader,
    state: TrainingState,
    on_step: Callable[[int, int, float], None],
) -> Iterator[dict[str, Any]]:
    """Train from where `state` is, and yield a row after every epoch; `on_step(epoch, step, loss)` every `log_every` steps."""
    settings, device, optimizer, scaler = state.settings, state.device, state.optimizer, state.scaler
    while state.epoch < settings.epochs:
        model.train()
        started, first = time.perf_counter(), state.step
        for images, *targets in loader.epoch(state.epoch, start=state.step):
            with device.autocast():
                scores = model(images)
            loss = loss_fn(scores, *targets)
            optimizer.zero_grad(set_to_none=True)
            if not state.refuses(loss):
                scaler.scale(loss).backward()
                if settings.clip_grad:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad)
                scaler.step(optimizer)
                scaler.update()
            state.schedule.step()
            state.advance(loss)
            if state.step % settings.log_every == 0:
                on_step(state.epoch, state.step, state.mean_loss())  # the one place where the device is waited for
            state.save_if_due()
        yield {
            "epoch": state.epoch + 1,
            "loss": state.mean_loss(),
            "lr": optimizer.param_groups[0]["lr"],
            "images_per_second": (state.step - first)
            * loader.batch_size
            * state.ranks.count
            / (time.perf_counter() - started),
        }
        state.next_epoch()


def predict(model: nn.Module, loader: Loader, device: Device) -> tuple[Tensor, ...]:
    """Scores [N, K+J] of a whole split, in float32, and behind them the targets that came with its images."""
    scored = [score(model, batch, device, loader.batch_size) for batch in loader.epoch()]
    return tuple(torch.cat(column) for column in zip(*scored, strict=True))


@torch.no_grad()
def score(model: nn.Module, batch: Batch, device: Device, rows: int = 0) -> tuple[Tensor, ...]:
    """The same of one batch, filled up to `rows` images: another shape would have to be compiled or tuned for as well."""
    images, *targets = batch
    missing = max(rows - len(images), 0)
    filled = F.pad(images, (0,) * 7 + (missing,)) if missing else images
    with device.autocast():
        scores = model.eval()(filled)
    return (scores[: len(images)].float(), *targets)
