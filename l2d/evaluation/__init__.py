"""Evaluation: what a system did on a split, and what can be said about it. Importing this does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from l2d.evaluation.metrics import HEADLINE, METRICS, REFERENCE, Metric, measure

if TYPE_CHECKING:
    from l2d.evaluation.bayes import bayes_optimum
    from l2d.evaluation.outcome import Outcome, observe, outcome_of

_LATER = {
    "Outcome": "outcome",
    "bayes_optimum": "bayes",
    "observe": "outcome",
    "outcome_of": "outcome",
}  # these need torch

__all__ = ["HEADLINE", "METRICS", "REFERENCE", "Metric", "Outcome", "bayes_optimum", "measure", "observe", "outcome_of"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"l2d.evaluation.{_LATER[name]}"), name)
