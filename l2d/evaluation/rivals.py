"""Who competes for a sample: the classifier's best class and the best-scored expert who has an answer."""

from typing import NamedTuple

import torch
from torch import Tensor


class Rivals(NamedTuple):
    predicted: Tensor  # [N] the classifier's class
    expert: Tensor  # [N] the expert who would be asked
    margin: Tensor  # [N] expert's score - class's score: above 0 defer; -inf where no expert has an answer


def rivals(scores: Tensor, expert_predictions: Tensor, num_classes: int) -> Rivals:
    """From scores [N, K+J] and expert_predictions [N, J]; `margin > 0` is the decision argmax(theta) >= K."""
    classes = scores[:, :num_classes].max(dim=1)
    experts = scores[:, num_classes:].masked_fill(expert_predictions < 0, -torch.inf).max(dim=1)
    return Rivals(classes.indices, experts.indices, experts.values - classes.values)


def rights(sample: Rivals, labels: Tensor, expert_predictions: Tensor) -> tuple[Tensor, Tensor]:
    """[classifier is right] [N], [its expert is right] [N]."""
    return sample.predicted == labels, pick(expert_predictions, sample.expert) == labels


def pick(table: Tensor, column: Tensor) -> Tensor:
    """table[i, column[i]], [N]."""
    return table.gather(1, column[:, None]).squeeze(1)
