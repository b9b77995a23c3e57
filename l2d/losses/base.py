"""Bases: phi(scores, y) + sum_j w_j phi(scores, K + j), one value per sample, in its stable form, and what the scores mean.

`beliefs` reads [eta_1..eta_K, Acc_1..Acc_J] off the scores [..., K+J] as they are at the minimum of the risk. With a `weight`
the experts' terms count that much, and what it would do to the scores is undone: beliefs do not depend on it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

BaseLoss = Callable[..., Tensor]  # (scores [B, K+J], labels [B], weights [B, J]) -> [B]; a Base takes more
Reduction = Literal["none", "mean"]  # a loss for each sample [B], or their mean, in fewer calls of torch
Weight = float | Tensor | None  # of the experts' terms: a number, or one for each sample, [B, 1]; None: 1


class Base(ABC):
    """A base is called with scores [B, K+J], labels [B] (or their distribution [B, K]) and expert weights w [B, J]."""

    name: str
    vouches = True  # beliefs are probabilities, and not only in their order
    one_distribution = True  # classes and experts share it, so that experts can flatten the labels

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor,
        weight: Weight = None,
        reduction: Reduction = "none",
    ) -> Tensor:
        """The loss of each sample, [B], or their mean; `weight` is that of the experts' terms.

        In few calls of torch, because a step of a small model waits for them.
        """
        return self.loss(scores, labels, weights, weight, reduction)

    @abstractmethod
    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor, weight: Weight, reduction: Reduction) -> Tensor:
        """The same, with every argument given."""

    @abstractmethod
    def beliefs(self, scores: Tensor, num_classes: int) -> Tensor:
        """[eta, Acc], [..., K+J]."""


class CE(Base):
    """phi(theta, i) = -log softmax(theta)_i over all K+J columns; the minimum is at softmax ~ [eta, weight Acc]."""

    name = "ce"

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor, weight: Weight, reduction: Reduction) -> Tensor:
        scores, targets = _taught_softmax(scores, labels, weights, weight)
        return _total(targets, F.log_softmax(scores, dim=1), -1, reduction)

    def beliefs(self, scores: Tensor, num_classes: int) -> Tensor:
        """softmax_i / sum_k softmax_k; an expert's can pass 1 away from the optimum, and is capped far above it."""
        above = scores - scores[..., :num_classes].amax(dim=-1, keepdim=True)  # the best class, [..., K+J]
        relative = above.clamp_(max=50).exp_()
        return relative.div_(relative[..., :num_classes].sum(dim=-1, keepdim=True))


class OvA(Base):
    """Binary cross-entropy with logits, summed over the K+J columns."""

    name = "ova"

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor, weight: Weight, reduction: Reduction) -> Tensor:
        columns = None if weight is None else _experts_alone(weight, scores, weights, classes=1)
        return _binary(scores, _targets(scores, labels, weights), columns, reduction)

    def beliefs(self, scores: Tensor, num_classes: int) -> Tensor:
        """sigmoid of every column."""
        return scores.sigmoid()  # [..., K+J]


class GCE(Base):
    """phi(theta, i) = (1 - softmax(theta)_i^q) / q: cross-entropy for q -> 0, the mean absolute error (MAE) for q = 1.

    The minimum is at softmax ~ [eta, weight Acc]^(1/(1-q)); for q = 1 at a vertex, from which only the best action can be read.
    """

    name = "gce"

    def __init__(self, q: float):
        self.q = q
        self.vouches = self.one_distribution = q < 1

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor, weight: Weight, reduction: Reduction) -> Tensor:
        scores, targets = _taught_softmax(scores, labels, weights, weight, 1 - self.q)
        log_p = F.log_softmax(scores, dim=1)  # [B, K+J]
        return _total(targets, torch.expm1(self.q * log_p), -self.q, reduction)

    def beliefs(self, scores: Tensor, num_classes: int) -> Tensor:
        """r_i / sum_k r_k with r = softmax^(1-q)."""
        return ce.beliefs((1 - self.q) * scores, num_classes) if self.q < 1 else scores.softmax(dim=-1)


