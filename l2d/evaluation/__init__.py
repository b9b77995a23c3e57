"""Evaluation: scores -> decisions -> metrics, as pure functions of tensors."""

from l2d.evaluation.bayes import bayes_optimum
from l2d.evaluation.metrics import decide, evaluate

__all__ = ["bayes_optimum", "decide", "evaluate"]
