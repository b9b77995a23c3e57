"""What experts answer to which class, estimated from held-out cases."""

import torch
from torch import Tensor

from l2d.decisions.cases import Cases

STRENGTHS = [2.0**power for power in range(10, -2, -1)]  # of a prior, in answers that it counts as


def confusion_of(held_out: Cases) -> Tensor:
    """C [J, K, K]: how often expert j answers m to cases of class y, smoothed, so that every entry is above 0.

    How often it is right on a class, and what it says there when it is wrong, are smoothed apart: towards its accuracy on all
    classes, and towards all wrong answers alike. With few answers to a class an expert is taken to be on it as it is in
    general, and one without answers to guess.
    """
    assert held_out.labels is not None
    num_classes, labels = held_out.num_classes, held_out.labels
    others = ~torch.eye(num_classes, dtype=torch.bool)  # [K, K]
    evenly = torch.full((num_classes - 1,), 1 / max(num_classes - 1, 1), dtype=torch.float64)
    confusion = torch.zeros(held_out.num_experts, num_classes, num_classes, dtype=torch.float64)
    for rows, column in zip(confusion, held_out.answers.long().unbind(dim=1), strict=True):
        given = column >= 0  # [N]
        pairs = labels[given] * num_classes + column[given]
        counts = pairs.bincount(minlength=num_classes**2).view(num_classes, num_classes).double()
        right = counts.diagonal()  # [K]
        accuracy = (right.sum() + 1 / num_classes) / (counts.sum() + 1)
        judged = torch.stack([right, counts.sum(dim=1) - right], dim=1)  # [K, 2]
        wrong = _smoothed(judged, torch.stack([accuracy, 1 - accuracy]))[:, 1:]  # [K, 1]
        rows[others] = (wrong * _smoothed(counts[others].view(num_classes, -1), evenly)).flatten()
        rows.diagonal().copy_(1 - wrong.squeeze(1))
    return confusion


def _smoothed(counts: Tensor, mean: Tensor) -> Tensor:
    """(counts + s mean) / (n + s), [R, C], for rows of n counts with the same Dirichlet prior s mean [C].

    s makes the counts of all rows most likely; among equals the strongest prior is taken.
    """
    total = counts.sum(dim=1)  # [R]
    seen = counts > 0
    counted, expected = counts[seen], mean.expand_as(counts)[seen]  # the other entries do not change the likelihood

    def likelihood(s: float) -> float:
        entries = (s * expected + counted).lgamma() - (s * expected).lgamma()
        rows = torch.full_like(total, s).lgamma() - (s + total).lgamma()
        return round(float(entries.sum() + rows.sum()), 6)

    s = max(STRENGTHS, key=likelihood)
    return (counts + s * mean) / (total[:, None] + s)