class Decoupled(Base):
    """A softmax over the classes and a sigmoid per expert: no expert changes what the class columns are taught."""

    name = "decoupled"
    one_distribution = False

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor, weight: Weight, reduction: Reduction) -> Tensor:
        num_experts = weights.shape[1]
        classes, experts = scores.split([scores.shape[1] - num_experts, num_experts], dim=1)  # [B, K], [B, J]
        label = F.cross_entropy(classes, labels, reduction=reduction)
        return label + _binary(self.logits(classes, experts), weights, weight, reduction)

    def logits(self, classes: Tensor, experts: Tensor) -> Tensor:
        """log Acc_j / (1 - Acc_j) of the scores of classes [..., K] and experts [..., J], [..., J]."""
        return experts

    def beliefs(self, scores: Tensor, num_classes: int) -> Tensor:
        classes, experts = scores.tensor_split([num_classes], dim=-1)
        return torch.cat([classes.softmax(dim=-1), self.logits(classes, experts).sigmoid()], dim=-1)  # [..., K+J]


class AsymmetricSoftmax(Decoupled):
    """As decoupled, with the logit of expert j measured against all classes but the predicted one: theta_{K+j} - z.

    z = log sum_{k != yhat} exp(theta_k) makes Acc/(1-Acc) comparable with eta/(1-eta), so argmax(theta) is the decision.
    """

    name = "asm"

    def logits(self, classes: Tensor, experts: Tensor) -> Tensor:
        others = classes.scatter(-1, classes.argmax(dim=-1, keepdim=True), -torch.inf)  # [..., K]
        return experts - others.logsumexp(dim=-1, keepdim=True)


def implied_distribution(beliefs: Tensor, scores: Tensor) -> Tensor:
    """The (K+J)-way distribution that is fitted: [eta, Acc] / sum(eta, Acc), [N, K+J]; for CE the softmax itself.

    Where every belief underflows to 0, sigmoids are exponentials and the softmax of the scores is the limit.
    """
    total = beliefs.sum(dim=1, keepdim=True)  # [N, 1]
    return torch.where(total > 0, beliefs / total, scores.softmax(dim=1))


def _targets(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """[onehot(y), w], [B, K+J]: every base is linear in what a column is taught. Labels [B, K] are a distribution."""
    if labels.dim() == 2:
        return torch.cat([labels, weights], dim=1)
    targets = torch.zeros_like(scores).scatter_(1, labels[:, None], 1.0)
    targets[:, scores.shape[1] - weights.shape[1] :] = weights  # faster than padding w
    return targets


def _total(targets: Tensor, terms: Tensor, divisor: float, reduction: Reduction) -> Tensor:
    """sum_i targets_i terms_i / divisor over the columns of targets and terms [B, C]."""
    if reduction == "mean":
        compiled = torch.compiler.is_compiling()  # then the product and its sum are one kernel
        total = (targets * terms).sum() if compiled else targets.flatten().dot(terms.flatten())
        return total / (divisor * len(terms))
    return (targets * terms).sum(dim=1) / divisor


def _binary(logits: Tensor, targets: Tensor, weight: Weight, reduction: Reduction) -> Tensor:
    """Binary cross-entropies with logits [B, C], times a weight, added up over the columns."""
    factor, table = (1.0, weight) if weight is None or isinstance(weight, Tensor) else (weight, None)
    if reduction == "mean":
        return F.binary_cross_entropy_with_logits(logits, targets, table, reduction="sum") * (factor / len(logits))
    return factor * F.binary_cross_entropy_with_logits(logits, targets, table, reduction="none").sum(dim=1)


def _taught_softmax(
    scores: Tensor, labels: Tensor, weights: Tensor, weight: Weight, power: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Scores and targets [B, K+J] for a softmax ~ targets^(1/power), in which experts with a `weight` have scores to match."""
    if weight is None:
        return scores, _targets(scores, labels, weights)
    log = weight.log() if isinstance(weight, Tensor) else math.log(weight)
    shift = _experts_alone(log / power, scores, weights, classes=0)
    return scores + shift, _targets(scores, labels, weight * weights)


def _experts_alone(value: float | Tensor, scores: Tensor, weights: Tensor, classes: float) -> Tensor:
    """A row [1, K+J] with a number, or rows [B, K+J] with values [B, 1], in the experts' columns, and `classes` in the others."""
    num_experts = weights.shape[1]
    if isinstance(value, Tensor):
        return F.pad(value.expand(-1, num_experts), (scores.shape[1] - num_experts, 0), value=classes)
    row = scores.new_full((1, scores.shape[1]), classes)
    row[:, scores.shape[1] - num_experts :] = value
    return row


ce, ova, gce, decoupled, asm = CE(), OvA(), GCE(0.7), Decoupled(), AsymmetricSoftmax()
BASES: dict[str, Base] = {base.name: base for base in (ce, ova, gce, decoupled, asm)}
