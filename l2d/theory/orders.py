"""The exact minimiser of a formulation x base: Newton's method in every order of the experts."""

from itertools import permutations

import torch
from torch import Tensor

from l2d.losses.base import Base, BaseLoss
from l2d.losses.formulations import Formulation
from l2d.theory.joints import outcomes


def conditional_risk(scores: Tensor, joint: Tensor, formulation: Formulation, base: BaseLoss) -> Tensor:
    """E[loss(theta, Y, M)] at theta = scores [K+J], summed over every (y, m)."""
    labels, correct, mass = outcomes(joint)
    rows = scores.expand(len(mass), -1)  # [N, K+J]
    weights = formulation(rows[:, len(joint) :].detach(), correct)  # [N, J]
    return mass @ base(rows, labels, weights)


def minimise(joint: Tensor, formulation: Formulation, base: BaseLoss) -> Tensor:
    """Scores [K+J] of least conditional risk, by Newton's method in float64.

    While the experts keep their order the weights w are constant and the risk is smooth and convex, so each order is
    minimised on its own. The best of these minima is the global one: PiCCE's risk is at every theta the smallest of the
    orders' risks (-max = min(-)), and PiCE's minimum for a top expert drives the other experts to the bottom.
    """
    labels, correct, mass = outcomes(joint)
    orders = torch.tensor(list(permutations(range(correct.shape[1]))), dtype=torch.float64)  # [J!, J] as expert scores
    weights = torch.stack([formulation(order.expand(correct.shape), correct) for order in orders]).unique(dim=0)
    choices, rows = weights.shape[:2]  # weights: [P, N, J], one of P distinct choices for each of N outcomes
    scores = torch.zeros(choices, len(joint) + correct.shape[1], dtype=torch.float64, requires_grad=True)  # [P, K+J]
    ridge = 1e-14 * torch.eye(scores.shape[1], dtype=torch.float64)  # CE is invariant to a shift of all scores

    def risks() -> Tensor:
        losses = base(scores.repeat_interleave(rows, dim=0), labels.repeat(choices), weights.flatten(0, 1))
        return losses.view(choices, rows) @ mass  # [P]

    for _ in range(100):
        (slope,) = torch.autograd.grad(risks().sum(), scores, create_graph=True)  # [P, K+J]
        if slope.abs().max() < 1e-13:
            break
        columns = [torch.autograd.grad(column.sum(), scores, retain_graph=True)[0] for column in slope.unbind(dim=1)]
        step = torch.linalg.solve(torch.stack(columns, dim=1) + ridge, slope.detach())
        scores.data -= step.clamp(-2, 2)  # far from the minimum a full step can overshoot
    return scores.detach()[risks().argmin()]


def estimates(scores: Tensor, num_classes: int, base: Base) -> Tensor:
    """[eta_1..eta_K, Acc_1..Acc_J] as the scores [..., K+J] imply them; with PiCCE only the highest Acc is an estimate."""
    return base.beliefs(scores, num_classes)
