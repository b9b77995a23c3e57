"""What systems share that train a classifier alone, and count how often experts are right."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from l2d.systems.system import Stage, System, classify


class ClassifierSystem(System):
    """theta = backbone(x), [B, K], trained with cross-entropy in one stage; experts play no part in it."""

    taken_over = ("backbone.",)

    def __init__(self, backbone: Callable[[int], nn.Module], num_classes: int):
        super().__init__()
        self.backbone = backbone(num_classes)
        self.num_classes = num_classes

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.backbone(inputs)
        return scores

    def stages(self) -> list[Stage]:
        return [Stage("train", list(self.parameters()), classify)]


def count_right(groups: Tensor, labels: Tensor, answers: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """How many answers [N, J] are right and how many are given in each group of samples [N], [J, num_groups] each."""
    zeros = torch.zeros(num_groups, answers.shape[1], dtype=torch.float64)  # [G, J]
    right, given = (zeros.index_add(0, groups, table.double()) for table in (answers == labels[:, None], answers >= 0))
    return right.T, given.T


def shrunk(right: Tensor, given: Tensor, prior: Tensor, strength: float) -> Tensor:
    """The mean of a Beta posterior: accuracies as if `strength` answers of accuracy `prior` had been given before.

    >>> shrunk(torch.tensor([3.0]), torch.tensor([5.0]), torch.tensor([0.2]), strength=5)
    tensor([0.4000])
    """
    return (right + strength * prior) / (given + strength)
