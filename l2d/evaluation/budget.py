"""Deferral under a budget: one common price on asking, so that the largest probability gaps are deferred first."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2d.decisions import price_for
from l2d.evaluation.outcome import Outcome
from l2d.task import Truth


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


def curve_summary(coverage: Tensor, accuracy: Tensor, points: int) -> dict[str, Any]:
    """The curve on an even grid of coverages (None where it does not reach) and its mean height, the area."""
    width = (coverage[-1] - coverage[0]).item()
    area = torch.trapezoid(accuracy, coverage).item() / width if width else accuracy[0].item()
    grid = np.linspace(0, 100, points)
    height = np.interp(grid, coverage.numpy(), accuracy.numpy(), left=np.nan)
    return {
        "area": area,
        "coverage": grid.tolist(),
        "accuracy": [None if np.isnan(value) else value for value in height.tolist()],
    }


def question_curve(outcome: Outcome, points: int) -> dict[str, list[float] | None]:
    """What a common price on asking does, from nobody asked to everybody: questions, what they cost, error and both together,
    per 100 cases, on an even grid of questions. Cases are asked about in the order of their gain. `optimum` is the least error
    that so many questions allow, where the truth is known and nobody is absent."""
    order = outcome.decision.margin.argsort(descending=True, stable=True)  # [N]
    total = len(order)
    possible = int((outcome.decision.margin > -torch.inf).sum())
    costs = outcome.costs if outcome.costs is not None else outcome.beliefs.new_zeros(outcome.answers.shape[1])  # [J]
    spent = costs[outcome.decision.expert][order].double().cumsum(dim=0)  # [N]: of asking about the first k
    change = (outcome.classifier_right.double() - outcome.expert_right.double())[order].cumsum(
        dim=0
    )  # [N] of the errors
    asked = torch.linspace(0, possible, points).round().long()  # [P]

    def at(sums: Tensor) -> Tensor:
        return torch.where(asked > 0, sums[(asked - 1).clamp(min=0)], 0.0) * 100 / total  # [P]

    error = 100 * (~outcome.classifier_right).double().mean() + at(change)
    return {
        "questions": (100 * asked.double() / total).tolist(),
        "spent": at(spent).tolist(),
        "error": error.tolist(),
        "cost": (error + at(spent)).tolist(),
        "optimum": _least_error(outcome.truth, asked) if outcome.truth and outcome.costs is None else None,
    }


def _least_error(truth: Truth, asked: Tensor) -> list[float]:
    """Per 100 cases, with so many questions [P]: the largest true gains are asked about."""
    own, best = truth.eta.max(dim=1).values, truth.accuracy.max(dim=1).values  # [N], [N]
    gained = torch.cat([own.new_zeros(1), (best - own).sort(descending=True).values.cumsum(dim=0)])  # [N+1]
    return (100 * (1 - (own.sum() + gained[asked]) / len(own))).tolist()


def augrc(outcome: Outcome) -> float:
    """Area under the generalised risk-coverage curve, 0-100: the mean over k of the share of all cases that are among the k
    last to be asked about and that the classifier gets wrong. It rewards asking first where the classifier errs."""
    order = outcome.decision.margin.argsort(stable=True)  # [N], the surest first
    wrong = (~outcome.classifier_right).double()[order].cumsum(dim=0)  # [N]
    return 100 * (wrong / len(order)).mean().item()


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
