"""Experts: an accuracy matrix [J, K] and the simulator that draws their predictions [N, J]; or recorded annotators."""

from l2d.experts.panel import ExpertPanel, human, make_panel, mixed
from l2d.experts.patterns import accuracy_matrix, disjoint, disjoint_domains, overlapped, overlapped_domains
from l2d.experts.simulator import simulate

__all__ = [
    "ExpertPanel",
    "accuracy_matrix",
    "disjoint",
    "disjoint_domains",
    "human",
    "make_panel",
    "mixed",
    "overlapped",
    "overlapped_domains",
    "simulate",
]
