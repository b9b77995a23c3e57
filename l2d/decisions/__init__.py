"""Decisions: who answers each sample, from what a system believes and what asking costs."""

from l2d.decisions.best import best
from l2d.decisions.cases import Cases, Deployment, Needs, needs
from l2d.decisions.decide import Decision, decide, pick

__all__ = ["Cases", "Decision", "Deployment", "Needs", "best", "decide", "needs", "pick"]
