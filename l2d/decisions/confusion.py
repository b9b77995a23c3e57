"""What experts answer to which class, estimated from held-out cases."""

import torch
from torch import Tensor

from l2d.decisions.cases import Cases

PRIOR = 1.0  # of a Dirichlet: as if every class had been answered once more, most of them rightly


def confusion_of(held_out: Cases) -> Tensor:
    """C [J, K, K]: how often expert j answers m to cases of class y, smoothed.

    The prior of a row is the expert's overall accuracy on the diagonal, and the rest spread evenly: with few answers of a class
    an expert is taken to be on it as it is in general. An expert without answers is taken to guess.
    """
    assert held_out.labels is not None
    num_classes, labels = held_out.num_classes, held_out.labels
    rows = []
    for column in held_out.answers.long().unbind(dim=1):
        given = column >= 0  # [N]
        counts = torch.zeros(num_classes, num_classes, dtype=torch.float64)
        counts.index_put_(
            (labels[given], column[given]), torch.ones(int(given.sum()), dtype=torch.float64), accumulate=True
        )
        total = float(counts.sum())
        accuracy = (float(counts.diagonal().sum()) + 1 / num_classes) / (total + 1)
        prior = torch.full_like(counts, (1 - accuracy) / max(num_classes - 1, 1)).fill_diagonal_(accuracy)
        smoothed = counts + PRIOR * num_classes * prior
        rows.append(smoothed / smoothed.sum(dim=1, keepdim=True))
    return torch.stack(rows)
