"""The loss that training minimises: formulation x base, averaged over the batch."""

from collections.abc import Callable

from torch import Tensor, nn

from l2d.config import locate
from l2d.errors import UserError
from l2d.losses.base import BASES
from l2d.losses.formulations import FORMULATIONS


class DeferralLoss(nn.Module):
    """loss(theta, y, m) = phi(theta, y) + sum_j w_j phi(theta, K + j).

    `formulation` gives w, `base` gives phi; each is a name, the dotted path of a function, or the function itself.
    """

    def __init__(self, formulation: str | Callable, base: str | Callable, num_classes: int):
        super().__init__()
        self.formulation = _named(formulation, FORMULATIONS, "formulation")
        self.base = _named(base, BASES, "base")
        self.num_classes = num_classes

    def forward(self, scores: Tensor, labels: Tensor, expert_predictions: Tensor) -> Tensor:
        scores = scores.float()  # [B, K+J]; from here on autocast lowers nothing: no base needs a matrix product
        correct = expert_predictions == labels[:, None]  # [B, J]
        weights = self.formulation(scores.detach()[:, self.num_classes :], correct)  # [B, J]
        return self.base(scores, labels, weights).mean()


def _named(choice: str | Callable, known: dict[str, Callable], what: str) -> Callable:
    if callable(choice):
        return choice
    try:
        return known[choice] if choice in known else locate(choice)
    except Exception as error:
        raise UserError(
            f"loss.{what}={choice} is neither one of {', '.join(known)} nor the dotted path of a function."
        ) from error
