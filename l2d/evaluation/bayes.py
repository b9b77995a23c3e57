"""The best any system could do, where the posterior is known."""

from torch import Tensor


def bayes_optimum(eta: Tensor, matrix: Tensor) -> dict[str, float]:
    """From eta [N, K] and A [J, K]: Acc_j(x) = sum_y eta_y(x) A[j, y]; defer where the best expert is at least as good.

    The expectation over labels and experts is exact; only x is averaged over the given points.
    """
    classifier = eta.max(dim=1).values  # [N]
    expert = (eta @ matrix.T.to(eta)).max(dim=1).values  # [N]
    return {
        "system_error": 100 * (1 - classifier.maximum(expert).mean().item()),
        "coverage": 100 * (classifier > expert).double().mean().item(),
        "classifier_accuracy": 100 * classifier.mean().item(),
    }
