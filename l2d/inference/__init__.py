"""Inference: a trained system on new inputs. Importing this does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from l2d.inference.table import COLUMNS, Predictions

if TYPE_CHECKING:
    from l2d.inference.system import TrainedSystem, load

_NEEDS_TORCH = {"TrainedSystem": "system", "load": "system"}

__all__ = ["COLUMNS", "Predictions", "TrainedSystem", "load"]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"l2d.inference.{_NEEDS_TORCH[name]}"), name)
