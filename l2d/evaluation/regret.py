"""Why a trained system errs more than the best possible one, where the posterior and the experts are known."""

import torch
from torch import Tensor

from l2d.evaluation.rivals import pick, rivals


def regret(
    scores: Tensor, expert_predictions: Tensor, num_classes: int, eta: Tensor, accuracy: Tensor
) -> dict[str, float]:
    """Expected excess error given x, in three parts >= 0 that add up to it; eta [N, K], accuracy [N, J] are the truth.

    With c* = max_k eta_k, e* = max_j Acc_j, the predicted class a and the asked expert j:
    classifier = [kept] (c* - eta_a), expert = [deferred] (e* - Acc_j), decision = max(c*, e*) - (e* if deferred else c*).
    """
    sample = rivals(scores, expert_predictions, num_classes)
    deferred = sample.margin > 0  # [N]
    best_class, best_expert = eta.max(dim=1).values, accuracy.max(dim=1).values  # [N], [N]
    own, asked = pick(eta, sample.predicted), pick(accuracy, sample.expert)  # [N], [N]
    best, value = best_class.maximum(best_expert), torch.where(deferred, asked, own)  # [N], [N]
    parts = {
        "total": best - value,
        "classifier": (best_class - own) * ~deferred,
        "decision": best - torch.where(deferred, best_expert, best_class),
        "expert": (best_expert - asked) * deferred,
        "expected_system_error": 1 - value,
    }
    return {name: 100 * part.mean().item() for name, part in parts.items()}
