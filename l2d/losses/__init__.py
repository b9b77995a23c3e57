"""Deferral losses: a formulation (which experts to teach) times a base (how a column is taught) times a weight, and others."""

from l2d.losses.base import BASES, Base, asm, ce, decoupled, gce, ova
from l2d.losses.costs import CostSensitive
from l2d.losses.deferral import DeferralLoss, SoftPicce, without_unanswered
from l2d.losses.formulations import FORMULATIONS, picce, pice, vanilla
from l2d.losses.realizable import Mixture, Realizable
from l2d.losses.underfitting import underfitting

__all__ = [
    "BASES",
    "FORMULATIONS",
    "Base",
    "CostSensitive",
    "DeferralLoss",
    "Mixture",
    "Realizable",
    "SoftPicce",
    "asm",
    "ce",
    "decoupled",
    "gce",
    "ova",
    "picce",
    "pice",
    "underfitting",
    "vanilla",
    "without_unanswered",
]
