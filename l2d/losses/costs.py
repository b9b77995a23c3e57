"""Training for the cost of asking, one for all experts; without a cost these are the losses that they are derived from."""

from typing import Annotated, Any, Literal, Unpack

import torch
from annotated_types import Ge
from torch import Tensor

from l2d import kernels
from l2d.errors import UserError, notify
from l2d.losses.base import Base, Reduction
from l2d.losses.deferral import DeferralLoss, Parts

Cost = Annotated[float, Ge(0)]


class CostSensitive(DeferralLoss):
    """phi(theta, y) + c sum_k s_k phi(theta, k) + sum_j w_j phi(theta, K + j): not asking earns the cost c of asking.

    It is earned by `all` classes (s_k = 1, the cost-sensitive softmax: the labels are smoothed) or by the one with the
    `best` score alone (s_k = [k = yhat]). Beliefs are the probabilities themselves, so that the decision, which subtracts the
    cost, compares eta_k + c with Acc_j, as argmax(theta) does.
    """

    def __init__(self, classes: Literal["all", "best"], cost: Cost | list[Cost] | None, **parts: Unpack[Parts]):
        super().__init__(**parts)
        if not isinstance(self.base, Base):
            raise UserError(
                f"loss.base={parts['base']} cannot be taught a distribution over the classes; choose another."
            )
        self.classes, self.cost = classes, _one_cost(cost)
        self.total = 1 + self.cost * (self.num_classes if classes == "all" else 1)

    def taught(
        self, scores: Tensor, labels: Tensor, weights: Tensor, answers: Tensor, reduction: Reduction = "none"
    ) -> Tensor:
        target = self.earned(scores.detach(), self.cost / self.total)  # [B, K]
        target.scatter_(1, labels[:, None], 1 / self.total, reduce="add")
        return self.total * super().taught(scores, target, weights / self.total, answers, reduction)

    def kernel(self) -> kernels.DeferralLoss | None:
        """Of the loss that this is derived from, with the cost earned."""
        known = self.kernel_of(CostSensitive)
        return known and known._replace(cost=self.cost, earned=self.classes)

    def earned(self, scores: Tensor, amount: float) -> Tensor:
        """amount s [..., K]: what each class earns by not asking."""
        classes = scores[..., : self.num_classes]
        if self.classes == "all":
            return torch.full_like(classes, amount)
        return torch.zeros_like(classes).scatter_(-1, classes.argmax(dim=-1, keepdim=True), amount)

    def beliefs(self, scores: Tensor) -> Tensor:
        """[eta, Acc]; away from the minimum eta can be below 0, and no class passes the one with the best score."""
        among, experts = (self.total * super().beliefs(scores)).tensor_split([self.num_classes], dim=-1)
        classes = among - self.earned(scores, self.cost)  # [..., K]
        best = classes.gather(-1, among.argmax(dim=-1, keepdim=True))  # [..., 1]
        return torch.cat([classes.minimum(best), experts], dim=-1)


def _one_cost(cost: Any) -> float:
    costs = set(cost) if isinstance(cost, list) else {cost}
    if len(costs) > 1:
        raise UserError(
            f"loss.cost={cost} (experts.costs): this loss is trained for one cost of all experts; give one number, or choose a loss "
            "whose costs are weighed after training, such as balanced_ce or ova."
        )
    only = costs.pop() if costs else None
    if not only:
        notify("loss.cost=0 (experts.costs): without a cost this is the loss that it is derived from.")
    return float(only or 0)
