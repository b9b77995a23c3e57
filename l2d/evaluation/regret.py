"""Why a trained system errs more than the best possible one, where the posterior and the experts are known."""

import torch

from l2d.decisions import pick
from l2d.evaluation.outcome import Outcome
from l2d.task import Truth


def regret_evaluation(outcome: Outcome) -> dict[str, dict[str, float] | None]:
    """evaluation=regret: the regret alone, ready for JSON; None where the truth is not known."""
    return {"regret": regret(outcome, outcome.truth) if outcome.truth else None}


def regret(outcome: Outcome, truth: Truth) -> dict[str, float] | None:
    """Expected excess error (with costs: excess cost) given x, in three parts >= 0 that add up to it; None where a rule answers
    by more than one opinion, or errors have different prices: that is no choice between the K+J actions.

    With c* = max_k eta_k, e* = max_j Acc_j - cost_j, the predicted class a and the asked expert j:
    classifier = [kept] (c* - eta_a), expert = [deferred] (e* - Acc_j + cost_j), decision = max(c*, e*) - (e* if deferred else c*).
    """
    decision, deferred = outcome.decision, outcome.decision.deferred  # [N]
    if decision.answer is not None or (outcome.deployment and outcome.deployment.loss_matrix is not None):
        return None
    worth = truth.accuracy if outcome.costs is None else truth.accuracy - outcome.costs  # [N, J]
    best_class, best_expert = truth.eta.max(dim=1).values, worth.max(dim=1).values  # [N], [N]
    own, asked = pick(truth.eta, decision.predicted), pick(worth, decision.expert)  # [N], [N]
    best, value = best_class.maximum(best_expert), torch.where(deferred, asked, own)  # [N], [N]
    parts = {
        "total": best - value,
        "classifier": (best_class - own) * ~deferred,
        "decision": best - torch.where(deferred, best_expert, best_class),
        "expert": (best_expert - asked) * deferred,
        "expected_system_error": 1 - torch.where(deferred, pick(truth.accuracy, decision.expert), own),
    }
    return {name: 100 * part.mean().item() for name, part in parts.items()}
