"""rule=conformal: ask a set of experts that leaves out at most a share alpha of those who are right."""

import math
from functools import lru_cache
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from l2d.decisions.cases import Cases, needs
from l2d.decisions.decide import Decision
from l2d.decisions.vote import vote
from l2d.errors import notify


@needs("all", held_out=True, casewise=True)
def conformal(cases: Cases, alpha: Annotated[float, Interval(gt=0, le=1)]) -> Decision:
    """Where rule=best asks, ask all experts with Acc_j >= lambda, or the best one where there is none, and take the majority.

    lambda is the largest one whose false negative rate is controlled on the held-out cases that are deferred (see `threshold`).
    Among equals the expert with the highest believed accuracy is followed.
    """
    assert cases.held_out is not None
    limit, count = _lambda(cases.held_out, alpha)
    decision = cases.decide()
    accuracy = cases.beliefs[:, cases.num_classes :]  # [N, J]
    chosen = cases.available & (accuracy >= limit)
    asked = torch.where(chosen.any(dim=1, keepdim=True), chosen, decision.asked) & decision.deferred[:, None]
    voted = vote(cases.answers, asked, torch.ones_like(accuracy), accuracy)  # [N]
    answer = torch.where(decision.deferred, voted, decision.predicted)
    facts = {"alpha": alpha, "lambda": limit if math.isfinite(limit) else None, "fitted_on": count}
    return decision._replace(asked=asked, answer=answer, explain=lambda: facts)


@lru_cache(maxsize=1)
def _lambda(held_out: Cases, alpha: float) -> tuple[float, int]:
    """lambda, and the number of held-out cases that it is found on."""
    assert held_out.labels is not None
    deferred = held_out.decide().deferred  # [n]
    right = (held_out.answers == held_out.labels[:, None]) & held_out.available & deferred[:, None]  # [n, J]
    fitted_on = right.any(dim=1)
    count = int(fitted_on.sum())
    limit = threshold(held_out.beliefs[fitted_on, held_out.num_classes :], right[fitted_on], alpha)
    if alpha * (count + 1) < 1 and held_out.num_experts > 1:
        notify(
            f"rule.alpha={alpha:g} needs at least {math.ceil(1 / alpha) - 1} held-out cases that are deferred and that an expert gets "
            f"right, and there are {count}: every expert is asked; hold out more."
        )
    return limit, count


def threshold(confidence: Tensor, right: Tensor, alpha: float) -> float:
    """The largest lambda with n/(n+1) FNR(lambda) + 1/(n+1) <= alpha, for n cases in each of which some expert is `right` [n, J].

    FNR(lambda) is the mean over cases of the share of right experts with a confidence [n, J] below lambda. On another case of
    the same distribution its expectation is then at most alpha, whatever the confidence is. 0: no lambda does it, and the set
    of all experts has to be asked; infinity: every lambda does.

    >>> threshold(torch.tensor([[0.9, 0.2], [0.8, 0.7], [0.6, 0.5]]), torch.tensor([[1, 0], [1, 0], [0, 1]]).bool(), 0.5)
    0.800000011920929
    """
    n = len(right)
    allowed = alpha * (n + 1) - 1 + 1e-9  # of the sum of FNR over the cases; sums of fractions are rounded
    if allowed < 0 or allowed >= n:
        return 0.0 if allowed < 0 else math.inf
    share = (right.double() / right.sum(dim=1, keepdim=True))[right]  # [R], of a case's right experts
    values, order = confidence[right].sort()  # [R]
    missed = (
        share[order].cumsum(dim=0) - share[order]
    )  # [R]: where lambda is this value, and at most that among equal values
    return float(values[(missed <= allowed).sum() - 1])
