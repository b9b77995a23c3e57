"""The best any system could do, where the posterior is known."""

import torch
from torch import Tensor

from l2d.decisions import pick
from l2d.task import Truth


def bayes_optimum(truth: Truth, costs: Tensor | None = None) -> dict[str, float]:
    """Metrics of the optimal system: Acc_j(x) = sum_y eta_y(x) A[j, y]; defer where the best expert is at least as good,
    what it costs [J] subtracted. The expectation over labels and experts is exact; only x is averaged over the given points.
    """
    classifier = truth.eta.max(dim=1).values  # [N]
    utility, best = (truth.accuracy if costs is None else truth.accuracy - costs).max(dim=1)  # [N], [N]
    kept, expert = classifier > utility, pick(truth.accuracy, best)  # [N], [N]
    optimum = {
        "system_error": 100 * (1 - torch.where(kept, classifier, expert).mean().item()),
        "coverage": 100 * kept.double().mean().item(),
        "classifier_accuracy": 100 * classifier.mean().item(),
    }
    if costs is not None:
        optimum["system_cost"] = 100 * (1 - classifier.maximum(utility).mean().item())
    return optimum
