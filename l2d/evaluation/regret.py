"""Why a trained system errs more than the best possible one, where the posterior and the experts are known."""

import torch

from l2d.decisions import pick
from l2d.evaluation.outcome import Outcome
from l2d.task import Truth


def regret(outcome: Outcome, truth: Truth) -> dict[str, float]:
    """Expected excess error given x, in three parts >= 0 that add up to it.

    With c* = max_k eta_k, e* = max_j Acc_j, the predicted class a and the asked expert j:
    classifier = [kept] (c* - eta_a), expert = [deferred] (e* - Acc_j), decision = max(c*, e*) - (e* if deferred else c*).
    """
    decision, deferred = outcome.decision, outcome.decision.deferred  # [N]
    best_class, best_expert = truth.eta.max(dim=1).values, truth.accuracy.max(dim=1).values  # [N], [N]
    own, asked = pick(truth.eta, decision.predicted), pick(truth.accuracy, decision.expert)  # [N], [N]
    best, value = best_class.maximum(best_expert), torch.where(deferred, asked, own)  # [N], [N]
    parts = {
        "total": best - value,
        "classifier": (best_class - own) * ~deferred,
        "decision": best - torch.where(deferred, best_expert, best_class),
        "expert": (best_expert - asked) * deferred,
        "expected_system_error": 1 - value,
    }
    return {name: 100 * part.mean().item() for name, part in parts.items()}
