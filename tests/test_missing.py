"""Missing answers are left out, not taught as wrong: at the minimum of the risk the beliefs are the truth, whoever answered."""

from itertools import product

import pytest
import torch

from l2d.losses import BASES, FORMULATIONS, without_unanswered
from l2d.theory import random_joint, truth

K, J = 3, 2
ANSWER_RATES = (0.9, 0.2)  # of the two experts, independent of everything else


def cases(joint: torch.Tensor, rates=ANSWER_RATES):
    """Every (label, answers, mass) with answers missing at random; -1 where an expert does not answer."""
    labels, answers, mass = [], [], []
    for cell in joint.nonzero().tolist():
        for given in product((True, False), repeat=J):
            share = 1.0
            for there, rate in zip(given, rates, strict=True):
                share *= rate if there else 1 - rate
            labels.append(cell[0])
            answers.append([a if there else -1 for a, there in zip(cell[1:], given, strict=True)])
            mass.append(joint[tuple(cell)].item() * share)
    return torch.tensor(labels), torch.tensor(answers), torch.tensor(mass, dtype=torch.float64)


def minimiser(joint: torch.Tensor, base: str, formulation: str = "vanilla", masked: bool = True) -> torch.Tensor:
    """The scores [K+J] of least risk, by L-BFGS in float64."""
    labels, answers, mass = cases(joint)
    scores = torch.zeros(K + J, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scores], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        rows = scores.expand(len(labels), -1)
        seen = without_unanswered(rows, answers) if masked else rows
        weights = FORMULATIONS[formulation](seen.detach()[:, K:], answers == labels[:, None])
        risk = mass @ BASES[base](seen, labels, weights)
        risk.backward()
        return risk

    optimizer.step(closure)
    return scores.detach()


def believed(scores: torch.Tensor, base: str) -> torch.Tensor:
    return BASES[base].beliefs(scores, K)


@pytest.mark.parametrize("base", ["ce", "ova"])
@pytest.mark.parametrize("seed", range(6))
def test_beliefs_at_the_minimum_are_the_truth_whoever_answered(base, seed):
    joint = random_joint(K, J, torch.Generator().manual_seed(seed))
    expected = torch.cat(truth(joint))
    torch.testing.assert_close(believed(minimiser(joint, base), base), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("base", ["ce", "ova"])
def test_taught_as_wrong_the_accuracy_would_be_multiplied_by_the_answer_rate(base):
    """What masking avoids: an expert who rarely answers would be believed to be bad."""
    joint = random_joint(K, J, torch.Generator().manual_seed(0))
    eta, accuracy = truth(joint)
    expected = torch.cat([eta, accuracy * torch.tensor(ANSWER_RATES, dtype=torch.float64)])
    got = believed(minimiser(joint, base, masked=False), base)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("base", ["ce", "ova"])
def test_picce_keeps_the_classes_right_and_overrates_nobody(base):
    """PiCCE teaches the most confident of those who answered and are right, so what it believes about experts depends on
    who answered: less than the truth for an expert whose cases another one took."""
    joint = random_joint(K, J, torch.Generator().manual_seed(3))
    eta, accuracy = truth(joint)
    got = believed(minimiser(joint, base, "picce"), base)
    torch.testing.assert_close(got[:K], eta, rtol=0, atol=1e-3)  # the classes are right all the same
    assert got[K:].max() > 0 and (got[K:] <= accuracy + 1e-3).all()
