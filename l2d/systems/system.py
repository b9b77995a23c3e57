"""What every deferral system is: a module that is moved, compiled, wrapped, saved and loaded as one thing."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from l2d.data import Batch


class Stage(NamedTuple):
    """One pass of training: which parameters are trained, on which loss, for how long. All others are frozen."""

    name: str
    parameters: list[nn.Parameter]
    loss: Callable[[Tensor, Batch], Tensor]  # outputs [B, *], batch -> scalar
    epochs: int | None = None  # None: trainer.epochs
    rows: Tensor | None = None  # [n] of the training split, where not all of it is used


class System(nn.Module, ABC):
    """Inputs -> outputs [B, *] -> beliefs [B, K+J]: class probabilities, then the accuracy of every expert.

    `vouches_for` says whose believed accuracy can be relied on: `all` experts, the `top` one only (costs that differ, caps
    and absence need more), or `none` (beliefs are good for their order alone).
    """

    vouches_for: Literal["all", "top", "none"] = "none"
    stage: str | None = (
        None  # the stage that is trained: in training mode `forward` may leave out what it does not need
    )
    taken_over: tuple[str, ...] = ("",)  # what the names of tensors begin with that `init` may take from another run
    about_panel: tuple[
        str, ...
    ] = ()  # buffers that describe the experts who can be asked; others than in training may be
    context = 0  # training samples of each of them, from which `meet` describes it
    backbone: nn.Module  # what sees the inputs, where there is one such thing; `meet` needs it
    fitted_on_held_out = False  # `settle` is called after training, with half of the held-out data

    @abstractmethod
    def stages(self) -> list[Stage]:
        """What is trained, one stage after the other."""

    @abstractmethod
    def beliefs(self, outputs: Tensor) -> Tensor:
        """[eta_1..eta_K, Acc_1..Acc_J] of outputs [B, *], probabilities in float64, [B, K+J]. Needs no backbone."""

    def started_from(self, names: set[str]) -> None:
        """Tensors of these names were taken from another run (`init`), before `stages` is asked."""

    def train_with(self, labels: Tensor, answers: Tensor) -> None:
        """Note what there is to know about the experts in training, who gave these answers [N, P] to labels [N]."""

    def meet(self, seen: Tensor, labels: Tensor, answers: Tensor) -> None:
        """Describe the experts who can be asked, into the buffers `about_panel`, before every evaluation: from what `backbone` gives
        for their context [C, *], its labels [C] and their answers [C, J], -1 outside the context of an expert."""

    def forget_training(self) -> None:
        """Drop what only training needs: called when the system is loaded to be used."""

    def settle(self, outputs: Tensor, labels: Tensor, answers: Tensor) -> None:
        """Fit what is not trained, into buffers, from held-out outputs [N, *], labels [N] and answers [N, J]."""

    def fitted(self, outputs: Tensor) -> Tensor | None:
        """The (K+J)-way distribution that training fits, [B, K+J], where there is one."""
        return None

    def underfitting(self, outputs: Tensor, labels: Tensor, answers: Tensor) -> dict[str, float | None]:
        """What there is to say about the balance of classes and experts in the loss; nothing by default."""
        return {}


def classify(outputs: Tensor, batch: Batch) -> Tensor:
    """The loss of a classifier: mean cross-entropy of class scores [B, K], in float32 also under autocast."""
    return F.cross_entropy(outputs.float(), batch.labels)
