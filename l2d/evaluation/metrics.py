"""METRICS: every number that a run reports. Record, console, tables, figures and trackers read this list.

Importing it does not import torch, so that the report can read names and labels alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from l2d.evaluation.outcome import Outcome


class Metric(NamedTuple):
    """A number (or a list with one per expert) that is a function of an Outcome, on the 0-100 scale; None where undefined."""

    name: str
    label: str
    better: Literal["lower", "higher"]
    of: Callable[[Outcome], Any]
    short: str = ""  # heading of a narrow column; headline metrics have one
    role: Literal["headline", "reference", "detail"] = "detail"  # reference: what a reader compares a system with


def system_error(outcome: Outcome) -> float:
    """Share of samples whose final answer, the classifier's or the asked expert's, is wrong."""
    total = len(outcome.labels)
    return 100 * (total - _count(outcome.right)) / total


def coverage(outcome: Outcome) -> float:
    """Share of samples that are not deferred."""
    total = len(outcome.labels)
    return 100 * (total - _count(outcome.deferred)) / total


def classifier_accuracy(outcome: Outcome) -> float:
    """Accuracy of the predicted class on all samples, deferred or not."""
    return 100 * _count(outcome.classifier_right) / len(outcome.labels)


def classifier_accuracy_kept(outcome: Outcome) -> float | None:
    """Accuracy of the predicted class on the samples that are not deferred."""
    return _share(outcome.classifier_right, ~outcome.deferred)


def expert_accuracy_deferred(outcome: Outcome) -> float | None:
    """Accuracy of what the asked experts say, or of what a rule makes of it, on the samples that are deferred."""
    return _share(outcome.right, outcome.deferred)


def best_expert_accuracy(outcome: Outcome) -> float | None:
    """Accuracy of the most accurate single expert, each over the answers it gave."""
    return max((a for a in outcome.expert_accuracy if a is not None), default=None)


def majority_vote_accuracy(outcome: Outcome) -> float | None:
    """Accuracy of the answer most experts gave (ties: that of the first expert among them), where anybody answered."""
    return _share(outcome.heard.majority == outcome.labels, outcome.heard.given > 0)


def random_expert_accuracy(outcome: Outcome) -> float | None:
    """Accuracy of one expert, drawn anew for each sample among those who answered it: the expectation, where anybody answered."""
    mean = float((outcome.heard.right.double() / outcome.heard.given).nanmean())  # 0 / 0 where nobody answered
    return None if math.isnan(mean) else 100 * mean


def any_expert_correct(outcome: Outcome) -> float:
    """Share of samples on which at least one expert is right: what perfect routing to experts alone would reach."""
    return 100 * _count(outcome.heard.right > 0) / len(outcome.labels)


def system_cost(outcome: Outcome) -> float | None:
    """What errors and questions cost together, per 100 cases; None where neither has a price."""
    deployment = outcome.deployment
    if deployment is None or (
        deployment.loss_matrix is None and not (deployment.costs is not None and deployment.costs.any())
    ):
        return None
    return 100 * float((outcome.loss + outcome.spent).mean())


def questions_asked(outcome: Outcome) -> float:
    """How many questions are asked in 100 cases; with at most one question a case, 100 - coverage."""
    return 100 * int(outcome.num_asked.sum()) / len(outcome.labels)


def set_size(outcome: Outcome) -> float | None:
    """How many experts are asked about a sample that is deferred, on average."""
    deferred = _count(outcome.deferred)
    return int(outcome.num_asked.sum()) / deferred if deferred else None


def false_negative_rate(outcome: Outcome) -> float | None:
    """Share of the experts who are there and right that are not asked: mean over the samples that are deferred and have any."""
    total, asked = outcome.right_there  # [N] each
    missed = (total - asked).double() / total  # [N]; 0 / 0 where nobody is right
    mean = float(missed[outcome.deferred].nanmean())
    return None if math.isnan(mean) else 100 * mean


def deferred_to(outcome: Outcome) -> list[float]:
    """Share of samples on which each expert is asked."""
    return [100 * count / len(outcome.labels) for count in _sums(outcome.decision.asked).tolist()]


def expert_accuracy(outcome: Outcome) -> list[float | None]:
    """Accuracy of each expert over the answers it gave."""
    return outcome.expert_accuracy


def answered(outcome: Outcome) -> list[float]:
    """Share of samples for which each expert's answer is recorded."""
    return [100 * count / len(outcome.labels) for count in outcome.heard.given_of.tolist()]


METRICS: list[Metric] = [
    Metric("system_error", "System error (%)", "lower", system_error, "Err", "headline"),
    Metric("coverage", "Coverage (%)", "higher", coverage, "Cov", "headline"),
    Metric("classifier_accuracy", "Classifier accuracy (%)", "higher", classifier_accuracy, "Acc", "headline"),
    Metric("classifier_accuracy_kept", "Classifier accuracy where kept (%)", "higher", classifier_accuracy_kept),
    Metric("expert_accuracy_deferred", "Expert accuracy where asked (%)", "higher", expert_accuracy_deferred),
    Metric("best_expert_accuracy", "Best single expert (%)", "higher", best_expert_accuracy, role="reference"),
    Metric("majority_vote_accuracy", "Majority vote (%)", "higher", majority_vote_accuracy, role="reference"),
    Metric("random_expert_accuracy", "Random expert (%)", "higher", random_expert_accuracy, role="reference"),
    Metric("any_expert_correct", "Any expert right (%)", "higher", any_expert_correct, role="reference"),
    Metric("system_cost", "System cost", "lower", system_cost),
    Metric("questions_asked", "Questions per 100 cases", "lower", questions_asked),
    Metric("set_size", "Experts asked per deferred case", "lower", set_size),
    Metric("false_negative_rate", "Right experts not asked (%)", "lower", false_negative_rate),
    Metric("deferred_to", "Deferred to each expert (%)", "higher", deferred_to),
    Metric("expert_accuracy", "Accuracy of each expert (%)", "higher", expert_accuracy),
    Metric("answered", "Answered by each expert (%)", "higher", answered),
]
HEADLINE = [metric for metric in METRICS if metric.role == "headline"]
REFERENCE = [metric for metric in METRICS if metric.role == "reference"]


def measure(outcome: Outcome, metrics: list[Metric]) -> dict[str, Any]:
    """name -> value of each metric."""
    return {metric.name: metric.of(outcome) for metric in metrics}


def _sums(where: Tensor) -> Tensor:
    """How many are true in each column. In int32, several times as fast as in int64, which is torch's default."""
    import torch

    return where.sum(dim=0, dtype=torch.int32)


def _count(where: Tensor) -> int:
    return int(where.count_nonzero())


def _share(right: Tensor, among: Tensor) -> float | None:
    """Percentage of `right` [N] in the samples `among` [N]; None where there are none."""
    total = _count(among)
    return 100 * _count(right & among) / total if total else None
