"""The best that any system could do under the same limits on asking, where the posterior and the experts are known."""

from typing import Any

import torch
from torch import Tensor

from l2d.decisions import Decision, allocate, decide, pick
from l2d.decisions.limits import room_for
from l2d.evaluation.outcome import Outcome
from l2d.task import Truth


def constrained(outcome: Outcome, truth: Truth, facts: dict[str, Any]) -> dict[str, float] | None:
    """The optimum of these cases under the limits in a rule's `facts`, by their true utilities, and the regret to it in points.

    Below 0 is a regret of a rule that missed its limits on these cases, by what it asked too often. None where errors have
    different prices, as in `regret`.
    """
    if outcome.deployment and outcome.deployment.loss_matrix is not None:
        return None
    decision, limits = outcome.decision, facts["limits"]
    at_most = torch.tensor([torch.inf if row["at_most"] is None else row["at_most"] for row in limits]).double()
    worth = truth.accuracy if outcome.costs is None else truth.accuracy - outcome.costs  # [N, J]
    there = decision.gain > -torch.inf  # [N, J]
    free = decide(torch.cat([truth.eta, worth], dim=1), truth.eta.shape[1], available=there)
    if limits[0]["who"] == "all":
        allowed = int(room_for(at_most, len(worth)))
        first = torch.zeros(len(worth), dtype=torch.bool).index_fill_(
            0, free.margin.argsort(descending=True)[:allowed], True
        )
        asked = free.asked & first[:, None]
    else:
        size = facts.get("batch") or len(worth)
        room = at_most if "batch" in facts else room_for(at_most, len(worth))
        batches = zip(*(column.split(size) for column in free[:4]), strict=True)
        asked = torch.cat([allocate(Decision(*batch), room).asked for batch in batches])
    best, ours = (_value(truth, worth, *by) for by in ((free.predicted, asked), (decision.predicted, decision.asked)))
    error = 1 - _value(truth, truth.accuracy, free.predicted, asked)
    return {
        "system_error": 100 * error.mean().item(),
        "coverage": 100 * (~asked.any(dim=1)).double().mean().item(),
        "regret": 100 * (best - ours).mean().item(),
    }


def _value(truth: Truth, worth: Tensor, predicted: Tensor, asked: Tensor) -> Tensor:
    """The expected utility [N] of asking these experts [N, J], at most one per case, else of answering `predicted` [N]."""
    return torch.where(asked.any(dim=1), pick(worth, asked.int().argmax(dim=1)), pick(truth.eta, predicted))
