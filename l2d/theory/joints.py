"""One x and a finite joint p(y, m): what is true of it, and whether Condition 1 holds.

A joint is a tensor [K, K, ..., K] of masses on any scale: axis 0 is the label, axis 1 + j the answer of expert j.
"""

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations

import torch
from torch import Tensor


def outcomes(joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct (y, m) that a loss can tell apart: labels [N], correct [N, J] and their probability [N], all positive."""
    cells = joint.nonzero()  # [cells, 1 + J]
    labels, answers = cells[:, :1], cells[:, 1:]
    distinct = torch.cat([labels, (answers == labels).long()], dim=1)
    distinct, group = distinct.unique(dim=0, return_inverse=True)  # [N, 1 + J]
    mass = torch.zeros(len(distinct), dtype=torch.float64).index_add(0, group, joint[cells.unbind(1)].double())
    return distinct[:, 0], distinct[:, 1:].bool(), mass / mass.sum()


def truth(joint: Tensor) -> tuple[Tensor, Tensor]:
    """eta_y = Pr(Y = y), [K], and Acc_j = Pr(M_j = Y), [J]."""
    _, correct, mass = outcomes(joint)
    eta = joint.double().flatten(1).sum(dim=1)  # [K]
    return eta / eta.sum(), mass @ correct.double()


def bayes_decision(joint: Tensor) -> int:
    """The column that is right most often: the most probable label or the most accurate expert (ties: the first)."""
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


def condition_holds_given(eta: Tensor, matrix: Tensor) -> Tensor:
    """[N] whether Condition 1 holds at each x of eta [N, K], for experts that err independently given y, by accuracy matrix [J, K].

    Then Pr(some expert of S + {j} is correct) is, up to a constant of S, sum_y eta_y prod_{i in S} (1 - A_iy) A_jy. In float64,
    over all 2^J sets S: for few experts.
    """
    eta, matrix = eta.double(), matrix.to(eta.device).double()
    best = (eta @ matrix.T).argmax(dim=1, keepdim=True)  # [N, 1]
    holds = torch.ones(len(eta), dtype=torch.bool, device=eta.device)
    for s in _subsets(range(len(matrix))):
        rest = torch.tensor([j for j in range(len(matrix)) if j not in s], device=eta.device)  # [R]
        if len(rest) > 1:
            gain = (eta * (1 - matrix[list(s)]).prod(dim=0)) @ matrix[rest].T  # [N, R]
            is_best = rest == best  # [N, R]; none of a row where the best expert is in S
            ahead = gain.masked_fill(~is_best, -1).amax(dim=1) > gain.masked_fill(is_best, -1).amax(dim=1)
            holds &= ahead | ~is_best.any(dim=1)
    return holds


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


def overlapping_specialists() -> Tensor:
    """eta = (1, 2, 2, 1) / 6; expert 0 knows classes 1 and 2, expert 1 classes 0 and 1, expert 2 classes 2 and 3.

    Acc = (4, 3, 3) / 6 and someone is always right: Condition 1 fails. Integer masses in sixths.
    """
    joint = torch.zeros(4, 4, 4, 4, dtype=torch.int64)
    joint[0, 1, 0, 1] = 1
    joint[1, 1, 1, 2] = 2
    joint[2, 2, 3, 2] = 2
    joint[3, 0, 0, 3] = 1
    return joint


def random_joint(num_classes: int, num_experts: int, generator: torch.Generator) -> Tensor:
    """With probability 1/2 an arbitrary joint (uneven cells), otherwise experts that are independent given the label."""
    uneven = torch.rand([num_classes] * (1 + num_experts), dtype=torch.float64, generator=generator) ** 4
    eta, matrix = (torch.rand(n, num_classes, dtype=torch.float64, generator=generator) for n in (1, num_experts))
    arbitrary = torch.rand(1, generator=generator).item() < 0.5
    return uneven / uneven.sum() if arbitrary else independent_experts(eta[0] / eta.sum(), matrix)


def _subsets(items: Iterable[int]) -> list[tuple[int, ...]]:
    items = list(items)
    return [subset for size in range(len(items) + 1) for subset in combinations(items, size)]
