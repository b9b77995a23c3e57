"""What a system did with the samples of each class: what was answered, whom it asked, and how often that was right."""

from typing import NamedTuple

import torch
from torch import Tensor

from l2d.evaluation.outcome import Outcome


class ByClass(NamedTuple):
    """Counts of samples by their true class. Column 0 of `asked` and `right`: nobody was asked; column 1 + j: expert j was."""

    system: Tensor  # [K, K]: samples of class y that were answered k in the end
    classifier: Tensor  # [K, K]: samples of class y that the system would answer k itself
    asked: Tensor  # [K, 1+J]
    right: Tensor  # [K, 1+J]: of those asked, that the one who answered was right about


def by_class(outcome: Outcome) -> ByClass:
    """The counts of an outcome."""
    kept, asked = ~outcome.decision.deferred[:, None], outcome.decision.asked  # [N, 1], [N, J]
    who = torch.cat([kept, asked], dim=1).long()  # [N, 1+J]
    right = torch.cat([kept & outcome.right[:, None], asked & outcome.experts_right], dim=1).long()
    empty = torch.zeros(outcome.num_classes, who.shape[1], dtype=torch.int64)
    return ByClass(
        confusion(outcome.labels, outcome.answer, outcome.num_classes),
        confusion(outcome.labels, outcome.decision.predicted, outcome.num_classes),
        empty.index_add(0, outcome.labels, who),
        empty.index_add(0, outcome.labels, right),
    )


def confusion(labels: Tensor, answers: Tensor, num_classes: int) -> Tensor:
    """[K, K] how many samples of each class (row) have each answer (column).

    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return torch.bincount(labels * num_classes + answers.long(), minlength=num_classes**2).reshape(num_classes, -1)
