"""The training loop and the forward pass over a split. Nothing here knows about deferral."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from l2d.data.loader import Loader
from l2d.training.device import Device


def fit(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    optimizer: Optimizer,
    schedule: LRScheduler,
    loader: Loader,
    device: Device,
    settings: DictConfig,
    on_step: Callable[[int, int, float], None],
) -> Iterator[dict[str, Any]]:
    """Train, and yield a row after every epoch; `on_step(epoch, step, loss)` is called every `settings.log_every` steps."""
    for epoch in range(settings.epochs):
        model.train()
        started, total = time.perf_counter(), torch.zeros((), device=device.device)
        for step, (images, *targets) in enumerate(loader.epoch(epoch), start=1):
            with device.autocast():
                scores = model(images)
            loss = loss_fn(scores, *targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if settings.clip_grad:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad)
            optimizer.step()
            schedule.step()
            total += loss.detach()
            if step % settings.log_every == 0:
                on_step(epoch, step, total.item() / step)  # the one place where the device is waited for
        mean_loss = total.item() / len(loader)
        seconds = time.perf_counter() - started
        yield {
            "epoch": epoch + 1,
            "loss": mean_loss,
            "lr": optimizer.param_groups[0]["lr"],
            "images_per_second": len(loader) * loader.batch_size / seconds,
        }


@torch.no_grad()
def predict(model: nn.Module, loader: Loader, device: Device) -> tuple[Tensor, ...]:
    """Scores [N, K+J] of a whole split, in float32, and behind them the targets that came with its images."""
    model.eval()
    batches = []
    for images, *targets in loader.epoch():
        with device.autocast():
            batches.append((model(images).float(), *targets))
    return tuple(torch.cat(column) for column in zip(*batches, strict=True))
