"""Bases: phi(scores, y) + sum_j w_j phi(scores, K + j), one value per sample, in its stable form.

Each has an estimator: (scores [..., K+J], K) -> [eta_1..eta_K, Acc_1..Acc_J] as the scores imply them. The expert with
the highest score is the one that every formulation vouches for; vanilla vouches for all of them.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def ce(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """phi(theta, k) = -log softmax(theta)_k over all K+J columns."""
    log_p = F.log_softmax(scores, dim=1)  # [B, K+J]
    return -_taught(log_p, labels, weights)  # [B]


def ova(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Binary cross-entropy with logits against [onehot(y), w], summed over the K+J columns."""
    return F.softplus(scores).sum(dim=1) - _taught(scores, labels, weights)  # [B]


def _taught(columns: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """columns_y + sum_j w_j columns_{K+j}."""
    experts = columns[:, columns.shape[1] - weights.shape[1] :]  # [B, J]
    return columns.gather(1, labels[:, None]).squeeze(1) + (weights * experts).sum(dim=1)  # [B]


def ce_estimates(scores: Tensor, num_classes: int) -> Tensor:
    """softmax_k / (1 - sum_j softmax_{K+j}); an expert's can pass 1 away from the optimum, and is capped far above it."""
    classes = scores[..., :num_classes].logsumexp(dim=-1, keepdim=True)  # [..., 1]
    return (scores - classes).clamp(max=50).exp()  # [..., K+J]


def ova_estimates(scores: Tensor, num_classes: int) -> Tensor:
    """sigmoid of every column."""
    return scores.sigmoid()  # [..., K+J]


BASES = {"ce": ce, "ova": ova}
# A base of one's own may be entered here; without an estimator all but its estimates is evaluated.
ESTIMATORS: dict[Callable | None, Callable[[Tensor, int], Tensor]] = {ce: ce_estimates, ova: ova_estimates}
