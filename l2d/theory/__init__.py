"""Numerical checks of the theory: one x, a finite joint p(y, m), and the exact conditional risk of every loss."""

from l2d.theory.joints import (
    bayes_decision,
    condition_holds,
    condition_holds_given,
    independent_experts,
    outcomes,
    overlapping_specialists,
    random_joint,
    truth,
)
from l2d.theory.orders import conditional_risk, estimates, minimise
from l2d.theory.survey import survey

__all__ = [
    "bayes_decision",
    "condition_holds",
    "condition_holds_given",
    "conditional_risk",
    "estimates",
    "independent_experts",
    "minimise",
    "outcomes",
    "overlapping_specialists",
    "random_joint",
    "survey",
    "truth",
]
