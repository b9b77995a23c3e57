"""What a system did on a split. Every metric, curve, table and per-sample file is a function of an Outcome."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from l2d import kernels
from l2d.decisions import Cases, Decision, Deployment, pick, vote
from l2d.decisions.decide import rows_at_once
from l2d.systems import ScoreSystem, System
from l2d.task import Truth
from l2d.training.loop import Predicted


@dataclass(frozen=True)
class Outcome:
    """Three facts about an expert are kept apart: who may be asked (a property of the decision), whose answer is
    `recorded` (needed to score it) and who is right."""

    labels: Tensor  # [N]
    answers: Tensor  # [N, J]; -1 where no answer is recorded
    outputs: Tensor  # [N, *] of the system
    beliefs: Tensor  # [N, K+J] class probabilities, then expert accuracies
    decision: Decision
    vouches_for: Literal["all", "top", "none"] = "none"  # the experts whose believed accuracy can be relied on
    samples: Tensor | None = None  # [N] which ones of the split these are; None: all of them
    truth: Truth | None = None
    deployment: Deployment | None = None
    ids: Sequence[str] | None = None  # [N] of the samples, where they have names

    @property
    def num_classes(self) -> int:
        return self.beliefs.shape[1] - self.answers.shape[1]

    @property
    def believes(self) -> bool:
        """Whether its beliefs are estimates that can be compared with what happens: of every expert, or of the one who is asked."""
        return self.vouches_for == "all" or (self.vouches_for == "top" and self.decision.answer is None)

    @property
    def costs(self) -> Tensor | None:
        """What asking each expert costs, [J]; None where it costs nothing."""
        return self.deployment.costs if self.deployment else None

    @cached_property
    def spent(self) -> Tensor:
        """What was paid for asking, [N], in units of a right answer."""
        asked = self.decision.asked.double()  # [N, J]
        return asked @ self.costs if self.costs is not None else asked.new_zeros(len(asked))

    @cached_property
    def loss(self) -> Tensor:
        """What the final answer costs, [N]."""
        return self.loss_of(self.answer)

    def loss_of(self, answer: Tensor) -> Tensor:
        """What an answer [N] costs, [N]: 1 where it is wrong, or as the loss matrix says."""
        matrix = self.deployment.loss_matrix if self.deployment else None
        return (answer != self.labels).double() if matrix is None else matrix[self.labels, answer.long()].double()

    def cases(self) -> Cases:
        """To fit a rule on."""
        order = self.outputs if self.outputs.shape == self.beliefs.shape else self.beliefs
        deployment = self.deployment or Deployment([f"expert_{j}" for j in range(self.answers.shape[1])])
        return Cases(self.beliefs, self.answers, self.recorded, order, deployment, self.labels)

    @cached_property
    def recorded(self) -> Tensor:
        """[expert j's answer is there], [N, J]."""
        return self.answers >= 0

    @cached_property
    def experts_right(self) -> Tensor:
        """[expert j is right], [N, J]; False where it did not answer."""
        fits = self.num_classes <= torch.iinfo(self.answers.dtype).max  # then the table need not be converted to int64
        labels = self.labels.to(self.answers.dtype) if fits else self.labels
        return self.answers == labels[:, None]

    @cached_property
    def heard(self) -> kernels.Heard:
        """What the panel says."""
        found = kernels.heard(self.answers, self.labels)
        if found is not None:
            return found
        right, given = (
            [table.sum(dim=dim, dtype=torch.int32) for dim in (1, 0)] for table in (self.experts_right, self.recorded)
        )
        majority = vote(self.answers, self.recorded, torch.ones(1, 1))
        return kernels.Heard(majority, right[0], given[0], right[1], given[1])

    @cached_property
    def expert_accuracy(self) -> list[float | None]:
        """Percentage of right answers among those that each expert gave; None for one who gave none."""
        right, given = self.heard.right_of.tolist(), self.heard.given_of.tolist()
        return [100 * hits / answers if answers else None for hits, answers in zip(right, given, strict=True)]

    @cached_property
    def right_there(self) -> tuple[Tensor, Tensor]:
        """How many experts are there and right, and how many of those are asked, [N] each."""
        gain, asked = self.decision.gain, self.decision.asked
        found = kernels.right_experts(self.answers, self.labels, gain, asked)
        if found is not None:
            return found
        right = self.experts_right & (gain > -torch.inf)  # [N, J]
        return right.sum(dim=1, dtype=torch.int32), (right & asked).sum(dim=1, dtype=torch.int32)

    @cached_property
    def num_asked(self) -> Tensor:
        """How many experts are asked about a sample, [N]."""
        return self.decision.num_asked

    @cached_property
    def deferred(self) -> Tensor:
        """[anybody is asked], [N]."""
        return self.num_asked > 0

    @cached_property
    def classifier_right(self) -> Tensor:
        """[the predicted class is right], [N]."""
        return self.decision.predicted == self.labels

    @cached_property
    def expert_right(self) -> Tensor:
        """[the best expert is right, asked or not], [N]."""
        return pick(self.answers, self.decision.expert) == self.labels

    @cached_property
    def right(self) -> Tensor:
        """[the final answer is right], [N]."""
        return self.answer == self.labels

    @cached_property
    def answer(self) -> Tensor:
        """The final answer, [N]: what the rule made of all that it heard, or the asked expert's, else the predicted class."""
        if self.decision.answer is not None:
            return self.decision.answer
        given = pick(self.answers, self.decision.expert).to(self.decision.predicted.dtype)
        return torch.where(self.deferred, given, self.decision.predicted)


def outcome_of(scores: Tensor, labels: Tensor, answers: Tensor, loss: Any) -> Outcome:
    """The outcome of scores [N, K+J] that were trained with a loss, for labels [N] and answers [N, J] (-1: none).

    >>> from l2d.evaluation import METRICS, measure
    >>> from l2d.losses import DeferralLoss
    >>> scores = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]])  # two classes, one expert
    >>> labels, answers = torch.tensor([0, 0]), torch.tensor([[1], [0]])
    >>> measure(outcome_of(scores, labels, answers, DeferralLoss("picce", "ce", num_classes=2)), METRICS)["coverage"]
    50.0
    """
    num_experts = answers.shape[1]
    system = ScoreSystem(lambda _: nn.Identity(), loss, scores.shape[1] - num_experts, num_experts)
    samples = torch.arange(len(labels))
    return observe(system, Predicted(scores.cpu(), labels.cpu(), answers.cpu(), samples))


def observe(
    system: System,
    predicted: Predicted,
    rule: Callable[[Cases], Decision] = Cases.decide,
    truth: Truth | None = None,
    deployment: Deployment | None = None,
) -> Outcome:
    """Let a rule decide by what the system believes, and return the outcome.

    Only an expert whose answer is recorded is available: what nobody said cannot be scored.
    """
    beliefs, outputs = believed(system, predicted.outputs), predicted.outputs  # [N, K+J], [N, *]
    answers = predicted.answers
    order = outputs if outputs.shape == beliefs.shape else beliefs
    deployment = deployment or Deployment([f"expert_{j}" for j in range(answers.shape[1])])
    return Outcome(
        labels=predicted.labels,
        answers=answers,
        outputs=outputs,
        beliefs=beliefs,
        decision=rule(Cases(beliefs, answers, answers >= 0, order, deployment)),
        vouches_for=system.vouches_for,
        samples=predicted.samples,
        truth=truth,
        deployment=deployment,
    )


def believed(system: System, outputs: Tensor) -> Tensor:
    """The beliefs [N, K+J], some rows at a time, which bounds the memory for what is computed on the way."""
    beliefs: Tensor | None = None
    done = 0
    for part in outputs.split(rows_at_once(outputs)):
        some = system.beliefs(part)  # [B, K+J]
        beliefs = kernels.empty_table(len(outputs), some.shape[1]) if beliefs is None else beliefs
        beliefs[done : done + len(some)] = some
        done += len(some)
    assert beliefs is not None  # split gives at least one part
    return beliefs
