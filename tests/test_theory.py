"""What the paper proves about one x, against minimisers found numerically and cases worked by hand."""

from itertools import permutations, product
from math import log

import pytest
import torch
from torch import Tensor

from l2d.losses import ce, ova, picce, pice, vanilla
from l2d.theory import (
    bayes_decision,
    condition_holds,
    conditional_risk,
    estimates,
    independent_experts,
    minimise,
    overlapping_specialists,
    random_joint,
    survey,
    truth,
)


def random_joints(count: int, num_classes: int, num_experts: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [random_joint(num_classes, num_experts, generator) for _ in range(count)]


def f64(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def risk_by_definition(scores: Tensor, joint: Tensor, base: str) -> Tensor:
    """PiCCE's conditional risk for scores [R, K+J], cell by cell: phi(y) plus phi of the highest correct expert."""
    num_classes = len(joint)
    phi = scores.logsumexp(dim=1, keepdim=True) - scores  # [R, K+J]
    if base == "ova":
        s = scores.sigmoid()
        log_odds = s.log() - (1 - s).log()
        label_phi = -log_odds[:, :num_classes] - (1 - s).log().sum(dim=1, keepdim=True)
        phi = torch.cat([label_phi, -log_odds[:, num_classes:]], dim=1)
    risk = torch.zeros(len(scores), dtype=torch.float64)
    for y, *m in joint.nonzero().tolist():
        right = [num_classes + j for j, answer in enumerate(m) if answer == y]
        picked = phi[:, right].min(dim=1).values if right else 0  # the highest score has the least phi
        risk = risk + joint[y, *m] * (phi[:, y] + picked)
    return risk


def test_random_joints_agree_with_the_theory():
    found = survey(cases=36, seed=5)
    exact = {name: value for name, value in found.items() if name.startswith("deviation") and "printed" not in name}
    assert len(exact) == 11
    assert max(exact.values()) < 1e-9, exact
    assert found["deviation: u_j* = Acc Vt as printed, picce-ce"] > 0.05

    missed = {name: value for name, value in found.items() if name.startswith("missed")}
    assert len(missed) == 16
    assert not any(n for name, n in missed.items() if "vanilla" in name or name.endswith("holds")), missed


@pytest.mark.parametrize("num_experts", [1, 2, 3])
@pytest.mark.parametrize("base", [ce, ova])
def test_conditional_risk_is_the_definition_summed_over_cells(base, num_experts):
    for joint in random_joints(2, 3, num_experts, seed=num_experts):
        scores = torch.randn(3, 3 + num_experts, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        expected = risk_by_definition(scores, joint, base.name)
        for row, value in zip(scores, expected, strict=True):
            torch.testing.assert_close(conditional_risk(row, joint, picce, base), value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("base", [ce, ova])
def test_no_descent_from_random_starts_goes_below_the_minimiser(base):
    joints = [*random_joints(2, 2, 3, seed=11), overlapping_specialists() / 6]
    for joint in joints:
        least = conditional_risk(minimise(joint, picce, base), joint, picce, base)
        scores = 2 * torch.randn(
            48, joint.shape[0] + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        )
        scores.requires_grad_()
        optimizer = torch.optim.Adam([scores], lr=0.1)
        for _ in range(120):
            optimizer.zero_grad()
            risks = risk_by_definition(scores, joint.double(), base.name)
            risks.sum().backward()
            optimizer.step()
        assert risks.min() > least - 1e-9
        assert risks.min() < least + 1e-2  # and one of the starts finds it


def test_targets_of_every_order_sum_to_the_probability_that_some_expert_is_correct():
    for joint in random_joints(4, 3, 3, seed=3):
        cells = list(product(range(3), repeat=4))
        some_correct = sum(joint[cell].item() for cell in cells if cell[0] in cell[1:])
        for order in permutations(range(3)):
            taken = 0.0
            for j in range(3):  # Pr(all before are wrong, this one is right)
                before, this = order[:j], order[j]
                taken += sum(
                    joint[cell].item()
                    for cell in cells
                    if cell[1 + this] == cell[0] and all(cell[1 + i] != cell[0] for i in before)
                )
            assert taken == pytest.approx(some_correct, abs=1e-12)
        scores = minimise(joint, picce, ce)
        assert scores.softmax(0)[:3].sum().item() == pytest.approx(1 / (1 + some_correct), abs=1e-10)


def test_the_accuracy_identity_with_one_expert():
    """eta = (3/4, 1/4) and an expert right half the time: the risk is -3/4 log p_1 - 1/4 log p_2 - 1/2 log u, least at
    (3/4, 1/4, 1/2) / (3/2). So u = 1/3 = Acc (1 - Vt) with Vt = 1/3, whereas Acc Vt = 1/6."""
    joint = independent_experts(f64([0.75, 0.25]), f64([[0.5, 0.5]]))
    for formulation in (vanilla, picce):
        torch.testing.assert_close(minimise(joint, formulation, ce).softmax(0), f64([1 / 2, 1 / 6, 1 / 3]))


def test_vanilla_flattens_the_labels_with_every_expert_and_picce_does_not():
    """Experts right half the time: the labels keep 1 / (1 + J/2) under vanilla, 1 / (2 - 2^-J) under PiCCE."""
    for num_experts in (1, 2, 4):
        joint = independent_experts(f64([0.8, 0.2]), torch.full((num_experts, 2), 0.5))
        kept = [minimise(joint, formulation, ce).softmax(0)[:2].sum().item() for formulation in (vanilla, picce)]
        assert kept == pytest.approx([1 / (1 + num_experts / 2), 1 / (2 - 0.5**num_experts)], abs=1e-10)


def test_a_dominant_expert_meets_the_condition():
    """Appendix A, first example: independent experts, one at least as good on every class and better on one."""
    eta = f64([0.5, 0.3, 0.2])
    assert condition_holds(independent_experts(eta, f64([[0.5, 0.9, 0.7], [0.5, 0.6, 0.7], [0.4, 0.9, 0.2]])))
    equals = torch.full((2, 3), 0.25)  # powers of two, so that the tie survives the products
    assert not condition_holds(independent_experts(f64([0.5, 0.25, 0.25]), equals))


def test_an_expert_dominant_on_the_major_class_alone_meets_the_condition():
    """Appendix A, second example: 0.80 against 0.66 and 0.66, and a lead of 0.086 beside the third expert."""
    eta = f64([0.8, 0.1, 0.1])
    matrix = f64([[0.9, 0.4, 0.4], [0.6, 0.9, 0.9], [0.6, 0.9, 0.9]])
    joint = independent_experts(eta, matrix)
    torch.testing.assert_close(truth(joint)[0], eta)
    torch.testing.assert_close(truth(joint)[1], f64([0.80, 0.66, 0.66]))

    def some_correct(*experts: int) -> float:
        return sum(joint[c].item() for c in product(range(3), repeat=4) if any(c[1 + j] == c[0] for j in experts))

    assert some_correct(0, 2) - some_correct(1, 2) == pytest.approx(0.086, abs=1e-12)
    assert condition_holds(joint)
    for base in (ce, ova):
        scores = minimise(joint, picce, base)
        assert scores[3:].argmax() == 0
        assert estimates(scores, 3, base)[3].item() == pytest.approx(0.80, abs=1e-9)


def test_the_condition_is_decided_without_rounding():
    """Two experts, right alone with equal mass: no best expert, however the mass is cut; one unit more decides it."""
    tied = torch.zeros(2, 2, 2, dtype=torch.int64)
    tied[0, 0, 1], tied[0, 1, 0], tied[1, 1, 0], tied[1, 0, 1] = (
        10**17,
        10**17 + 3,
        5,
        2,
    )  # expert 0: 10^17 + 5, so is 1
    assert not condition_holds(tied)
    tied[0, 0, 1] += 1
    assert condition_holds(tied)


def test_two_experts_always_meet_the_condition():
    assert all(condition_holds(joint) for joint in random_joints(20, 3, 2, seed=4))


@pytest.mark.parametrize("base", [ce, ova])
def test_picce_passes_over_the_best_expert_where_the_condition_fails(base):
    """The others split all cases in halves; the best expert first would leave (2/3, 1/6, 1/6), which costs more:
    CE compares sum -q log q (0.868 > 0.693), OvA the sum of binary entropies (1.538 > 1.386)."""
    joint = overlapping_specialists()
    torch.testing.assert_close(truth(joint)[1], f64([2 / 3, 1 / 2, 1 / 2]))
    assert not condition_holds(joint)
    assert bayes_decision(joint) == 4

    scores = minimise(joint, picce, base)
    assert scores.argmax() in (5, 6)
    torch.testing.assert_close(estimates(scores, 4, base)[4:], f64([0, 1 / 2, 1 / 2]), rtol=0, atol=1e-9)
    eta = f64([1 / 6, 1 / 3, 1 / 3, 1 / 6])
    entropy = log(2) - (eta * eta.log()).sum()  # of the labels, and of the two halves
    least = {ce: entropy + 2 * log(2), ova: entropy + log(2) - ((1 - eta) * (1 - eta).log()).sum()}[base]
    assert conditional_risk(scores, joint, picce, base).item() == pytest.approx(float(least), abs=1e-9)
    assert minimise(joint, vanilla, base).argmax() == 4


@pytest.mark.parametrize("base", [ce, ova])
def test_picce_passes_over_the_best_of_fallible_independent_specialists(base):
    """Accuracy 0.9 on the expert's own two classes and 0.2 elsewhere: Acc = (0.62, 0.55, 0.55)."""
    own = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    joint = independent_experts(f64([0.2, 0.3, 0.3, 0.2]), torch.where(own, 0.9, 0.2).double())
    torch.testing.assert_close(truth(joint)[1], f64([0.62, 0.55, 0.55]))
    assert not condition_holds(joint)
    assert minimise(joint, picce, base).argmax() in (5, 6)
    assert minimise(joint, vanilla, base).argmax() == bayes_decision(joint) == 4


def test_the_condition_is_not_necessary():
    """eta = (1, 4, 4, 1) / 10 with the same specialists: (0.8, 0.1, 0.1) costs less than halves, yet 0.9 < 1."""
    joint = overlapping_specialists()
    joint[1, 1, 1, 2] = joint[2, 2, 3, 2] = 4
    assert not condition_holds(joint)
    for base in (ce, ova):
        assert minimise(joint, picce, base).argmax() == bayes_decision(joint) == 4


def test_picce_has_a_local_minimum_with_the_worse_expert_first():
    """Independent experts right 0.8 and 0.7 of the time. Teach the second first: masses 0.7 and 0.8 x 0.3 = 0.24."""
    joint = independent_experts(f64([0.6, 0.4]), f64([[0.8, 0.8], [0.7, 0.7]]))
    assert condition_holds(joint)
    trap = f64([0.6, 0.4, 0.24, 0.7]).log().requires_grad_()
    risk = conditional_risk(trap, joint, picce, ce)
    (slope,) = torch.autograd.grad(risk, trap)
    torch.testing.assert_close(slope, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    nearby = trap.detach() + 0.1 * torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert (risk_by_definition(nearby, joint, "ce") > risk).all()
    best = minimise(joint, picce, ce)
    assert best.argmax() == 2
    assert conditional_risk(best, joint, picce, ce) < risk - 0.01


def test_pice_prefers_the_expert_who_is_least_often_right():
    """A correct top expert only adds to the CE risk: a -> (1 + a) log(1 + a) - a log a rises with its accuracy a."""
    joint = independent_experts(f64([0.6, 0.4]), f64([[0.8, 0.8], [0.3, 0.3]]))
    scores = minimise(joint, pice, ce)
    assert scores[2:].argmax() == 1
    labels = -(0.6 * log(0.6) + 0.4 * log(0.4))
    expected = labels + 1.3 * log(1.3) - 0.3 * log(0.3)
    assert conditional_risk(scores, joint, pice, ce).item() == pytest.approx(expected, abs=1e-9)
