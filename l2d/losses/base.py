"""Bases: phi(scores, y) + sum_j w_j phi(scores, K + j), one value per sample, in its stable form.

Each has its beliefs: (scores [..., K+J], K) -> [eta_1..eta_K, Acc_1..Acc_J] as the scores imply them at the minimum of the
risk. Both are monotone in the scores with one common denominator, so the most probable action is argmax(scores).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def ce(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """phi(theta, k) = -log softmax(theta)_k over all K+J columns."""
    return F.cross_entropy(scores, _targets(scores, labels, weights), reduction="none")  # [B]


def ova(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Binary cross-entropy with logits, summed over the K+J columns."""
    targets = _targets(scores, labels, weights)
    return F.binary_cross_entropy_with_logits(scores, targets, reduction="none").sum(dim=1)  # [B]


def _targets(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """[onehot(y), w], [B, K+J]: both bases are linear in what a column is taught."""
    targets = torch.zeros_like(scores).scatter_(1, labels[:, None], 1.0)
    targets[:, scores.shape[1] - weights.shape[1] :] = weights  # faster than padding w
    return targets


def ce_beliefs(scores: Tensor, num_classes: int) -> Tensor:
    """softmax_k / (1 - sum_j softmax_{K+j}); an expert's can pass 1 away from the optimum, and is capped far above it."""
    classes = scores[..., :num_classes].logsumexp(dim=-1, keepdim=True)  # [..., 1]
    return (scores - classes).clamp(max=50).exp()  # [..., K+J]


def ova_beliefs(scores: Tensor, num_classes: int) -> Tensor:
    """sigmoid of every column."""
    return scores.sigmoid()  # [..., K+J]


BASES = {"ce": ce, "ova": ova}
BELIEFS: dict[Callable, Callable[[Tensor, int], Tensor]] = {ce: ce_beliefs, ova: ova_beliefs}
