"""rule=best: predict or ask, whichever is worth more."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from l2d.decisions.cases import Cases, needs
from l2d.decisions.confusion import confusion_of
from l2d.decisions.decide import Decision
from l2d.errors import UserError


@needs("none", casewise=True)
def best(cases: Cases) -> Decision:
    """The action with the highest utility: 1 minus its expected loss minus what asking costs.

    Without a loss matrix an error costs 1, and this is argmax of [eta, Acc - cost].
    """
    return valued(cases).decide()


def valued(cases: Cases) -> Cases:
    """The cases, and those to fit on, with utilities for beliefs: themselves, if every error costs 1."""
    matrix, held_out = cases.deployment.loss_matrix, cases.held_out
    if matrix is None:
        return cases
    if held_out is None:
        raise UserError(
            "rule.loss_matrix needs to know which errors experts make, from held-out data; train with held_out=0.2."
        )
    fitted_on, confusion = _valued_held_out(held_out, matrix)
    return replace(cases, beliefs=utilities(cases, matrix, confusion), held_out=fitted_on)


@lru_cache(maxsize=1)
def _valued_held_out(held_out: Cases, matrix: Tensor) -> tuple[Cases, Tensor]:
    """Held-out cases with utilities for beliefs, and the confusions [J, K, K] of the experts on them."""
    confusion = confusion_of(held_out)
    return replace(held_out, beliefs=utilities(held_out, matrix, confusion)), confusion


def utilities(cases: Cases, matrix: Tensor, confusion: Tensor) -> Tensor:
    """1 minus the expected loss of every action, [N, K+J]: 1 - (how probable it errs) x (what its errors cost).

    Of class k: (1 - eta_k) sum_y eta_y L[y, k] / sum_{y != k} eta_y, which is sum_y eta_y L[y, k] where eta sums to 1.
    Of expert j: (1 - Acc_j) sum_y eta_y sum_m C_j[y, m] L[y, m] / sum_y eta_y (1 - C_j[y, y]), by its confusions C_j [K, K].
    """
    eta, accuracy = cases.beliefs.split([cases.num_classes, cases.num_experts], dim=1)  # [N, K], [N, J]
    matrix, confusion = matrix.to(eta), confusion.to(eta)
    others = 1 - torch.eye(cases.num_classes, dtype=eta.dtype)  # [K, K]
    lost = torch.einsum("jym,ym->yj", confusion, matrix)  # [K, J] expected loss of an answer to class y
    wrong = torch.einsum("jym,ym->yj", confusion, others)  # [K, J]
    loss: Tensor = eta @ torch.cat([matrix, lost], dim=1)  # [N, K+J]
    error: Tensor = eta @ torch.cat([others, wrong], dim=1)  # [N, K+J]
    return 1 - (1 - torch.cat([eta, accuracy], dim=1)) * (loss / error.clamp(min=1e-12))
