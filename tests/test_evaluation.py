"""Evaluation: the metrics against a plain loop and by hand, the Bayes optimum against simulation."""

import random
from math import sqrt

import numpy as np
import pytest
import torch

from l2d.evaluation import bayes_optimum, decide, evaluate
from l2d.experts import simulate


def looped(scores: list[list[float]], labels: list[int], answers: list[list[int]], num_classes: int) -> dict:
    """Sample by sample, as one would do it on paper."""
    n, num_experts = len(labels), len(answers[0])
    system, kept, classifier, kept_right, asked_right, anyone = 0, 0, 0, 0, 0, 0
    to, right_of = [0] * num_experts, [0] * num_experts
    for theta, y, m in zip(scores, labels, answers, strict=True):
        best = 0
        for a in range(len(theta)):
            if a >= num_classes and m[a - num_classes] == -1:
                continue
            if theta[a] > theta[best]:
                best = a
        own = max(range(num_classes), key=lambda k: theta[k])
        classifier += own == y
        if best < num_classes:
            kept += 1
            kept_right += best == y
            system += best == y
        else:
            j = best - num_classes
            to[j] += 1
            asked_right += m[j] == y
            system += m[j] == y
        anyone += any(answer == y for answer in m)
        for j in range(num_experts):
            right_of[j] += m[j] == y
    return {
        "system_error": 100 * (1 - system / n),
        "coverage": 100 * kept / n,
        "classifier_accuracy": 100 * classifier / n,
        "classifier_accuracy_kept": 100 * kept_right / kept if kept else None,
        "expert_accuracy_deferred": 100 * asked_right / (n - kept) if kept < n else None,
        "best_expert_accuracy": 100 * max(right_of) / n,
        "any_expert_correct": 100 * anyone / n,
        "deferred_to": [100 * c / n for c in to],
    }


def agree(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        assert got[key] == (value if value is None else pytest.approx(value, abs=1e-9)), key


def test_an_example_worked_by_hand():
    """Two classes, two experts, five samples."""
    rows = [
        ([3.0, 1.0, 0.0, 0.0], 0, [1, 1]),  # keeps, right
        ([1.0, 3.0, 2.0, 0.0], 0, [0, 1]),  # keeps, wrong; expert 0 knew
        ([1.0, 2.0, 0.0, 3.0], 0, [1, 0]),  # asks expert 1: right; the classifier would be wrong
        ([2.0, 1.0, 3.0, 0.0], 0, [1, 0]),  # asks expert 0: wrong; the classifier would be right
        ([1.0, 2.0, 9.0, 0.0], 1, [-1, 0]),  # expert 0 has no answer, so it keeps: right
    ]
    scores, labels, answers = (torch.tensor(column) for column in zip(*rows, strict=True))
    assert decide(scores, answers, 2).tolist() == [0, 1, 3, 2, 1]
    agree(
        evaluate(scores, labels, answers, 2),
        {
            "system_error": 40.0,  # samples 2 and 4
            "coverage": 60.0,
            "classifier_accuracy": 60.0,  # samples 1, 4, 5
            "classifier_accuracy_kept": 200 / 3,  # 1 and 5 of 1, 2, 5
            "expert_accuracy_deferred": 50.0,
            "best_expert_accuracy": 40.0,  # expert 1 on samples 3 and 4; expert 0 on sample 2
            "any_expert_correct": 60.0,  # samples 2, 3, 4
            "deferred_to": [20.0, 20.0],
        },
    )


@pytest.mark.parametrize("seed", range(20))
def test_metrics_equal_a_plain_loop(seed):
    """Random sizes, missing answers, and few distinct scores so that ties are frequent."""
    rng = random.Random(seed)
    num_classes, num_experts, n = rng.randint(2, 5), rng.randint(1, 4), rng.randint(1, 60)
    scores = [[float(rng.randint(-3, 3)) for _ in range(num_classes + num_experts)] for _ in range(n)]
    labels = [rng.randrange(num_classes) for _ in range(n)]
    answers = [[rng.randint(-1, num_classes - 1) for _ in range(num_experts)] for _ in range(n)]
    got = evaluate(torch.tensor(scores), torch.tensor(labels), torch.tensor(answers, dtype=torch.int8), num_classes)
    agree(got, looped(scores, labels, answers, num_classes))


@pytest.mark.parametrize(
    ("shift", "coverage", "empty"), [(-100, 100, "expert_accuracy_deferred"), (100, 0, "classifier_accuracy_kept")]
)
def test_nobody_or_everybody_deferred(shift, coverage, empty):
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(30, 7, generator=rng)
    scores[:, 4:] += shift
    labels = torch.randint(4, (30,), generator=rng)
    answers = torch.randint(4, (30, 3), generator=rng)
    got = evaluate(scores, labels, answers, 4)
    assert got["coverage"] == coverage
    assert got[empty] is None
    assert sum(got["deferred_to"]) == pytest.approx(100 - coverage)
    agree(got, looped(scores.tolist(), labels.tolist(), answers.tolist(), 4))


def test_metrics_are_plain_numbers():
    """They go into JSON as they are."""
    got = evaluate(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), torch.zeros(3, 2, dtype=torch.int8), 2)
    assert all(
        type(value) is float for key, value in got.items() if key not in ("deferred_to", "expert_accuracy_deferred")
    )
    assert got["deferred_to"] == [0.0, 0.0]


