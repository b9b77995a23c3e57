"""What a system did on a split. Every metric, curve, table and per-sample file is a function of an Outcome."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from l2d.decisions import Decision, decide, pick
from l2d.decisions.decide import ROWS
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

    @property
    def num_classes(self) -> int:
        return self.beliefs.shape[1] - self.answers.shape[1]

    @cached_property
    def recorded(self) -> Tensor:
        """[expert j's answer is there], [N, J]."""
        return self.answers >= 0

    @cached_property
    def experts_right(self) -> Tensor:
        """[expert j is right], [N, J]; False where it did not answer."""
        return self.answers == self.labels[:, None]

    @cached_property
    def classifier_right(self) -> Tensor:
        """[the predicted class is right], [N]."""
        return self.decision.predicted == self.labels

    @cached_property
    def expert_right(self) -> Tensor:
        """[the best expert is right, asked or not], [N]."""
        return pick(self.experts_right, self.decision.expert)

    @cached_property
    def right(self) -> Tensor:
        """[the final answer is right], [N]."""
        return self.answer == self.labels

    @cached_property
    def answer(self) -> Tensor:
        """The final answer: the asked expert's, else the predicted class, [N]."""
        given = pick(self.answers, self.decision.expert).to(self.decision.predicted.dtype)
        return torch.where(self.decision.deferred, given, self.decision.predicted)

    @cached_property
    def majority(self) -> Tensor:
        """The answer that most experts gave, [N]; among equals that of the first expert; -1 where nobody answered."""
        answers = self.answers.long()
        votes = torch.zeros(len(answers), self.num_classes + 1, dtype=torch.int16)  # [N, 1 + K]; column 0: no answer
        votes.scatter_add_(1, answers + 1, torch.ones_like(answers, dtype=torch.int16))
        support = votes.gather(1, answers + 1).masked_fill(~self.recorded, 0)  # [N, J]: votes for what expert j said
        return pick(answers, support.argmax(dim=1))


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
    rule: Callable[..., Decision] = decide,
    truth: Truth | None = None,
    **fitted_on: Any,
) -> Outcome:
    """Let a rule decide by what the system believes, and return the outcome.

    Only an expert whose answer is recorded is available: what nobody said cannot be scored. The rule gets `beliefs`,
    `num_classes`, `available`, `order`, and whatever else it is `fitted_on` (such as the `held_out` outcome).
    """
    beliefs = _believed(system, predicted.outputs)  # [N, K+J]
    answers = predicted.answers
    decision = rule(
        beliefs=beliefs,
        num_classes=beliefs.shape[1] - answers.shape[1],
        available=answers >= 0,
        order=predicted.outputs if predicted.outputs.shape == beliefs.shape else beliefs,
        **fitted_on,
    )
    return Outcome(
        labels=predicted.labels,
        answers=answers,
        outputs=predicted.outputs,
        beliefs=beliefs,
        decision=decision,
        vouches_for=system.vouches_for,
        samples=predicted.samples,
        truth=truth,
    )


def _believed(system: System, outputs: Tensor) -> Tensor:
    """The beliefs [N, K+J], some rows at a time, which bounds the memory for what is computed on the way."""
    first = system.beliefs(outputs[:ROWS])
    beliefs = first.new_empty(len(outputs), first.shape[1])
    beliefs[:ROWS] = first
    for start in range(ROWS, len(outputs), ROWS):
        beliefs[start : start + ROWS] = system.beliefs(outputs[start : start + ROWS])
    return beliefs
