"""Deferral losses: a formulation (which experts to teach) times a base (how a column is taught)."""

from l2d.losses.base import BASES, ce, ova
from l2d.losses.deferral import DeferralLoss
from l2d.losses.formulations import FORMULATIONS, picce, pice, vanilla

__all__ = ["BASES", "FORMULATIONS", "DeferralLoss", "ce", "ova", "picce", "pice", "vanilla"]
