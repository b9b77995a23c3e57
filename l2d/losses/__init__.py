"""Deferral losses: a formulation (which experts to teach) times a base (how a column is taught)."""

from l2d.losses.base import BASES, BELIEFS, ce, ova
from l2d.losses.deferral import DeferralLoss, without_unanswered
from l2d.losses.formulations import FORMULATIONS, picce, pice, vanilla
from l2d.losses.underfitting import underfitting

__all__ = [
    "BASES",
    "BELIEFS",
    "FORMULATIONS",
    "DeferralLoss",
    "ce",
    "ova",
    "picce",
    "pice",
    "underfitting",
    "vanilla",
    "without_unanswered",
]
