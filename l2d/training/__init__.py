"""Training: the loop, the optimiser's schedule, the device."""

from l2d.training.device import Device, seed_everything
from l2d.training.loop import fit, predict
from l2d.training.schedule import make_schedule

__all__ = ["Device", "fit", "make_schedule", "predict", "seed_everything"]
