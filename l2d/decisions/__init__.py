"""Decisions: who answers each sample, from what a system believes and what asking costs."""

from l2d.decisions.allocate import Allocation, allocate
from l2d.decisions.assign import assign
from l2d.decisions.best import best
from l2d.decisions.budget import budget, price_for
from l2d.decisions.caps import caps
from l2d.decisions.cases import Cases, Deployment, Needs, needs
from l2d.decisions.combine import combine
from l2d.decisions.committee import committee
from l2d.decisions.conformal import conformal
from l2d.decisions.decide import Decision, decide, pick
from l2d.decisions.vote import vote

__all__ = [
    "Allocation", "Cases", "Decision", "Deployment", "Needs", "allocate", "assign", "best", "budget", "caps", "combine", "committee",
    "conformal", "decide", "needs", "pick", "price_for", "vote",
]  # fmt: skip
