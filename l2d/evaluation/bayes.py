"""The best any system could do, where the posterior is known."""

from l2d.task import Truth


def bayes_optimum(truth: Truth) -> dict[str, float]:
    """Metrics of the optimal system: Acc_j(x) = sum_y eta_y(x) A[j, y]; defer where the best expert is at least as good.

    The expectation over labels and experts is exact; only x is averaged over the given points.
    """
    classifier = truth.eta.max(dim=1).values  # [N]
    expert = truth.accuracy.max(dim=1).values  # [N]
    return {
        "system_error": 100 * (1 - classifier.maximum(expert).mean().item()),
        "coverage": 100 * (classifier > expert).double().mean().item(),
        "classifier_accuracy": 100 * classifier.mean().item(),
    }
