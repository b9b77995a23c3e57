"""Decisions: who answers each sample, from what a system believes and what asking costs."""

from l2d.decisions.allocate import Allocation, allocate
from l2d.decisions.assign import assign
from l2d.decisions.best import best
from l2d.decisions.budget import budget, price_for
from l2d.decisions.caps import caps
from l2d.decisions.cases import Cases, Deployment, Needs, needs
from l2d.decisions.decide import Decision, decide, pick

__all__ = [
    "Allocation", "Cases", "Decision", "Deployment", "Needs", "allocate", "assign", "best", "budget", "caps", "decide", "needs",
    "pick", "price_for",
]  # fmt: skip
