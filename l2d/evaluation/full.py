"""evaluation=full: everything beyond the metrics that one set of scores can tell, ready for JSON."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from l2d.errors import UserError
from l2d.evaluation.budget import coverage_curve, curve_summary, under_budget
from l2d.evaluation.calibration import calibration, estimate_errors
from l2d.evaluation.regret import regret
from l2d.evaluation.rivals import rivals
from l2d.evaluation.underfitting import implied_estimates, posterior_profile, underfitting


def full_evaluation(
    scores: Tensor,
    labels: Tensor,
    expert_predictions: Tensor,
    num_classes: int,
    loss: Callable[..., Tensor],
    bins: int,
    curve_points: int,
    labels_shown: int,
    budgets: list[float],
    eta: Tensor | None = None,
    accuracy: Tensor | None = None,
    held_out: tuple[Tensor, Tensor, Tensor] | None = None,
) -> dict[str, Any]:
    """From scores [N, K+J], labels [N] and expert_predictions [N, J]; None stands for what cannot be known.

    The truth, eta [N, K] and accuracy [N, J] = Acc_j(x), gives regret and the estimators' errors; `held_out`, scores
    and targets of samples that were neither trained nor tested on, gives the thresholds of the budgets.
    """
    if bins < 1 or curve_points < 2 or labels_shown < 1 or not all(0 <= budget <= 100 for budget in budgets):
        raise UserError(
            "evaluation.bins and labels_shown must be at least 1, curve_points at least 2, and budgets percentages."
        )
    scores, labels, expert_predictions = (given.cpu() for given in (scores, labels, expert_predictions))
    sample = rivals(scores, expert_predictions, num_classes)
    estimated = implied_estimates(scores, num_classes, loss)  # [N, K+J]
    known: dict[str, Any] = {"regret": None, "estimates": None}
    if eta is not None and accuracy is not None:
        eta, accuracy = eta.cpu(), accuracy.cpu()
        known["regret"] = regret(scores, expert_predictions, num_classes, eta, accuracy)
        if estimated is not None:
            known["estimates"] = estimate_errors(estimated, sample.expert, eta, accuracy)
    budget = None
    if held_out is not None:
        margin = rivals(held_out[0].cpu(), held_out[2].cpu(), num_classes).margin
        budget = under_budget(sample, labels, expert_predictions, margin, budgets)
    return {
        **known,
        "calibration": None if estimated is None else calibration(estimated, scores, labels, expert_predictions, bins),
        "underfitting": underfitting(scores, labels, expert_predictions, num_classes, loss),
        "posterior": posterior_profile(scores, num_classes, loss, labels_shown, eta),
        "curve": curve_summary(*coverage_curve(sample, labels, expert_predictions), curve_points),
        "budget": budget,
    }
