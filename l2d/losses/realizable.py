"""Losses of the probability that somebody is right: the realizable surrogate and the mixture of experts."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from l2d import kernels
from l2d.losses.base import Reduction
from l2d.losses.deferral import without_unanswered


class Realizable(nn.Module):
    """Psi(p_y + sum_j [expert j is correct] p_{K+j}) with p = softmax over the K+J columns (Mozannar et al. 2023).

    Psi(u) = -log u for q = 0, else (1 - u^q) / q. With `alpha` < 1 the rest is the cross-entropy of the classes alone.
    The minimum is the Bayes decision where a rule without errors exists, and not in general: it asks too seldom.
    """

    vouches_for: Literal["none"] = "none"

    def __init__(
        self,
        num_classes: int,
        complete: bool = False,
        q: Annotated[float, Interval(ge=0, le=1)] = 0.0,
        alpha: Annotated[float, Interval(ge=0, le=1)] = 1.0,
    ):
        super().__init__()
        self.num_classes, self.complete, self.q, self.alpha = num_classes, complete, q, alpha

    def forward(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """The mean loss of scores [B, K+J], labels [B] and answers [B, J] (-1: none), in float32 also under autocast."""
        known = type(self) in (Realizable, Mixture) and self.alpha == 1
        kernel = kernels.DeferralLoss("vanilla", "realizable", self.q) if known else None
        value = None if kernel is None else kernels.deferral_loss(kernel, scores.float(), labels, answers, self.losses)
        return self.losses(scores.float(), labels, answers, reduction="mean") if value is None else value

    def losses(self, scores: Tensor, labels: Tensor, answers: Tensor, reduction: Reduction = "none") -> Tensor:
        """The loss of each sample, [B], or their mean."""
        among = scores if self.complete else without_unanswered(scores, answers)  # [B, K+J]
        # -log u = log sum exp(all) - log sum exp(right): the difference of two log-softmaxes of the label, each one fused call
        without_wrong = torch.full_like(among, -torch.inf).scatter_(1, labels[:, None], 0.0)  # [B, K+J]
        without_wrong[:, self.num_classes :].masked_fill_(answers == labels[:, None], 0.0)
        each: Reduction = "none" if self.q else reduction  # Psi is not linear
        right = F.cross_entropy(among + without_wrong, labels, reduction=each)
        loss = F.cross_entropy(among, labels, reduction=each) - right
        if self.q:
            powers = torch.expm1(-self.q * loss)  # [B]
            loss = powers.sum() / (-self.q * len(powers)) if reduction == "mean" else powers / -self.q
        if self.alpha == 1:
            return loss
        alone = F.cross_entropy(scores[:, : self.num_classes], labels, reduction=reduction)
        return self.alpha * loss + (1 - self.alpha) * alone

    def beliefs(self, scores: Tensor) -> Tensor:
        """The softmax over all columns, [..., K+J]: good for its order alone."""
        return scores.softmax(dim=-1)


class Mixture(Realizable):
    """-log(g_0 p(y) + sum_j g_j [expert j is correct]) with a gate g over classifier and experts (Hemmer et al. 2022).

    With g_0 = sum_k p_k, g_j = p_{K+j} and p(y) = p_y / g_0 it is the realizable surrogate; the decision is another:
    argmax g, the classes as a whole against each expert.
    """

    def beliefs(self, scores: Tensor) -> Tensor:
        """The gate g_j of each expert; of the classes the most probable has g_0, the others in proportion, [..., K+J]."""
        p = scores.softmax(dim=-1)
        classes, experts = p.tensor_split([self.num_classes], dim=-1)
        gate = classes.sum(dim=-1, keepdim=True)  # [..., 1]
        among = scores[..., : self.num_classes] - scores[..., : self.num_classes].max(dim=-1, keepdim=True).values
        return torch.cat([gate * among.exp(), experts], dim=-1)
