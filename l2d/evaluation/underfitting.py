"""Underfitting, seen: how much the experts' terms weigh against the label's in a loss, on one batch or on a split."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from l2d.losses import DeferralLoss
from l2d.losses.base import ESTIMATORS


def underfitting(
    scores: Tensor, labels: Tensor, expert_predictions: Tensor, num_classes: int, loss: Callable[..., Tensor]
) -> dict[str, float | None]:
    """What flattens the labels, from scores [B, K+J] alone: no pass through the model.

    expert_aggregation: mean of sum_j w_j (vanilla: sum of the experts' accuracies; PiCCE: share with a correct expert);
    label_margin: mean gap between the two most probable labels in the implied distribution;
    class_gradient_share: sum |d loss/d theta_k| over the class columns, of that over all columns.
    """
    scores = scores.detach().float()  # [B, K+J]
    formulation = getattr(loss, "formulation", None)
    aggregation = margin = weights = None
    if formulation is not None:
        weights = formulation(scores[:, num_classes:], expert_predictions == labels[:, None])  # [B, J]
        aggregation = weights.sum().item() / len(labels)
    with torch.enable_grad():
        leaf = scores.clone().requires_grad_()
        if type(loss) is DeferralLoss and weights is not None:  # the same, without finding the weights again
            value = loss.base(leaf, labels, weights).mean()
        else:
            value = loss(leaf, labels, expert_predictions)
        (gradient,) = torch.autograd.grad(value, leaf)  # [B, K+J]
    flow, among = gradient.abs().sum(dim=0), implied_distribution(scores, num_classes, loss)  # [K+J], [B, K+J]
    if among is not None:
        first, second = among[:, :num_classes].topk(2).values.mean(dim=0).tolist()
        margin = 100 * (first - second)
    part, whole = sum(flow[:num_classes].tolist()), sum(flow.tolist())
    return {
        "expert_aggregation": aggregation,
        "label_margin": margin,
        "class_gradient_share": 100 * part / whole if whole else None,
    }


def implied_estimates(scores: Tensor, num_classes: int, loss: Callable[..., Tensor]) -> Tensor | None:
    """[eta_1..eta_K, Acc_1..Acc_J], [N, K+J], as the loss's base reads them from the scores; None if it cannot."""
    estimator = ESTIMATORS.get(getattr(loss, "base", None))
    return estimator(scores, num_classes) if estimator else None


def implied_distribution(scores: Tensor, num_classes: int, loss: Callable[..., Tensor]) -> Tensor | None:
    """The (K+J)-way distribution that is fitted: [eta, Acc] / sum(eta, Acc), [N, K+J]; for CE the softmax itself."""
    estimated = implied_estimates(scores, num_classes, loss)
    return None if estimated is None else estimated / estimated.sum(dim=1, keepdim=True)


def posterior_profile(
    scores: Tensor, num_classes: int, loss: Callable[..., Tensor], labels_shown: int, eta: Tensor | None
) -> dict[str, Any] | None:
    """The most probable labels in descending order, mean over x: as estimated, as the experts leave them, and in truth."""
    estimated, among = (read(scores, num_classes, loss) for read in (implied_estimates, implied_distribution))
    if estimated is None or among is None:
        return None
    named = {"before": estimated[:, :num_classes], "after": among[:, :num_classes], "true": eta}
    top = min(labels_shown, num_classes)
    return {k: None if p is None else (100 * p.topk(top).values.mean(dim=0)).tolist() for k, p in named.items()}
