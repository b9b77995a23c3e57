"""Whether a system's beliefs can be relied on: against the truth, or against what happened."""

from typing import Any

import torch
from torch import Tensor

from l2d.decisions import pick
from l2d.evaluation.outcome import Outcome
from l2d.task import Truth


def belief_errors(outcome: Outcome, truth: Truth) -> dict[str, float | None]:
    """Mean absolute errors of the beliefs: over all class probabilities, and over Acc of the best expert alone."""
    available, believed = _best_expert(outcome)  # [N], [number of available]
    accuracy = pick(truth.accuracy, outcome.decision.expert)[available]
    return {
        "class_probability_mae": 100 * (outcome.beliefs[:, : outcome.num_classes] - truth.eta).abs().mean().item(),
        "expert_accuracy_mae": 100 * (believed - accuracy).abs().mean().item() if available.any() else None,
    }


def calibration(outcome: Outcome, bins: int) -> dict[str, Any]:
    """Reliability of the predicted class's probability, and of the accuracy of the expert who would be asked."""
    available, believed = _best_expert(outcome)
    return {
        "classifier": reliability(pick(outcome.beliefs, outcome.decision.predicted), outcome.classifier_right, bins),
        "expert": reliability(believed, outcome.expert_right[available], bins),
    }


def estimated(outcome: Outcome) -> Tensor:
    """[N, J] where the believed accuracy of an expert is an estimate and its answer is recorded: of all experts, or of the one who is
    worth most to ask, as the system vouches for them."""
    if outcome.vouches_for == "all":
        return outcome.recorded
    best = torch.zeros_like(outcome.recorded).scatter_(1, outcome.decision.expert[:, None], outcome.believes)
    return outcome.recorded & best


def _best_expert(outcome: Outcome) -> tuple[Tensor, Tensor]:
    """[somebody can be asked] [N], and there the believed accuracy of the expert who would be."""
    available = outcome.decision.margin > -torch.inf
    return available, pick(outcome.beliefs[:, outcome.num_classes :], outcome.decision.expert)[available]


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
