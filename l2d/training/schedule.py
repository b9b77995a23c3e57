"""The learning rate of every iteration."""

from collections.abc import Callable
from math import cos, pi

from torch.optim import Optimizer

from l2d.errors import UserError

SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + cos(pi * done)),
    "constant": lambda done: 1.0,
}


class Schedule:
    """The learning rates of an optimiser: those it was made with, times a function of the number of steps done."""

    def __init__(self, optimizer: Optimizer, multiplier: Callable[[int], float]):
        self.optimizer, self.multiplier = optimizer, multiplier
        self.rates: list[float] = [group["lr"] for group in optimizer.param_groups]
        self.set(0)

    def set(self, steps_done: int) -> None:
        """Set the rates of the step that follows."""
        factor = self.multiplier(steps_done)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor


def make_schedule(optimizer: Optimizer, schedule: str, steps: int, epochs: int, warmup_epochs: float) -> Schedule:
    """A linear warmup, then the schedule over the steps that remain; `steps` of them are an epoch."""
    if schedule not in SCHEDULES:
        raise UserError(f"optim.schedule={schedule} must be {' or '.join(SCHEDULES)}.")
    total_steps, warmup_steps = epochs * steps, round(warmup_epochs * steps)
    if warmup_steps >= total_steps:
        raise UserError("optim.warmup_epochs must be smaller than trainer.epochs.")
    factor = SCHEDULES[schedule]

    def multiplier(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        return factor((step - warmup_steps) / (total_steps - warmup_steps))

    return Schedule(optimizer, multiplier)
