"""Underfitting, seen: how much the experts' terms weigh against the label's in a loss, on one batch or on a split."""

from collections.abc import Callable

import torch
from torch import Tensor

from l2d.losses.deferral import DeferralLoss


def underfitting(
    loss: Callable[..., Tensor], scores: Tensor, labels: Tensor, answers: Tensor
) -> dict[str, float | None]:
    """What flattens the labels, from scores [B, K+J] alone: no pass through the model.

    expert_aggregation: mean of sum_j w_j (vanilla: sum of the experts' accuracies; PiCCE: share with a correct expert);
    label_margin: mean gap between the two most probable labels in the implied distribution;
    class_gradient_share: sum |d loss/d theta_k| over the class columns, of that over all columns.
    """
    scores = scores.detach().float()  # [B, K+J]
    num_classes = scores.shape[1] - answers.shape[1]
    aggregation = margin = weights = None
    if isinstance(loss, DeferralLoss):
        weights = loss.weights(loss.answered(scores, answers), labels, answers)  # [B, J]
        aggregation = weights.sum().item() / len(labels)
    with torch.enable_grad():
        leaf = scores.clone().requires_grad_()
        if type(loss) is DeferralLoss and weights is not None:  # as its forward, without finding the weights again
            value = loss.base(loss.answered(leaf, answers), labels, weights).mean()
        else:
            value = loss(leaf, labels, answers)
        (gradient,) = torch.autograd.grad(value, leaf)  # [B, K+J]
    if getattr(loss, "vouches_for", "none") != "none":
        among = implied_distribution(loss.beliefs(scores), scores)  # type: ignore[attr-defined]
        first, second = among[:, :num_classes].topk(2).values.mean(dim=0).tolist()
        margin = 100 * (first - second)
    flow = gradient.abs().sum(dim=0)  # [K+J]
    part, whole = sum(flow[:num_classes].tolist()), sum(flow.tolist())
    return {
        "expert_aggregation": aggregation,
        "label_margin": margin,
        "class_gradient_share": 100 * part / whole if whole else None,
    }


def implied_distribution(beliefs: Tensor, scores: Tensor) -> Tensor:
    """The (K+J)-way distribution that is fitted: [eta, Acc] / sum(eta, Acc), [N, K+J]; for CE the softmax itself.

    Where every belief underflows to 0, sigmoids are exponentials and the softmax of the scores is the limit.
    """
    total = beliefs.sum(dim=1, keepdim=True)  # [N, 1]
    return torch.where(total > 0, beliefs / total, scores.softmax(dim=1))
