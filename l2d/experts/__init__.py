"""Experts: an accuracy matrix [J, K] and the simulator that draws their predictions [N, J]; or recorded annotators."""

from l2d.experts.annotators import grouped, human, mixed
from l2d.experts.panel import ExpertPanel, make_panel
from l2d.experts.patterns import (
    accuracy_matrix,
    disjoint,
    disjoint_domains,
    graded,
    overlapped,
    overlapped_domains,
    with_generalist,
)
from l2d.experts.simulator import Drawing, simulate

__all__ = [
    "Drawing",
    "ExpertPanel",
    "accuracy_matrix",
    "disjoint",
    "disjoint_domains",
    "graded",
    "grouped",
    "human",
    "make_panel",
    "mixed",
    "overlapped",
    "overlapped_domains",
    "simulate",
    "with_generalist",
]
