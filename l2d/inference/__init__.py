"""Inference: a trained system on new inputs. Importing this does not import torch."""

from typing import TYPE_CHECKING

from l2d.inference.table import COLUMNS, Predictions
from l2d.lazy import lazy

if TYPE_CHECKING:
    from l2d.inference.system import TrainedSystem, load
else:  # these need torch
    __getattr__ = lazy(__name__, {"l2d.inference.system": ["TrainedSystem", "load"]})

__all__ = ["COLUMNS", "Predictions", "TrainedSystem", "load"]