def test_bayes_optimum_by_hand():
    """Two points, two classes, one expert with A = [0.9, 0.6].

    Point 1: eta = [0.5, 0.5], Acc = 0.75 > 0.5: defer. Point 2: eta = [0.9, 0.1], Acc = 0.87 < 0.9: keep.
    """
    eta = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    got = bayes_optimum(eta, torch.tensor([[0.9, 0.6]], dtype=torch.float64))
    assert got == pytest.approx({"system_error": 17.5, "coverage": 50.0, "classifier_accuracy": 70.0})


def test_bayes_optimum_agrees_with_simulation():
    """Labels drawn from eta, answers from A, and the decision max(eta, Acc) played out 400 times a point."""
    rng = np.random.default_rng(0)
    num_classes, num_experts, points, repeats = 5, 3, 300, 400
    eta = rng.dirichlet(np.full(num_classes, 0.4), points)  # [N, K]
    matrix = rng.uniform(0.1, 0.95, (num_experts, num_classes))  # [J, K]
    got = bayes_optimum(torch.from_numpy(eta), torch.from_numpy(matrix))

    total = points * repeats
    x = np.repeat(np.arange(points), repeats)
    labels = (rng.random(total)[:, None] > eta.cumsum(1)[x]).sum(1).clip(max=num_classes - 1)
    answers = simulate(matrix, labels, seed=1)
    accuracy = np.array([[sum(e[k] * a[k] for k in range(num_classes)) for a in matrix] for e in eta])  # [N, J]
    keeps = eta.max(1) > accuracy.max(1)
    assert 20 < 100 * keeps.mean() < 80  # both kinds of decision are played
    final = np.where(keeps[x], eta.argmax(1)[x], answers[np.arange(total), accuracy.argmax(1)[x]])
    bound = 5 * 100 * sqrt(0.25 / total)
    assert got["system_error"] == pytest.approx(100 * (final != labels).mean(), abs=bound)
    assert got["classifier_accuracy"] == pytest.approx(100 * (eta.argmax(1)[x] == labels).mean(), abs=bound)
    assert got["coverage"] == pytest.approx(100 * keeps.mean())


def test_the_bayes_system_beats_classifier_and_experts_alone():
    """Always keeping, or always asking the best expert, does worse than choosing between them."""
    rng = np.random.default_rng(1)
    eta, matrix = rng.dirichlet(np.full(4, 0.5), 500), rng.uniform(0.2, 0.9, (2, 4))
    best = bayes_optimum(torch.from_numpy(eta), torch.from_numpy(matrix))["system_error"]
    always_keep = 100 * (1 - eta.max(1).mean())
    always_defer = 100 * (1 - (eta @ matrix.T).max(1).mean())
    assert best < min(always_keep, always_defer) - 1
