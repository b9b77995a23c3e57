"""Decisions: who answers each sample, from what a system believes and what asking costs."""

from l2d.decisions.best import best
from l2d.decisions.cases import Cases, Deployment, Needs, needs
from l2d.decisions.combine import combine
from l2d.decisions.committee import committee
from l2d.decisions.conformal import conformal
from l2d.decisions.decide import Decision, decide, pick
from l2d.decisions.vote import vote

__all__ = [
    "Cases",
    "Decision",
    "Deployment",
    "Needs",
    "best",
    "combine",
    "committee",
    "conformal",
    "decide",
    "needs",
    "pick",
    "vote",
]
