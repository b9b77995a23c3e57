"""The decision and the metrics of a deferral system, on the paper's 0-100 scale."""

from typing import Any

import torch
from torch import Tensor


def decide(scores: Tensor, expert_predictions: Tensor, num_classes: int) -> Tensor:
    """a = argmax(theta) [B]: below K predict class a, otherwise ask expert a - K. An expert without an answer is never asked."""
    label = scores[:, :num_classes].max(dim=1)  # values and indices [B] each
    expert = scores[:, num_classes:].masked_fill(expert_predictions < 0, -torch.inf).max(dim=1)
    return torch.where(expert.values > label.values, num_classes + expert.indices, label.indices)  # [B]


def evaluate(scores: Tensor, labels: Tensor, expert_predictions: Tensor, num_classes: int) -> dict[str, Any]:
    """Every metric of the system from scores [B, K+J], labels [B] and expert_predictions [B, J]. Empty means are None."""
    counts = tally(scores, labels, expert_predictions, num_classes).tolist()  # the device is waited for once
    right, deferred, classifier_right, kept_right, asked_right, any_right = counts[:6]
    total, num_experts = len(labels), expert_predictions.shape[1]
    experts_right, experts_asked = counts[6 : 6 + num_experts], counts[6 + num_experts :]
    return {
        "system_error": 100 * (total - right) / total,
        "coverage": 100 * (total - deferred) / total,
        "classifier_accuracy": 100 * classifier_right / total,
        "classifier_accuracy_kept": _percent(kept_right, total - deferred),
        "expert_accuracy_deferred": _percent(asked_right, deferred),
        "best_expert_accuracy": 100 * max(experts_right) / total,
        "any_expert_correct": 100 * any_right / total,
        "deferred_to": [100 * count / total for count in experts_asked],
    }


def tally(scores: Tensor, labels: Tensor, expert_predictions: Tensor, num_classes: int) -> Tensor:
    """The counts behind the metrics, in one tensor [6 + 2J] on the scores' device, without waiting for it."""
    action = decide(scores, expert_predictions, num_classes)  # [B]
    asked = action[:, None] == torch.arange(num_classes, scores.shape[1], device=scores.device)  # [B, J]
    deferred = action >= num_classes  # [B]
    expert_right = expert_predictions == labels[:, None]  # [B, J]
    asked_right = (asked & expert_right).any(dim=1)  # [B]
    classifier_right = scores[:, :num_classes].argmax(dim=1) == labels  # [B]
    kept_right = classifier_right & ~deferred  # [B]
    columns = (kept_right | asked_right, deferred, classifier_right, kept_right, asked_right, expert_right.any(dim=1))
    return torch.cat([torch.stack(columns).sum(dim=1), expert_right.sum(dim=0), asked.sum(dim=0)])


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
