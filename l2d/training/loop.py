"""The training loop and the forward pass over a split. Nothing here knows about deferral."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2d.data import Loader
from l2d.errors import UserError
from l2d.place import Place
from l2d.training.state import TrainingState

OnStep = Callable[[int, int, int, float], None]  # finished epochs, step, steps of this epoch, mean loss


def fit(state: TrainingState, on_step: OnStep) -> Iterator[dict[str, Any]]:
    """Train every stage from where `state` is, and yield a row after every epoch; `on_step` every `log_every` steps."""
    while state.finished_epochs < state.total_epochs:
        started, first = time.perf_counter(), state.step
        train_epoch(state, on_step)
        images = (state.step - first) * state.loader.batch_size * state.place.ranks.count
        yield {
            "epoch": state.finished_epochs + 1,
            **({"stage": state.current.name} if len(state.stages) > 1 else {}),
            "loss": state.mean_loss(),
            "lr": state.optimizer.param_groups[0]["lr"],
            "images_per_second": images / (time.perf_counter() - started),
        }
        state.next_epoch()


def train_epoch(state: TrainingState, on_step: OnStep) -> None:
    """The steps that are left of the current epoch. The device is waited for at the log interval and for checkpoints."""
    settings, optimizer, scaler, place = state.settings, state.optimizer, state.scaler, state.place
    model, loss_of = state.model, state.current.loss
    state.train_mode()
    for batch in state.loader.epoch(state.finished_epochs, start=state.step):
        place.begin_step()
        with place.autocast():
            outputs = model(batch.inputs)
        loss = loss_of(outputs, batch)
        optimizer.zero_grad(set_to_none=True)
        if not state.should_skip(loss):
            scaler.scale(loss).backward()
            if settings.clip_grad:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad)
            scaler.step(optimizer)
            scaler.update()
        state.advance(loss)
        if state.step % settings.log_every == 0:
            on_step(state.finished_epochs, state.step, state.steps_per_epoch, state.mean_loss())
        state.save_if_due()
        del batch  # its memory is for the next one


class Predicted(NamedTuple):
    """A whole split as the system sees it, on the CPU, in the split's order."""

    outputs: Tensor  # [N, *] float32
    labels: Tensor  # [N]
    answers: Tensor  # [N, J]
    samples: Tensor  # [N] indices in the split: all of them, except images that could not be read


def predict(system: nn.Module, loader: Loader) -> Predicted:
    """The outputs of a whole split on every rank, with the labels and answers of its samples."""
    outputs: Tensor | None = None  # [N, *]
    seen: list[Tensor] = []
    done = 0
    for batch in loader.epoch():
        part = forward(system, batch.inputs, loader.place, loader.batch_size)  # [B, *]
        outputs = part.new_empty(loader.num_samples, *part.shape[1:]) if outputs is None else outputs
        outputs[done : done + len(part)] = part  # copied: a CUDA graph overwrites its outputs
        seen.append(batch.samples)
        done += len(part)
        del batch  # its memory is for the next one
    if outputs is None:
        raise UserError(
            f"None of the {loader.num_samples} inputs of a split can be read; look at them with `l2d data check`."
        )
    samples = torch.cat(seen)
    columns = outputs[:done], loader.labels[samples], loader.answers[samples], samples
    return Predicted(*(loader.place.ranks.gather(column).cpu() for column in columns))


@torch.no_grad()
def forward(system: nn.Module, inputs: Tensor, place: Place, rows: int = 0) -> Tensor:
    """Outputs [B, *] of inputs [B, ...] in float32; padded to `rows` inputs for the pass, to reuse a batch shape that is
    already compiled or tuned for."""
    missing = max(rows - len(inputs), 0)
    padded = F.pad(inputs, (0,) * (2 * inputs.dim() - 1) + (missing,)) if missing else inputs
    place.begin_step()
    if system.training:  # `eval` visits every module, which takes as long as a small one's pass
        system.eval()
    with place.autocast():
        outputs: Tensor = system(padded)
    return outputs[: len(inputs)].float()
