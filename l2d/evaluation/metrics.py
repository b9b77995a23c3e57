"""The decision and the metrics of a deferral system, on the paper's 0-100 scale."""

from typing import Any

import torch
from torch import Tensor


def decide(scores: Tensor, expert_predictions: Tensor, num_classes: int) -> Tensor:
    """a = argmax(theta) [B]: below K predict class a, otherwise ask expert a - K. An expert without an answer is never asked."""
    absent = expert_predictions < 0  # [B, J]
    experts = scores[:, num_classes:].masked_fill(absent, -torch.inf)  # [B, J]
    return torch.cat([scores[:, :num_classes], experts], dim=1).argmax(dim=1)  # [B]


def evaluate(scores: Tensor, labels: Tensor, expert_predictions: Tensor, num_classes: int) -> dict[str, Any]:
    """Every metric of the system from scores [B, K+J], labels [B] and expert_predictions [B, J]. Empty means are None."""
    action = decide(scores, expert_predictions, num_classes)  # [B]
    deferred = action >= num_classes  # [B]
    asked = (action - num_classes).clamp(min=0)  # [B]
    right = expert_predictions == labels[:, None]  # [B, J]
    expert_right = right.gather(1, asked[:, None]).squeeze(1)  # [B]
    classifier_right = scores[:, :num_classes].argmax(dim=1) == labels  # [B]
    system_right = torch.where(deferred, expert_right, action == labels)  # [B]
    counts = torch.bincount(action, minlength=scores.shape[1])[num_classes:]  # [J]

    # One tensor, so that the device is waited for once.
    numbers = torch.stack(
        [
            system_right.sum(),
            deferred.sum(),
            classifier_right.sum(),
            (classifier_right & ~deferred).sum(),
            (expert_right & deferred).sum(),
            right.any(dim=1).sum(),
        ]
    )
    summary = torch.cat([numbers, right.sum(dim=0), counts]).tolist()
    ok, away, classifier_ok, kept_ok, asked_ok, any_ok = summary[:6]
    each = summary[6:]
    total, num_experts = len(labels), expert_predictions.shape[1]
    return {
        "system_error": 100 * (total - ok) / total,
        "coverage": 100 * (total - away) / total,
        "classifier_accuracy": 100 * classifier_ok / total,
        "classifier_accuracy_kept": _percent(kept_ok, total - away),
        "expert_accuracy_deferred": _percent(asked_ok, away),
        "best_expert_accuracy": 100 * max(each[:num_experts]) / total,
        "any_expert_correct": 100 * any_ok / total,
        "deferred_to": [100 * count / total for count in each[num_experts:]],
    }


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
