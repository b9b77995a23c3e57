"""The theory, by machine: one x, a finite joint p(y, m), and the exact conditional risk of every loss.

A joint is a tensor [K, K, ..., K] of masses on any scale: axis 0 is the label, axis 1 + j the answer of expert j.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import combinations, permutations

import torch
from torch import Tensor

from l2d.losses import BASES, FORMULATIONS, ce


def outcomes(joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All a loss can see of (y, m): labels [N], correct [N, J] and their probability [N]; impossible ones left out."""
    cells = joint.nonzero()  # [cells, 1 + J]
    labels, expert_predictions = cells[:, :1], cells[:, 1:]
    seen = torch.cat([labels, (expert_predictions == labels).long()], dim=1)
    seen, group = seen.unique(dim=0, return_inverse=True)  # [N, 1 + J]
    mass = torch.zeros(len(seen), dtype=torch.float64).index_add(0, group, joint[joint > 0].double())
    return seen[:, 0], seen[:, 1:].bool(), mass / mass.sum()


def truth(joint: Tensor) -> tuple[Tensor, Tensor]:
    """eta_y = Pr(Y = y), [K], and Acc_j = Pr(M_j = Y), [J]."""
    _, correct, mass = outcomes(joint)
    eta = joint.double().flatten(1).sum(dim=1)  # [K]
    return eta / eta.sum(), mass @ correct.double()


def bayes_decision(joint: Tensor) -> int:
    """The column of the most probable label or of the most accurate expert, whichever is right more often."""
    return int(torch.cat(truth(joint)).argmax())


def condition_holds(joint: Tensor) -> bool:
    """Condition 1: Pr(some expert of S + {j*} is correct) > Pr(some expert of S + {j} is correct), j* the best expert,
    for every other expert j and every set S of the rest (S empty: the best expert is unique).

    Masses are summed as fractions, so nothing is rounded: integer masses decide ties exactly.
    """
    sets: dict[frozenset[int], Fraction] = defaultdict(Fraction)  # mass of each set of experts correct together
    for cell in joint.nonzero().tolist():
        right = frozenset(j for j, answer in enumerate(cell[1:]) if answer == cell[0])
        sets[right] += Fraction(joint[tuple(cell)].item())

    def some_correct(*experts: int) -> Fraction:
        return sum((mass for right, mass in sets.items() if right.intersection(experts)), Fraction())

    best = max(range(joint.dim() - 1), key=some_correct)
    rest = set(range(joint.dim() - 1)) - {best}
    return all(some_correct(best, *s) > some_correct(j, *s) for j in rest for s in _subsets(rest - {j}))


def conditional_risk(scores: Tensor, joint: Tensor, formulation: Callable, base: Callable) -> Tensor:
    """E[loss(theta, Y, M)] at theta = scores [K+J], summed over every (y, m)."""
    labels, correct, mass = outcomes(joint)
    rows = scores.expand(len(mass), -1)  # [N, K+J]
    weights = formulation(rows[:, len(joint) :].detach(), correct)  # [N, J]
    return mass @ base(rows, labels, weights)


def minimise(joint: Tensor, formulation: Callable, base: Callable) -> Tensor:
    """Scores [K+J] of least conditional risk, by L-BFGS in float64.

    While the experts keep their order the weights w are constant and the risk is smooth and convex, so each order is
    minimised on its own. The best of these minima is the global one: PiCCE's risk is at every theta the smallest of the
    orders' risks (-max = min(-)), and PiCE's minimum for a top expert drives the other experts to the bottom.
    """
    labels, correct, mass = outcomes(joint)
    orders = torch.tensor(list(permutations(range(correct.shape[1]))), dtype=torch.float64)  # [J!, J] as expert scores
    weights = torch.stack([formulation(order.expand(correct.shape), correct) for order in orders]).unique(dim=0)
    choices, outcome = weights.shape[:2]  # weights: [P, N, J], P the distinct choices of weights
    scores = torch.zeros(choices, len(joint) + correct.shape[1], dtype=torch.float64, requires_grad=True)  # [P, K+J]

    def risks() -> Tensor:
        losses = base(scores.repeat_interleave(outcome, dim=0), labels.repeat(choices), weights.flatten(0, 1))
        return losses.view(choices, outcome) @ mass  # [P]

    solver = torch.optim.LBFGS(
        [scores], max_iter=1000, tolerance_grad=1e-12, tolerance_change=0, history_size=50, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        total = risks().sum()
        total.backward()
        return total

    solver.step(closure)
    return scores.detach()[risks().argmin()]


def estimates(scores: Tensor, num_classes: int, base: Callable) -> Tensor:
    """[eta_1..eta_K, Acc_1..Acc_J] as the scores imply them; PiCCE vouches for its highest expert alone.

    CE: softmax / (1 - sum_j softmax_{K+j}). OvA: sigmoid.
    """
    if base is not ce:
        return scores.sigmoid()
    p = scores.softmax(dim=-1)  # [..., K+J]
    return p / p[..., :num_classes].sum(dim=-1, keepdim=True)


def independent_experts(eta: Tensor, matrix: Tensor) -> Tensor:
    """The joint of labels eta [K] and experts that err independently given y, by accuracy matrix [J, K]."""
    num_classes = len(eta)
    joint = eta.double()
    for accuracy in matrix.double():
        wrong = ((1 - accuracy) / (num_classes - 1))[:, None].expand(-1, num_classes)
        answer = wrong.clone().fill_diagonal_(0) + accuracy.diag()  # [K, K]: Pr(M_j = m | y)
        shape = (num_classes, *[1] * (joint.dim() - 1), num_classes)
        joint = joint[..., None] * answer.view(shape)
    return joint


def random_joint(num_classes: int, num_experts: int, generator: torch.Generator) -> Tensor:
    """Half the time any joint at all (uneven cells), half the time experts independent given the label."""
    uneven = torch.rand([num_classes] * (1 + num_experts), dtype=torch.float64, generator=generator) ** 4
    eta, matrix = (torch.rand(n, num_classes, dtype=torch.float64, generator=generator) for n in (1, num_experts))
    arbitrary = torch.rand(1, generator=generator).item() < 0.5
    return uneven / uneven.sum() if arbitrary else independent_experts(eta[0] / eta.sum(), matrix)


def _subsets(items: Iterable[int]) -> list[tuple[int, ...]]:
    items = list(items)
    return [subset for size in range(len(items) + 1) for subset in combinations(items, size)]
