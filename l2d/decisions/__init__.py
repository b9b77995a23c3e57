"""Decisions: who answers each sample, from what a system believes and what asking costs."""

from l2d.decisions.decide import Decision, decide, pick

__all__ = ["Decision", "decide", "pick"]
