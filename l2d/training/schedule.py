"""The learning rate of every iteration."""

from collections.abc import Callable
from math import cos, pi

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from l2d.errors import UserError

SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + cos(pi * done)),
    "constant": lambda done: 1.0,
}


def make_schedule(optimizer: Optimizer, schedule: str, steps: int, epochs: int, warmup_epochs: float) -> LambdaLR:
    """A linear warmup, then the schedule over the steps that remain; to be stepped every iteration, `steps` of them an epoch."""
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

    return LambdaLR(optimizer, multiplier)
