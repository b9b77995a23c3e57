"""Evaluation: what a system did on a split, and what can be said about it. Importing this does not import torch."""

from typing import TYPE_CHECKING

from l2d.evaluation.metrics import HEADLINE, METRICS, REFERENCE, Metric, measure
from l2d.lazy import lazy

if TYPE_CHECKING:
    from l2d.evaluation.bayes import bayes_optimum
    from l2d.evaluation.outcome import Outcome, observe, outcome_of
else:  # these need torch
    __getattr__ = lazy(
        __name__,
        {"l2d.evaluation.bayes": ["bayes_optimum"], "l2d.evaluation.outcome": ["Outcome", "observe", "outcome_of"]},
    )

__all__ = ["HEADLINE", "METRICS", "REFERENCE", "Metric", "Outcome", "bayes_optimum", "measure", "observe", "outcome_of"]
