"""Deferral under a budget: one common price on asking, so that the largest probability gaps are deferred first."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2d.decisions import price_for
from l2d.evaluation.outcome import Outcome


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
