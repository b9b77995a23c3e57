"""The loss that training minimises: formulation x base x weight, averaged over the batch."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar, cast

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from l2d import kernels
from l2d.config import locate
from l2d.errors import UserError
from l2d.losses.base import (
    BASES,
    CE,
    GCE,
    AsymmetricSoftmax,
    Base,
    BaseLoss,
    Decoupled,
    OvA,
    Reduction,
    implied_distribution,
)
from l2d.losses.formulations import FORMULATIONS, VOUCHES_FOR, Formulation, picce, pice, soft_picce, vanilla

NO_SCORE = -1e30  # of an expert who did not answer: no part in a softmax, a sigmoid of 0, and finite
Weight = Annotated[float, Interval(gt=0, le=1e6)] | Literal["balanced"]
Power = Annotated[float, Interval(gt=0, le=1)]
# What a kernel computes in one call on the CPU.
KERNEL_EXPERTS: dict[Formulation, Any] = {vanilla: "vanilla", picce: "picce", pice: "pice", soft_picce: "soft_picce"}
KERNEL_BASES: dict[type[Any], Any] = {
    CE: "softmax",
    GCE: "power",
    OvA: "binary",
    Decoupled: "decoupled",
    AsymmetricSoftmax: "asymmetric",
}
Part = TypeVar("Part", bound=Callable[..., Tensor])


class Parts(TypedDict):
    """What every DeferralLoss is made of."""

    formulation: str | Formulation
    base: str | BaseLoss
    num_classes: int
    complete: NotRequired[bool]
    weight: NotRequired[Weight]
    q: NotRequired[Power | None]


class DeferralLoss(nn.Module):
    """loss(theta, y, m) = phi(theta, y) + weight sum_j w_j phi(theta, K + j), over the experts j who answered.

    `formulation` gives w, `base` gives phi; each is a name, the dotted path of a function, or the function itself. The `weight`
    is undone in what the scores mean, so it changes what is learnt well and not what is learnt; `balanced` divides one unit
    among the experts who answered. `q` is that of the base gce. `complete` promises that no answer is missing, which saves the
    time to look for them.
    """

    def __init__(
        self,
        formulation: str | Formulation,
        base: str | BaseLoss,
        num_classes: int,
        complete: bool = False,
        weight: Weight = 1.0,
        q: Power | None = None,
    ):
        super().__init__()
        self.formulation = _named(formulation, FORMULATIONS, "formulation")
        self.base = _base(base, q)
        self.num_classes, self.complete, self.weight = num_classes, complete, weight
        if weight != 1 and (not isinstance(self.base, Base) or getattr(self.base, "q", 0) == 1):
            raise UserError(
                f"loss.weight={weight}: with base={base}{'' if q is None else f' and q={q:g}'} a weight cannot be undone; leave it 1."
            )

    @property
    def vouches_for(self) -> Literal["all", "top", "none"]:
        """The experts whose believed accuracy can be relied on."""
        return VOUCHES_FOR.get(self.formulation, "none") if getattr(self.base, "vouches", False) else "none"

    def forward(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """The mean loss of scores [B, K+J], labels [B] and answers [B, J] (-1: none), in float32 also under autocast."""
        scores, kernel = scores.float(), self.kernel()
        value = None if kernel is None else kernels.deferral_loss(kernel, scores, labels, answers, self.losses)
        return self.losses(scores, labels, answers, reduction="mean") if value is None else value

    def kernel(self) -> kernels.DeferralLoss | None:
        """The kernel that computes the same; None for a formulation, a base or a subclass of one's own."""
        return self.kernel_of(DeferralLoss, SoftPicce)

    def kernel_of(self, *classes: type) -> kernels.DeferralLoss | None:
        """The kernel for this formulation and base, if this loss is of one of these classes itself."""
        experts, base = KERNEL_EXPERTS.get(self.formulation), KERNEL_BASES.get(type(self.base))
        if type(self) not in classes or experts is None or base is None:
            return None
        return kernels.DeferralLoss(experts, base, getattr(self.base, "q", 0.0), self.weight)

    def losses(self, scores: Tensor, labels: Tensor, answers: Tensor, reduction: Reduction = "none") -> Tensor:
        """The loss of each sample, [B], or their mean."""
        scores = self.answered(scores, answers)
        return self.taught(scores, labels, self.weights(scores.detach(), labels, answers), answers, reduction)

    def taught(
        self, scores: Tensor, labels: Tensor, weights: Tensor, answers: Tensor, reduction: Reduction = "none"
    ) -> Tensor:
        """The loss of each sample, [B], or their mean, with these weights w [B, J]; `scores` are those of `answered`."""
        if not isinstance(self.base, Base):
            losses = self.base(scores, labels, weights)  # [B]
            return losses.mean() if reduction == "mean" else losses
        weight = None if self.weight == 1 else self.expert_weight(scores, answers)
        return self.base(scores, labels, weights, weight, reduction)

    def weights(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """w [B, J]: which experts' columns are taught."""
        return self.formulation(scores[:, scores.shape[1] - answers.shape[1] :], answers == labels[:, None])

    def expert_weight(self, scores: Tensor, answers: Tensor) -> float | Tensor:
        """What all of w is multiplied by: a number or, balanced where answers are missing, one for each sample, [B, 1]."""
        if self.weight != "balanced":
            return float(self.weight)
        if self.complete:
            return 1 / answers.shape[1]
        return (answers >= 0).sum(dim=1, keepdim=True).clamp(min=1).to(scores.dtype).reciprocal()

    def answered(self, scores: Tensor, answers: Tensor) -> Tensor:
        """The scores [B, K+J], those of experts without an answer taken out."""
        return scores if self.complete else without_unanswered(scores, answers)

    def beliefs(self, scores: Tensor) -> Tensor:
        """[eta, Acc], [..., K+J], as the base reads them; for a base of one's own the softmax, which keeps the order."""
        return self.base.beliefs(scores, self.num_classes) if isinstance(self.base, Base) else scores.softmax(dim=-1)

    def fitted(self, scores: Tensor) -> Tensor | None:
        """The (K+J)-way distribution that is fitted, [eta, weight Acc] over its sum, [N, K+J].

        None where the classes have a distribution of their own, which no expert can flatten.
        """
        if self.vouches_for == "none" or not getattr(self.base, "one_distribution", False):
            return None
        beliefs = self.beliefs(scores)
        if self.weight != 1:
            experts = beliefs[:, self.num_classes :]
            weighted = experts * self.expert_weight(scores, torch.zeros_like(experts))
            beliefs = torch.cat([beliefs[:, : self.num_classes], weighted], dim=1)
        return implied_distribution(beliefs, scores)


class SoftPicce(DeferralLoss):
    """PiCCE's smooth relative: of the correct experts not the least phi is paid, but -log sum_j exp(-phi_j).

    Its gradient is that of the weights w = softmax of the correct experts' scores; its value is less by their entropy. Both
    hold for a base whose phi_j falls as fast as the score of expert j rises, which that of gce does not.
    """

    def __init__(
        self,
        base: str,
        num_classes: int,
        complete: bool = False,
        weight: Weight = 1.0,
    ):
        super().__init__(soft_picce, base, num_classes, complete, weight)
        if not isinstance(self.base, Base) or isinstance(self.base, GCE):
            raise UserError(f"loss.base={base} has no soft PiCCE; choose ce, ova, decoupled or asm.")

    def taught(
        self, scores: Tensor, labels: Tensor, weights: Tensor, answers: Tensor, reduction: Reduction = "none"
    ) -> Tensor:
        entropy: Tensor = torch.special.entr(weights)  # [B, J]
        if self.weight != 1:
            entropy = entropy * self.expert_weight(scores, answers)
        less = entropy.sum() / len(entropy) if reduction == "mean" else entropy.sum(dim=1)
        return super().taught(scores, labels, weights, answers, reduction) - less


def without_unanswered(scores: Tensor, answers: Tensor) -> Tensor:
    """Scores [B, K+J] in which an expert who did not answer takes no part: its column has no loss and no gradient."""
    missing = F.pad(answers < 0, (scores.shape[1] - answers.shape[1], 0))  # [B, K+J]
    return scores.masked_fill(missing, NO_SCORE)


def _base(choice: str | BaseLoss, q: float | None) -> BaseLoss:
    base = _named(choice, BASES, "base")
    if q is None:
        return base
    if not isinstance(base, GCE):
        raise UserError(f"loss.q={q:g} is a setting of base=gce; base={choice} has none.")
    return GCE(q)


def _named(choice: str | Part, known: Mapping[str, Part], what: str) -> Part:
    if callable(choice):
        return choice
    try:
        found: Part = known[choice] if choice in known else cast(Part, locate(choice))
        return found
    except Exception as error:
        raise UserError(
            f"loss.{what}={choice} is neither one of {', '.join(known)} nor the dotted path of a function."
        ) from error
