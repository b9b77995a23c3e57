"""One backbone with a score for every class and every expert, trained in one stage."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from l2d.data import Batch
from l2d.losses import underfitting
from l2d.losses.underfitting import fitted_distribution
from l2d.systems.system import Stage, System


class ScoreSystem(System):
    """theta = backbone(x), [B, K+J]; the loss teaches the scores and says what they mean.

    A loss is anything that takes (scores, labels, answers). `beliefs` and `vouches_for` are its own to give; without them
    the softmax over all columns keeps the order of the scores, and nobody is vouched for.
    """

    def __init__(self, backbone: Callable[[int], nn.Module], loss: Any, num_classes: int, num_experts: int):
        super().__init__()
        self.backbone = backbone(num_classes + num_experts)
        self.loss = loss

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.backbone(inputs)
        return scores

    def stages(self) -> list[Stage]:
        return [Stage("train", list(self.parameters()), self.taught)]

    def taught(self, scores: Tensor, batch: Batch) -> Tensor:
        """The loss of a batch's scores."""
        loss: Tensor = self.loss(scores, batch.labels, batch.answers)
        return loss

    @property
    def vouches_for(self) -> Any:  # type: ignore[override]
        return getattr(self.loss, "vouches_for", "none")

    def beliefs(self, outputs: Tensor) -> Tensor:
        scores = outputs.to(torch.float64, copy=True)  # a copy: what the loss makes of it may be changed
        return self.loss.beliefs(scores).clamp_(max=1) if hasattr(self.loss, "beliefs") else scores.softmax(dim=1)

    def fitted(self, outputs: Tensor) -> Tensor | None:
        return fitted_distribution(self.loss, outputs.double())

    def underfitting(self, outputs: Tensor, labels: Tensor, answers: Tensor) -> dict[str, float | None]:
        return underfitting(self.loss, outputs, labels, answers)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the forward pass and, where it is a module, the loss."""
        super().compile(*args, **kwargs)
        if isinstance(self.loss, nn.Module):
            self.loss.compile(*args, **kwargs)
