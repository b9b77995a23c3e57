"""What happens when fewer experts are there, without training again."""

from typing import Any

import torch
from torch import Tensor

from l2d.evaluation.outcome import Outcome

ORDERS = 5  # random orders in which experts come, averaged over


def fewer_experts(outcome: Outcome) -> dict[str, Any]:
    """System error with 0, 1, .., J experts present, [J+1] each: mean, lowest and highest over random orders of them.

    Each case goes to the best of those present, where asking is worth it, by the gains of the decision.
    """
    gain, count = outcome.decision.gain, outcome.answers.shape[1]  # [N, J]
    ranked = _ranked(outcome)  # [N, J] the experts, best first
    place = ranked.argsort(dim=1)  # [N, J] where each expert stands
    useful = (gain > 0).sum(dim=1, keepdim=True)  # [N, 1]: these stand first
    right = torch.cat([outcome.experts_right.gather(1, ranked), outcome.classifier_right[:, None]], dim=1)  # [N, J+1]
    alone = (~outcome.classifier_right).sum().reshape(1)
    generator, wrong = torch.Generator().manual_seed(0), []
    for _ in range(ORDERS):
        order = torch.randperm(count, generator=generator)
        first = place[:, order].cummin(dim=1).values  # [N, J]: the best of the first 1, .., J
        answered = right.gather(1, first.masked_fill(first >= useful, count))  # [N, J]
        wrong.append(torch.cat([alone, (~answered).sum(dim=0)]))
    errors, total = torch.stack(wrong).double(), len(gain)  # [ORDERS, J+1]
    return {
        "present": list(range(count + 1)),
        "system_error": (100 * errors.sum(dim=0) / (ORDERS * total)).tolist(),
        "lowest": (100 * errors.amin(dim=0) / total).tolist(),
        "highest": (100 * errors.amax(dim=0) / total).tolist(),
        "vouches_for": outcome.vouches_for,
    }


def _ranked(outcome: Outcome) -> Tensor:
    """The experts of each case by falling gain [N, J]; equals by their outputs, as the decision does, then by number."""
    gain = outcome.decision.gain
    order = outcome.cases().order[:, outcome.num_classes :]  # [N, J]
    by_order = order.argsort(dim=1, descending=True, stable=True)  # [N, J]
    return by_order.gather(1, gain.gather(1, by_order).argsort(dim=1, descending=True, stable=True))
