"""What every deferral system is: a module that is moved, compiled, wrapped, saved and loaded as one thing."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

from torch import Tensor, nn

from l2d.data import Batch


class Stage(NamedTuple):
    """One pass of training: which parameters are trained, on which loss, for how long. All others are frozen."""

    name: str
    parameters: list[nn.Parameter]
    loss: Callable[[Tensor, Batch], Tensor]  # outputs [B, *], batch -> scalar
    epochs: int | None = None  # None: trainer.epochs


class System(nn.Module, ABC):
    """Inputs -> outputs [B, *] -> beliefs [B, K+J]: class probabilities, then the accuracy of every expert.

    `vouches_for` says whose believed accuracy can be relied on: `all` experts, the `top` one only (costs that differ, caps
    and absence need more), or `none` (beliefs are good for their order alone).
    """

    vouches_for: Literal["all", "top", "none"] = "none"

    @abstractmethod
    def stages(self) -> list[Stage]:
        """What is trained, one stage after the other."""

    @abstractmethod
    def beliefs(self, outputs: Tensor) -> Tensor:
        """[eta_1..eta_K, Acc_1..Acc_J] of outputs [B, *], probabilities in float64, [B, K+J]. Needs no backbone."""

    def fitted(self, outputs: Tensor) -> Tensor | None:
        """The (K+J)-way distribution that training fits, [B, K+J], where there is one."""
        return None

    def underfitting(self, outputs: Tensor, labels: Tensor, answers: Tensor) -> dict[str, float | None]:
        """What there is to say about the balance of classes and experts in the loss; nothing by default."""
        return {}
