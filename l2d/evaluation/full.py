"""evaluation=full: everything beyond the metrics that one outcome can tell, ready for JSON."""

from dataclasses import replace
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from l2d.decisions import best
from l2d.errors import UserError
from l2d.evaluation.absence import fewer_experts
from l2d.evaluation.areas import area_summary
from l2d.evaluation.budget import curve_summary, question_curve, under_budget
from l2d.evaluation.calibration import belief_errors, calibration
from l2d.evaluation.constrained import constrained
from l2d.evaluation.intervals import interval, resampled_means
from l2d.evaluation.outcome import Outcome
from l2d.evaluation.regret import regret
from l2d.systems import System

CURVES = ("curve", "questions", "budget", "fewer_experts")  # of rules that ask one question at most


def full_evaluation(
    outcome: Outcome,
    system: System,
    held_out: Outcome | None,
    bins: Annotated[int, Ge(1)],
    curve_points: Annotated[int, Ge(2)],
    labels_shown: Annotated[int, Ge(1)],
    budgets: list[float],
) -> dict[str, Any]:
    """Regret, calibration, underfitting, curves and budgets of an outcome; None stands for what cannot be known.

    A rule that answers by several opinions has no curves and budgets: they order single questions by what each gains.
    The truth gives regret and the beliefs' errors; `held_out`, of samples that were neither trained nor tested on, gives
    the prices that keep the budgets.
    """
    if not all(0 <= budget <= 100 for budget in budgets):
        raise UserError(f"evaluation.budgets={budgets} must be percentages between 0 and 100.")
    one_opinion, truth, believes = outcome.decision.answer is None, outcome.truth, outcome.believes
    limited = outcome.decision.facts if "limits" in (outcome.decision.facts or {}) else None
    return {
        "regret": regret(outcome, truth) if truth else None,
        "estimates": belief_errors(outcome, truth) if truth and believes else None,
        "calibration": calibration(outcome, bins) if believes else None,
        "underfitting": system.underfitting(outcome.outputs, outcome.labels, outcome.answers),
        "posterior": posterior_profile(outcome, system.fitted(outcome.outputs), labels_shown),
        "intervals": intervals(outcome),
        **(
            curves(without_limits(outcome, held_out), held_out, curve_points, budgets)
            if one_opinion
            else dict.fromkeys(CURVES)
        ),
        **({"constrained": constrained(outcome, truth, limited)} if truth and limited else {}),
    }


def curves(outcome: Outcome, held_out: Outcome | None, points: int, budgets: list[float]) -> dict[str, Any]:
    """What becomes of the system as the price of asking and the number of experts change."""
    return {
        "curve": {**area_summary(outcome), **curve_summary(outcome, points)},
        "questions": question_curve(outcome, points),
        "budget": under_budget(outcome, held_out, budgets) if held_out else None,
        "fewer_experts": fewer_experts(outcome),
    }


def without_limits(outcome: Outcome, held_out: Outcome | None) -> Outcome:
    """The outcome of the same beliefs, costs and absences under rule=best: a curve moves the price itself. Itself without limits."""
    if "limits" not in (outcome.decision.facts or {}):
        return outcome
    there = outcome.decision.gain > -torch.inf  # [N, J]
    cases = replace(outcome.cases(), available=there, held_out=held_out.cases() if held_out else None)
    return replace(outcome, decision=best(cases))


def intervals(outcome: Outcome) -> dict[str, list[float]]:
    """metric -> the ends of its interval over other test sets of this size (bootstrap)."""
    values = {
        "system_error": (~outcome.right).double(),
        "coverage": (~outcome.decision.deferred).double(),
        "classifier_accuracy": outcome.classifier_right.double(),
        "system_cost": outcome.loss + outcome.spent,
    }  # [N] each
    low, high = interval(100 * resampled_means(torch.stack(list(values.values()), dim=1)))
    return {name: [low[i].item(), high[i].item()] for i, name in enumerate(values)}


def posterior_profile(
    outcome: Outcome, fitted: Tensor | None, labels_shown: int
) -> dict[str, list[float] | None] | None:
    """The most probable labels in descending order, mean over x: as believed, as the experts leave them in the `fitted`
    distribution [N, K+J], and in truth; None where nothing of the kind is fitted."""
    if fitted is None:
        return None
    classes = outcome.num_classes
    shown = {"before": outcome.beliefs[:, :classes], "after": fitted[:, :classes]}  # [N, K] each
    profile: dict[str, list[float] | None] = {name: _profile(p, labels_shown) for name, p in shown.items()}
    return profile | {"true": _profile(outcome.truth.eta, labels_shown) if outcome.truth else None}


def _profile(probabilities: Tensor, labels_shown: int) -> list[float]:
    top = min(labels_shown, probabilities.shape[1])
    return (100 * probabilities.topk(top).values.mean(dim=0)).tolist()
