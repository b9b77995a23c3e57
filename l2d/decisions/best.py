"""rule=best: predict or ask, whichever is worth more."""

from dataclasses import replace

import torch
from torch import Tensor

from l2d.decisions.cases import Cases, needs
from l2d.decisions.confusion import confusion_of
from l2d.decisions.decide import Decision
from l2d.errors import UserError


@needs("none")
def best(cases: Cases) -> Decision:
    """The action with the highest utility: 1 minus its expected loss minus what asking costs.

    Without a loss matrix an error costs 1, and this is argmax of [eta, Acc - cost].
    """
    if cases.deployment.loss_matrix is None:
        return cases.decide()
    return replace(cases, beliefs=utilities(cases, cases.deployment.loss_matrix)).decide()


def utilities(cases: Cases, matrix: Tensor) -> Tensor:
    """1 minus the expected loss of every action, [N, K+J].

    Of class k that is sum_y eta_y L[y, k]. Of expert j it is (1 - Acc_j) s_j: how often it errs, times what its errors cost,
    by its confusions C_j on held-out data: s_j = sum_y eta_y sum_m C_j[y, m] L[y, m] / sum_y eta_y (1 - C_j[y, y]).
    """
    if cases.held_out is None:
        raise UserError(
            "rule.loss_matrix needs to know which errors experts make, from held-out data; train with held_out=0.2."
        )
    eta, accuracy = cases.beliefs.split([cases.num_classes, cases.num_experts], dim=1)  # [N, K], [N, J]
    eta = eta / eta.sum(dim=1, keepdim=True).clamp(min=1e-12)
    confusion = confusion_of(cases.held_out)  # [J, K, K]
    lost = torch.einsum("jym,ym->jy", confusion, matrix.to(confusion))  # [J, K] expected loss of an answer to class y
    wrong = 1 - confusion.diagonal(dim1=1, dim2=2)  # [J, K]
    severity = (eta @ lost.T) / (eta @ wrong.T).clamp(min=1e-12)  # [N, J]
    return torch.cat([1 - eta @ matrix.to(eta), 1 - (1 - accuracy) * severity], dim=1)
