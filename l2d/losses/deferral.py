"""The loss that training minimises: formulation x base, averaged over the batch."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from l2d.config import locate
from l2d.errors import UserError
from l2d.losses.base import BASES, BELIEFS
from l2d.losses.formulations import FORMULATIONS, VOUCHES_FOR

NO_SCORE = -1e30  # of an expert who did not answer: no part in a softmax, a sigmoid of 0, and finite


class DeferralLoss(nn.Module):
    """loss(theta, y, m) = phi(theta, y) + sum_j w_j phi(theta, K + j), over the experts j who answered.

    `formulation` gives w, `base` gives phi; each is a name, the dotted path of a function, or the function itself.
    `complete` promises that no answer is missing, which saves the time to look for them.
    """

    def __init__(self, formulation: str | Callable, base: str | Callable, num_classes: int, complete: bool = False):
        super().__init__()
        self.formulation = _named(formulation, FORMULATIONS, "formulation")
        self.base = _named(base, BASES, "base")
        self.num_classes, self.complete = num_classes, complete

    @property
    def vouches_for(self) -> Literal["all", "top", "none"]:
        """The experts whose believed accuracy can be relied on."""
        return VOUCHES_FOR.get(self.formulation, "none") if self.base in BELIEFS else "none"

    def forward(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """The mean loss of scores [B, K+J], labels [B] and answers [B, J] (-1: none), in float32 also under autocast."""
        return self.losses(scores.float(), labels, answers).mean()

    def losses(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """The loss of every sample, [B], in the dtype of the scores."""
        scores = self.answered(scores, answers)
        return self.base(scores, labels, self.weights(scores.detach(), labels, answers))

    def weights(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """w [B, J]: how much each expert's column is taught."""
        return self.formulation(scores[:, self.num_classes :], answers == labels[:, None])

    def answered(self, scores: Tensor, answers: Tensor) -> Tensor:
        """The scores [B, K+J], those of experts without an answer taken out."""
        return scores if self.complete else without_unanswered(scores, answers)

    def beliefs(self, scores: Tensor) -> Tensor:
        """[eta, Acc], [..., K+J], as the base reads them; for a base of one's own the softmax, which keeps the order."""
        beliefs = BELIEFS.get(self.base)
        return beliefs(scores, self.num_classes) if beliefs else scores.softmax(dim=-1)


def without_unanswered(scores: Tensor, answers: Tensor) -> Tensor:
    """Scores [B, K+J] in which an expert who did not answer takes no part: its column has no loss and no gradient."""
    missing = F.pad(answers < 0, (scores.shape[1] - answers.shape[1], 0))  # [B, K+J]
    return scores.masked_fill(missing, NO_SCORE)


def _named(choice: str | Callable, known: dict[str, Callable], what: str) -> Callable:
    if callable(choice):
        return choice
    try:
        return known[choice] if choice in known else locate(choice)
    except Exception as error:
        raise UserError(
            f"loss.{what}={choice} is neither one of {', '.join(known)} nor the dotted path of a function."
        ) from error
