"""Underfitting, seen: how much the experts' terms weigh against the label's in a loss, on one batch or on a split."""

from collections.abc import Callable

import torch
from torch import Tensor

from l2d.losses.base import implied_distribution
from l2d.losses.deferral import DeferralLoss


def underfitting(
    loss: Callable[..., Tensor], scores: Tensor, labels: Tensor, answers: Tensor
) -> dict[str, float | None]:
    """What flattens the labels, from scores [B, K+J] alone: no pass through the model.

    expert_aggregation: mean of weight sum_j w_j (vanilla: sum of the experts' accuracies; PiCCE: share with a correct expert);
    label_margin: mean gap between the two most probable labels in the distribution that is fitted, where there is one;
    class_gradient_share: sum |d loss/d theta_k| over the class columns, of that over all columns.
    """
    scores = scores.detach().float()  # [B, K+J]
    num_classes = scores.shape[1] - answers.shape[1]
    aggregation = margin = weights = None
    if isinstance(loss, DeferralLoss):
        weights = loss.weights(loss.answered(scores, answers), labels, answers)  # [B, J]
        counted = weights if loss.weight == 1 else weights * loss.expert_weight(scores, answers)
        aggregation = counted.sum().item() / len(labels)
    with torch.enable_grad():
        leaf = scores.clone().requires_grad_()
        if type(loss) is DeferralLoss and weights is not None:  # as its forward, without finding the weights again
            value = loss.taught(loss.answered(leaf, answers), labels, weights, answers, "mean")
        else:
            value = loss(leaf, labels, answers)
        (gradient,) = torch.autograd.grad(value, leaf)  # [B, K+J]
    among = fitted_distribution(loss, scores)
    if among is not None:
        first, second = among[:, :num_classes].topk(2).values.mean(dim=0).tolist()
        margin = 100 * (first - second)
    flow = gradient.abs().sum(dim=0)  # [K+J]
    part, whole = sum(flow[:num_classes].tolist()), sum(flow.tolist())
    return {
        "expert_aggregation": aggregation,
        "label_margin": margin,
        "class_gradient_share": 100 * part / whole if whole else None,
    }


def fitted_distribution(loss: Callable[..., Tensor], scores: Tensor) -> Tensor | None:
    """The (K+J)-way distribution that a loss fits, [N, K+J], where there is one."""
    if isinstance(loss, DeferralLoss):
        return loss.fitted(scores)
    vouches = getattr(loss, "vouches_for", "none") != "none"
    return implied_distribution(loss.beliefs(scores), scores) if vouches else None  # type: ignore[attr-defined]
