"""Experts described by what they answered on a context of labelled samples: any number of them, never trained with or not."""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from l2d.data import Batch
from l2d.losses import DeferralLoss
from l2d.losses.base import decoupled
from l2d.systems.classifier import ClassifierSystem, count_right, shrunk
from l2d.systems.system import Stage, System

EMPTY = 0.2  # the share of experts without any answer in their context, in training
AtLeast1 = Annotated[int, Ge(1)]


class PosteriorPopulation(ClassifierSystem):
    """Acc_j(x) = sum_k p_k(x) a_jk: a classifier, and the accuracy a_jk of every expert on every class from its context.

    a_jk is the mean of a Beta posterior, shrunk to the expert's overall accuracy as by `strength` more answers, and that one to
    the average of the experts in training. It is Acc_j(x) where the answer depends on the class alone.
    """

    vouches_for = "all"
    about_panel = ("accuracy",)

    def __init__(
        self,
        backbone: Callable[[int], nn.Module],
        num_classes: int,
        num_experts: int,
        context: AtLeast1,
        strength: Annotated[float, Gt(0)],
    ):
        super().__init__(backbone, num_classes)
        self.context, self.strength = context, strength
        self.accuracy: Tensor
        self.average: Tensor
        self.register_buffer("accuracy", torch.zeros(num_experts, num_classes))
        self.register_buffer("average", torch.zeros(()))

    def train_with(self, labels: Tensor, answers: Tensor) -> None:
        right, given = (answers == labels[:, None]).sum(), (answers >= 0).sum()
        self.average.copy_(right / given.clamp(min=1))

    def meet(self, seen: Tensor, labels: Tensor, answers: Tensor) -> None:
        right, given = count_right(labels, labels, answers, self.num_classes)  # [J, K] each
        average = self.average.cpu().double()
        overall = shrunk(right.sum(1, keepdim=True), given.sum(1, keepdim=True), average, self.strength)  # [J, 1]
        self.accuracy.copy_(shrunk(right, given, overall, self.strength))

    def beliefs(self, outputs: Tensor) -> Tensor:
        classes = outputs.double().softmax(dim=1)  # [B, K]
        return torch.cat([classes, classes @ self.accuracy.to(classes).T], dim=1)


class PooledPopulation(System):
    """Expert j is psi_j, the mean of an MLP's [p(x_c), e(x_c), y_c, m_jc] over its context; Acc_j(x) = sigmoid MLP([p(x), e(x), psi_j]).

    [theta, e] = backbone(x) are K class scores and an embedding, p = softmax(theta); experts do not change what p is taught. An
    expert without a context has the learnt psi_0, which counts as one more sample of every context. In training the contexts
    are in the batch: each half of it describes the experts for the other half, with fewer or no answers of some, so that psi_0
    is taught to be the average. After it, the context are training samples, whose p the backbone may have memorised.
    """

    vouches_for = "all"
    about_panel = ("psi",)

    def __init__(
        self,
        backbone: Callable[[int], nn.Module],
        num_classes: int,
        num_experts: int,
        context: AtLeast1,
        hidden: AtLeast1,
    ):
        super().__init__()
        self.context, self.num_classes = context, num_classes
        self.backbone = backbone(num_classes + hidden)
        self.describer = _mlp(3 * num_classes + hidden, hidden, hidden)
        self.psi_0 = nn.Parameter(torch.zeros(hidden))
        self.rejector = _mlp(num_classes + 2 * hidden, hidden, 1)
        self.loss = DeferralLoss("vanilla", "decoupled", num_classes, weight="balanced")
        self.psi: Tensor
        self.register_buffer("psi", torch.zeros(num_experts, hidden))

    def stages(self) -> list[Stage]:
        return [Stage("train", list(self.parameters()), self.taught)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores [B, K+J]: of the classes, and the logit of every expert's accuracy; in training [theta, e] alone."""
        outputs = self.backbone(inputs)
        return outputs if self.training else self.scored(outputs, self.psi)

    def taught(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The decoupled loss of a batch, each half scored with descriptions from the other half."""
        outputs, half = outputs.float(), len(batch.labels) // 2
        scores = []
        for context, query in ((slice(half, None), slice(half)), (slice(half), slice(half, None))):
            answers = batch.answers[context]  # [C, P]
            share = torch.empty(answers.shape[1], device=answers.device).uniform_(-EMPTY / (1 - EMPTY), 1)  # [P]
            kept = torch.rand(answers.shape, device=answers.device) < share
            psi = self.described(outputs[context].detach(), batch.labels[context], answers.masked_fill(~kept, -1))
            scores.append(self.scored(outputs[query], psi))
        loss: Tensor = self.loss(torch.cat(scores), batch.labels, batch.answers)
        return loss

    def described(self, outputs: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """psi [P, H] of experts who gave these answers [C, P] to samples of these outputs [C, K+H] and labels [C]."""
        given = answers >= 0  # [C, P]
        inputs = torch.cat(
            [self.features(outputs), F.one_hot(labels, self.num_classes).to(outputs)], dim=1
        )  # [C, 2K+H]
        said = F.one_hot(answers.long().clamp(min=0), self.num_classes).to(outputs)  # [C, P, K]
        each: Tensor = self.describer(
            torch.cat([inputs[:, None].expand(-1, said.shape[1], -1), said], dim=2)
        )  # [C, P, H]
        total = (each * given[..., None]).sum(dim=0) + self.psi_0  # [P, H]
        return total / (1 + given.sum(dim=0))[:, None]

    def scored(self, outputs: Tensor, psi: Tensor) -> Tensor:
        """Scores [B, K+P] of outputs [B, K+H] for experts psi [P, H]."""
        sizes = (outputs.shape[0], psi.shape[0], -1)  # not len(): it would fix the batch of an exported graph
        pairs = torch.cat(
            [self.features(outputs)[:, None].expand(sizes), psi[None].expand(sizes)], dim=2
        )  # [B, P, K+2H]
        return torch.cat([outputs[:, : self.num_classes], self.rejector(pairs).squeeze(2)], dim=1)

    def features(self, outputs: Tensor) -> Tensor:
        """[p, e], [B, K+H]; p without a gradient."""
        classes, embedding = outputs.tensor_split([self.num_classes], dim=1)
        return torch.cat([classes.detach().softmax(dim=1).to(outputs.dtype), embedding], dim=1)

    @torch.no_grad()
    def meet(self, seen: Tensor, labels: Tensor, answers: Tensor) -> None:
        """Describe one expert after the other, each by its own context."""
        for j, column in enumerate(answers.T):
            own = column >= 0
            context = (part[own].to(self.psi.device) for part in (seen, labels, column[:, None]))
            self.psi[j] = self.described(*context)[0]

    def beliefs(self, outputs: Tensor) -> Tensor:
        return decoupled.beliefs(outputs.double(), self.num_classes)


def population_system(
    backbone: Callable[[int], nn.Module],
    num_classes: int,
    num_experts: int,
    form: Literal["posterior", "pooled"],
    context: AtLeast1,
    strength: Annotated[float, Gt(0)],
    hidden: AtLeast1,
) -> System:
    """The system of this `form`; the settings of the other form are not used."""
    if form == "posterior":
        return PosteriorPopulation(backbone, num_classes, num_experts, context, strength)
    return PooledPopulation(backbone, num_classes, num_experts, context, hidden)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers)
