"""What the paper proves, against the exact minimisers of random joints."""

from collections import defaultdict
from itertools import permutations, product

import torch
from torch import Tensor

from l2d.losses import ce, ova, picce, vanilla
from l2d.theory.joints import bayes_decision, condition_holds, outcomes, random_joint, truth
from l2d.theory.orders import estimates, minimise


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
