"""Bases: phi(scores, y) + sum_j w_j phi(scores, K + j), one value per sample, in its stable form."""

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


BASES = {"ce": ce, "ova": ova}
