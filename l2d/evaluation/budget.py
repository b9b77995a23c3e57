"""Deferral under a budget: the decision `margin > t` for other thresholds than 0."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2d.evaluation.rivals import Rivals, rights


def coverage_curve(sample: Rivals, labels: Tensor, expert_predictions: Tensor) -> tuple[Tensor, Tensor]:
    """Coverage and system accuracy [P] (0-100, coverage rising) of every decision `margin > t`; equal margins go together."""
    classifier_right, expert_right = rights(sample, labels, expert_predictions)  # [N], [N]
    margin, order = sample.margin.sort(descending=True)  # [N]
    gain = (expert_right.long() - classifier_right.long())[order]  # [N]: of deferring one more
    right = classifier_right.sum() + torch.cat([gain.new_zeros(1), gain.cumsum(dim=0)])  # [N+1]: the first k deferred
    attained = torch.cat([margin.new_ones(1).bool(), margin[:-1] > margin[1:], margin[-1:] > -torch.inf])  # [N+1]
    total = len(labels)
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


def threshold(margin: Tensor, at_most: float) -> float:
    """The lowest t with which `margin > t` defers at most `at_most` percent of these samples."""
    ranked = margin.sort(descending=True).values  # [N]
    return ranked[min(int(at_most * len(ranked) // 100), len(ranked) - 1)].item()


def under_budget(
    sample: Rivals, labels: Tensor, expert_predictions: Tensor, held_out_margin: Tensor, budgets: list[float]
) -> list[dict[str, float | None]]:
    """Coverage and system error with the thresholds that keep each budget on held-out data."""
    classifier_right, expert_right = rights(sample, labels, expert_predictions)  # [N], [N]
    rows: list[dict[str, float | None]] = []
    for at_most in budgets:
        t = threshold(held_out_margin, at_most)
        deferred = sample.margin > t  # [N]
        right = torch.where(deferred, expert_right, classifier_right)  # [N]
        rows.append(
            {
                "defer_at_most": at_most,
                "threshold": t if np.isfinite(t) else None,
                "coverage": 100 * (~deferred).double().mean().item(),
                "system_error": 100 * (~right).double().mean().item(),
            }
        )
    return rows
