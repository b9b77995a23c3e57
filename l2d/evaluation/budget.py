"""Deferral under a budget: one common price on asking, so that the largest probability gaps are deferred first."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from l2d.decisions import pick, price_for
from l2d.evaluation.outcome import Outcome

Array = NDArray[np.float64]


def coverage_curve(outcome: Outcome) -> tuple[Tensor, Tensor]:
    """Coverage and system accuracy [P] (0-100, coverage rising) at every price; samples of equal gain go together."""
    margin, order = outcome.decision.margin.sort(descending=True)  # [N]
    gain = (outcome.expert_right.long() - outcome.classifier_right.long())[order]  # [N]: of deferring one more
    right = outcome.classifier_right.sum() + torch.cat(
        [gain.new_zeros(1), gain.cumsum(dim=0)]
    )  # [N+1]: the first k deferred
    attained = torch.cat([margin.new_ones(1).bool(), margin[:-1] > margin[1:], margin[-1:] > -torch.inf])  # [N+1]
    total = len(outcome.labels)
    coverage = 100 * (total - attained.nonzero().squeeze(1).double()) / total  # [P]
    return coverage.flip(0), (100 * right[attained].double() / total).flip(0)


def curve_summary(outcome: Outcome, points: int) -> dict[str, list[float | None] | None]:
    """Accuracy on an even grid of coverages (None where the curve does not reach), and the highest that is possible there
    where the truth is known."""
    coverage, accuracy = (values.numpy() for values in coverage_curve(outcome))  # [P]
    grid = np.linspace(0, 100, points)
    optimum = None
    best = by_truth(outcome)
    if best is not None:
        asked = torch.arange(len(best.error)).double()  # [N'+1]
        optimum = _on_grid(
            grid, (100 - 100 * asked / len(outcome.labels)).flip(0).numpy(), (100 - best.error).flip(0).numpy()
        )
    return {"coverage": grid.tolist(), "accuracy": _on_grid(grid, coverage, accuracy), "optimum": optimum}


def _on_grid(grid: Array, x: Array, y: Array) -> list[float | None]:
    """y at each x of the grid, None left of the first."""
    return [None if np.isnan(value) else value for value in np.interp(grid, x, y, left=np.nan).tolist()]


class Spending(NamedTuple):
    """What asking about the first 0, 1, .. cases of an order leaves, per 100 cases, [n+1] each."""

    error: Tensor
    loss: Tensor  # what the errors cost
    spent: Tensor  # on questions


def by_gain(outcome: Outcome) -> Spending:
    """Cases in the order of what the system believes to gain, as far as anybody is there to ask."""
    decision = outcome.decision
    order = decision.margin.argsort(descending=True, stable=True)  # [N]
    order = order[: int((decision.margin > -torch.inf).sum())]  # [n]
    expert_says = pick(outcome.answers, decision.expert)  # [N]
    error = _sums(outcome.classifier_right.double() - outcome.expert_right.double(), order)
    loss = _sums(outcome.loss_of(expert_says) - outcome.loss_of(decision.predicted), order)
    alone = (~outcome.classifier_right).double().mean(), outcome.loss_of(decision.predicted).mean()
    return Spending(100 * alone[0] + error, 100 * alone[1] + loss, _sums(_costs(outcome)[decision.expert], order))


def by_truth(outcome: Outcome) -> Spending | None:
    """The least that errors and questions can cost together, in expectation, with so many questions; None where the truth is
    not known, or errors have different prices, as in `regret`."""
    truth, costs = outcome.truth, _costs(outcome)
    if truth is None or (outcome.deployment and outcome.deployment.loss_matrix is not None):
        return None
    there = outcome.decision.gain > -torch.inf  # [N, J]
    own = truth.eta.max(dim=1).values  # [N]
    utility, expert = (truth.accuracy - costs).masked_fill(~there, -torch.inf).max(dim=1)  # [N], [N]
    order = (utility - own).argsort(descending=True, stable=True)[: int(there.any(dim=1).sum())]
    error = 100 * (1 - own.mean()) + _sums(own - pick(truth.accuracy, expert), order)
    return Spending(error, error, _sums(costs[expert], order))


def _costs(outcome: Outcome) -> Tensor:
    """[J]"""
    return (
        torch.zeros(outcome.answers.shape[1], dtype=torch.float64) if outcome.costs is None else outcome.costs.double()
    )


def _sums(change: Tensor, order: Tensor) -> Tensor:
    """The sum of a change [N] over the first 0, 1, .. of `order` [n], per 100 cases, [n+1]."""
    return 100 * F.pad(change[order].double().cumsum(dim=0), (1, 0)) / len(change)


def question_curve(outcome: Outcome, points: int) -> dict[str, list[float] | None]:
    """What a common price on asking does, from nobody asked to everybody: questions, what they cost, error and all costs
    together, per 100 cases, on an even grid of questions. Cases are asked about in the order of their gain. `optimum` and
    `optimum_spent` are error and spending of the order that the truth gives, where it is known."""
    ours, best = by_gain(outcome), by_truth(outcome)
    asked = torch.linspace(0, len(ours.error) - 1, points).round().long()  # [P]
    curve = {
        "questions": 100 * asked.double() / len(outcome.labels),
        "spent": ours.spent[asked],
        "error": ours.error[asked],
        "cost": (ours.loss + ours.spent)[asked],
        "optimum": best and best.error[asked],
        "optimum_spent": best and best.spent[asked],
    }
    return {name: None if values is None else values.tolist() for name, values in curve.items()}


def under_budget(outcome: Outcome, held_out: Outcome, budgets: list[float]) -> list[dict[str, float | None]]:
    """Coverage and system error at the prices that keep each budget on held-out data."""
    rows: list[dict[str, float | None]] = []
    for at_most in budgets:
        price = price_for(held_out.decision.margin, at_most)
        deferred = outcome.decision.at_price(price).deferred  # [N]
        right = torch.where(deferred, outcome.expert_right, outcome.classifier_right)  # [N]
        rows.append(
            {
                "defer_at_most": at_most,
                "price": price if np.isfinite(price) else None,
                "coverage": 100 * (~deferred).double().mean().item(),
                "system_error": 100 * (~right).double().mean().item(),
            }
        )
    return rows
