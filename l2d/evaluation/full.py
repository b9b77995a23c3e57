"""evaluation=full: everything beyond the metrics that one outcome can tell, ready for JSON."""

from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from l2d.errors import UserError
from l2d.evaluation.budget import augrc, coverage_curve, curve_summary, question_curve, under_budget
from l2d.evaluation.calibration import belief_errors, calibration
from l2d.evaluation.intervals import interval, resampled_means
from l2d.evaluation.outcome import Outcome
from l2d.evaluation.regret import regret
from l2d.systems import System


def full_evaluation(
    outcome: Outcome,
    system: System,
    held_out: Outcome | None,
    bins: Annotated[int, Ge(1)],
    curve_points: Annotated[int, Ge(2)],
    labels_shown: Annotated[int, Ge(1)],
    budgets: list[float],
) -> dict[str, Any]:
    """Regret, calibration, underfitting, curve and budgets of an outcome; None stands for what cannot be known.

    A rule that answers by several opinions has no curves and budgets: they order single questions by what each gains.
    The truth gives regret and the beliefs' errors; `held_out`, of samples that were neither trained nor tested on, gives
    the prices that keep the budgets.
    """
    if not all(0 <= budget <= 100 for budget in budgets):
        raise UserError(f"evaluation.budgets={budgets} must be percentages between 0 and 100.")
    one_opinion, truth = outcome.decision.answer is None, outcome.truth
    believes = outcome.vouches_for == "all" or (outcome.vouches_for == "top" and one_opinion)
    return {
        "regret": regret(outcome, truth) if truth else None,
        "estimates": belief_errors(outcome, truth) if truth and believes else None,
        "calibration": calibration(outcome, bins) if believes else None,
        "underfitting": system.underfitting(outcome.outputs, outcome.labels, outcome.answers),
        "posterior": posterior_profile(outcome, system.fitted(outcome.outputs), labels_shown),
        "curve": {**curve_summary(*coverage_curve(outcome), curve_points), "augrc": augrc(outcome)}
        if one_opinion
        else None,
        "questions": question_curve(outcome, curve_points) if one_opinion else None,
        "intervals": intervals(outcome),
        "budget": under_budget(outcome, held_out, budgets) if held_out and one_opinion else None,
    }


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
