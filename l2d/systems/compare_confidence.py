"""Two networks trained apart: one for the classes, one for who of the experts is right."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2d.data import Batch
from l2d.losses import decoupled
from l2d.systems.system import Stage, System, classify


class CompareConfidence(System):
    """A classifier by cross-entropy and, with nothing shared, a sigmoid per expert that it is right (Raghu et al. 2019).

    The decision compares the two: ask the expert with the highest sigmoid where it exceeds the highest class probability.
    """

    vouches_for = "all"
    taken_over = ("backbone.",)

    def __init__(self, backbone: Callable[[int], nn.Module], num_classes: int, num_experts: int):
        super().__init__()
        self.num_classes = num_classes
        self.backbone, self.experts = backbone(num_classes), backbone(num_experts)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, K+J]; in training [B, K] or [B, J], what the stage trains."""
        if self.training and self.stage == "classifier":
            classes: Tensor = self.backbone(inputs)
            return classes
        if self.training and self.stage == "experts":
            experts: Tensor = self.experts(inputs)
            return experts
        return torch.cat([self.backbone(inputs), self.experts(inputs)], dim=1)

    def stages(self) -> list[Stage]:
        return [
            Stage("classifier", list(self.backbone.parameters()), classify),
            Stage("experts", list(self.experts.parameters()), rate),
        ]

    def beliefs(self, outputs: Tensor) -> Tensor:
        return decoupled.beliefs(outputs.double(), self.num_classes)


def rate(outputs: Tensor, batch: Batch) -> Tensor:
    """The binary cross-entropy of scores [B, J] that expert j is right: the mean over those who answered, then over samples."""
    right, given = batch.answers == batch.labels[:, None], (batch.answers >= 0).float()  # [B, J]
    each = F.binary_cross_entropy_with_logits(outputs.float(), right.float(), weight=given, reduction="none")  # [B, J]
    return (each.sum(dim=1) / given.sum(dim=1).clamp(min=1)).mean()
