"""Whether the probabilities that the scores imply can be believed: against the truth, or against what happened."""

from typing import Any

import torch
from torch import Tensor

from l2d.evaluation.rivals import pick, rights, rivals


def estimate_errors(estimated: Tensor, expert: Tensor, eta: Tensor, accuracy: Tensor) -> dict[str, float]:
    """Mean absolute errors of estimated [N, K+J]: over all class probabilities, and over Acc of `expert` [N] alone."""
    num_classes = eta.shape[1]
    believed = pick(estimated[:, num_classes:], expert).clamp(max=1)  # [N]
    return {
        "class_probability_mae": 100 * (estimated[:, :num_classes] - eta).abs().mean().item(),
        "expert_accuracy_mae": 100 * (believed - pick(accuracy, expert)).abs().mean().item(),
    }


def calibration(
    estimated: Tensor, scores: Tensor, labels: Tensor, expert_predictions: Tensor, bins: int
) -> dict[str, Any]:
    """Reliability of the predicted class's probability, and of the accuracy of the expert who would be asked."""
    num_classes = scores.shape[1] - expert_predictions.shape[1]
    sample = rivals(scores, expert_predictions, num_classes)
    classifier_right, expert_right = rights(sample, labels, expert_predictions)  # [N], [N]
    there = sample.margin > -torch.inf  # [N]: some expert has an answer
    believed = pick(estimated[:, num_classes:], sample.expert)[there]
    return {
        "classifier": reliability(pick(estimated, sample.predicted), classifier_right, bins),
        "expert": reliability(believed, expert_right[there], bins),
    }


def reliability(confidence: Tensor, right: Tensor, bins: int) -> dict[str, Any]:
    """Mean confidence and accuracy in `bins` equal bins of [0, 1] (above 1 counts as 1), and ECE = sum_b n_b/N |conf - acc|."""
    confidence = confidence.double().clamp(0, 1)  # [N]
    place = (confidence * bins).long().clamp(max=bins - 1)  # [N]
    count = place.bincount(minlength=bins)  # [bins]
    sums = [place.bincount(values.double(), minlength=bins) for values in (confidence, right)]  # [bins] each
    means = [(100 * total / count).tolist() for total in sums]
    return {
        "ece": 100 * (sums[0] - sums[1]).abs().sum().item() / len(confidence) if len(confidence) else None,
        "count": count.tolist(),
        **{
            name: [value if n else None for value, n in zip(mean, count.tolist(), strict=True)]
            for name, mean in zip(("confidence", "accuracy"), means, strict=True)
        },
    }
