"""Numerical checks of the theory: one x, a finite joint p(y, m), and the exact conditional risk of every loss.

A joint is a tensor [K, K, ..., K] of masses on any scale: axis 0 is the label, axis 1 + j the answer of expert j.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import combinations, permutations, product

import torch
from torch import Tensor

from l2d.losses import Base, ce, ova, picce, vanilla


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


def conditional_risk(scores: Tensor, joint: Tensor, formulation: Callable, base: Callable) -> Tensor:
    """E[loss(theta, Y, M)] at theta = scores [K+J], summed over every (y, m)."""
    labels, correct, mass = outcomes(joint)
    rows = scores.expand(len(mass), -1)  # [N, K+J]
    weights = formulation(rows[:, len(joint) :].detach(), correct)  # [N, J]
    return mass @ base(rows, labels, weights)


def minimise(joint: Tensor, formulation: Callable, base: Callable) -> Tensor:
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
    """With probability 1/2 an arbitrary joint (uneven cells), otherwise experts that are independent given the label."""
    uneven = torch.rand([num_classes] * (1 + num_experts), dtype=torch.float64, generator=generator) ** 4
    eta, matrix = (torch.rand(n, num_classes, dtype=torch.float64, generator=generator) for n in (1, num_experts))
    arbitrary = torch.rand(1, generator=generator).item() < 0.5
    return uneven / uneven.sum() if arbitrary else independent_experts(eta[0] / eta.sum(), matrix)


def _subsets(items: Iterable[int]) -> list[tuple[int, ...]]:
    items = list(items)
    return [subset for size in range(len(items) + 1) for subset in combinations(items, size)]


def survey(cases: int, seed: int) -> dict[str, float]:
    """The theory against numerical minimisers of random joints, K = 2..4 and J = 1..4 in turn: how many cases, how many
    times a minimiser missed the best expert or the Bayes decision, and the largest deviation from each identity."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, float] = defaultdict(int)

    def deviation(name: str, measured: Tensor, expected: Tensor | float) -> None:
        key = f"deviation: {name}"
        found[key] = max(found[key], float((measured - expected).abs().max()))

    for case in range(cases):
        num_classes, num_experts = 2 + case % 3, 1 + case // 3 % 4
        joint = random_joint(num_classes, num_experts, generator)
        eta, accuracy = truth(joint)
        _, correct, mass = outcomes(joint)
        best, some_correct = int(accuracy.argmax()), float(mass @ correct.any(dim=1).double())
        verdict = "holds" if condition_holds(joint) else "fails"
        found[f"cases: Condition 1 {verdict}"] += 1

        wrong_minimum = False
        for order in torch.tensor(list(permutations(range(num_experts))), dtype=torch.float64):  # [J] as expert scores
            targets = mass @ picce(order.expand(correct.shape), correct)  # [J]
            deviation("sum_j A_sigma^j = V, every order", targets.sum(), some_correct)
            keeps_order = bool((targets[order.argsort()].diff() > 0).all())  # its minimum is local
            wrong_minimum |= keeps_order and int(order.argmax()) != best
        found[f"cases: Condition 1 {verdict}, a local minimum puts another expert first"] += wrong_minimum

        for formulation, base in product((vanilla, picce), (ce, ova)):
            loss = f"{formulation.__name__}-{base.name}"
            scores = minimise(joint, formulation, base)
            estimated_eta, estimated_accuracy = estimates(scores, num_classes, base).split([num_classes, num_experts])
            deviation(f"eta, {loss}", estimated_eta, eta)
            if formulation is vanilla:
                deviation(f"Acc of every expert, {loss}", estimated_accuracy, accuracy)
            elif verdict == "holds":
                deviation(f"Acc of the best expert, {loss}", estimated_accuracy[best], accuracy[best])
            found[f"missed: best expert, {loss}, {verdict}"] += int(scores[num_classes:].argmax()) != best
            found[f"missed: Bayes decision, {loss}, {verdict}"] += int(scores.argmax()) != bayes_decision(joint)

            if (formulation, base) == (picce, ce):
                u, tilde = scores.softmax(dim=0)[num_classes:], some_correct / (1 + some_correct)  # [J] and Vt
                deviation("sum_j u_j = Vt, picce-ce", u.sum(), tilde)
                if verdict == "holds":
                    deviation("u_j* = Acc (1 - Vt), picce-ce", u[best], accuracy[best] * (1 - tilde))
                    deviation("u_j* = Acc Vt as printed, picce-ce", u[best], accuracy[best] * tilde)
    return dict(found)


if __name__ == "__main__":
    for name, value in sorted(survey(cases=600, seed=0).items()):
        print(f"{name:<78} {value:.3g}")
