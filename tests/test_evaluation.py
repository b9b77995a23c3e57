"""Evaluation: the metrics against a plain loop and by hand, the Bayes optimum against simulation."""

import json
import random
from math import sqrt

import numpy as np
import pytest
import torch

from l2d.evaluation import METRICS, bayes_optimum, measure, outcome_of
from l2d.experts import simulate
from l2d.losses import DeferralLoss
from l2d.task import Truth


def metrics_of(scores: torch.Tensor, labels: torch.Tensor, answers: torch.Tensor, num_classes: int) -> dict:
    """Every metric of scores that were trained with vanilla CE; decided by argmax, whichever of our losses it was."""
    return measure(outcome_of(scores, labels, answers, DeferralLoss("vanilla", "ce", num_classes)), METRICS)


def truth_of(eta: torch.Tensor, matrix: torch.Tensor) -> Truth:
    return Truth(eta, eta @ matrix.T)


def looped(scores: list[list[float]], labels: list[int], answers: list[list[int]], num_classes: int) -> dict:
    """Sample by sample, as one would do it on paper."""
    n, num_experts = len(labels), len(answers[0])
    system, kept, classifier, kept_right, asked_right, anyone = 0, 0, 0, 0, 0, 0
    to, right_of, given_by = [0] * num_experts, [0] * num_experts, [0] * num_experts
    majority, voted, drawn, missed = 0, 0, 0.0, []
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
            if y in m:
                missed.append(1 - (m[j] == y) / m.count(y))
            system += m[j] == y
        anyone += any(answer == y for answer in m)
        for j in range(num_experts):
            right_of[j] += m[j] == y
            given_by[j] += m[j] != -1
        votes = [answer for answer in m if answer != -1]
        if votes:
            voted += 1
            majority += max(votes, key=votes.count) == y  # the first among equals
            drawn += votes.count(y) / len(votes)
    accuracy = [100 * right / given if given else None for right, given in zip(right_of, given_by, strict=True)]
    return {
        "system_error": 100 * (1 - system / n),
        "coverage": 100 * kept / n,
        "classifier_accuracy": 100 * classifier / n,
        "classifier_accuracy_kept": 100 * kept_right / kept if kept else None,
        "expert_accuracy_deferred": 100 * asked_right / (n - kept) if kept < n else None,
        "best_expert_accuracy": max((a for a in accuracy if a is not None), default=None),
        "majority_vote_accuracy": 100 * majority / voted if voted else None,
        "random_expert_accuracy": 100 * drawn / voted if voted else None,
        "any_expert_correct": 100 * anyone / n,
        "system_cost": None,
        "questions_asked": 100 * (n - kept) / n,
        "set_size": 1 if kept < n else None,
        "false_negative_rate": 100 * sum(missed) / len(missed) if missed else None,
        "deferred_to": [100 * c / n for c in to],
        "expert_accuracy": accuracy,
        "answered": [100 * given / n for given in given_by],
    }


def agree(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, list):
            assert [round(v, 9) if v is not None else None for v in got[key]] == [
                round(v, 9) if v is not None else None for v in value
            ], key
        else:
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
    agree(
        metrics_of(scores, labels, answers, 2),
        {
            "system_error": 40.0,  # samples 2 and 4
            "coverage": 60.0,
            "classifier_accuracy": 60.0,  # samples 1, 4, 5
            "classifier_accuracy_kept": 200 / 3,  # 1 and 5 of 1, 2, 5
            "expert_accuracy_deferred": 50.0,
            "best_expert_accuracy": 40.0,  # expert 1 on samples 3 and 4 of 5; expert 0 on sample 2 of 4
            "majority_vote_accuracy": 20.0,  # sample 2 alone: of two, the first is followed where they differ
            "random_expert_accuracy": 30.0,  # half of samples 2, 3, 4; nothing of 1; expert 1 alone is wrong on 5
            "any_expert_correct": 60.0,  # samples 2, 3, 4
            "system_cost": None,  # nothing has a price
            "questions_asked": 40.0,
            "set_size": 1.0,
            "false_negative_rate": 50.0,  # sample 3: expert 1 is asked, the only one who is right; sample 4: it is not
            "deferred_to": [20.0, 20.0],
            "expert_accuracy": [25.0, 40.0],
            "answered": [80.0, 100.0],
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
    got = metrics_of(torch.tensor(scores), torch.tensor(labels), torch.tensor(answers, dtype=torch.int8), num_classes)
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
    got = metrics_of(scores, labels, answers, 4)
    assert got["coverage"] == coverage
    assert got[empty] is None
    assert sum(got["deferred_to"]) == pytest.approx(100 - coverage)
    agree(got, looped(scores.tolist(), labels.tolist(), answers.tolist(), 4))


def test_metrics_are_plain_numbers():
    """They go into JSON as they are."""
    got = metrics_of(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), torch.zeros(3, 2, dtype=torch.int8), 2)
    assert got["deferred_to"] == [0.0, 0.0] and got["expert_accuracy_deferred"] is None
    assert json.loads(json.dumps(got, allow_nan=False)) == got


def test_accuracy_of_an_expert_is_over_the_answers_it_gave():
    """Expert 0 answered one of four samples, rightly; expert 1 all of them, half of them rightly."""
    answers = torch.tensor([[0, 0], [-1, 0], [-1, 1], [-1, 1]])
    got = metrics_of(torch.zeros(4, 4), torch.zeros(4, dtype=torch.long), answers, 2)
    assert got["expert_accuracy"] == [100.0, 50.0] and got["answered"] == [25.0, 100.0]
    assert got["best_expert_accuracy"] == 100.0


def test_a_label_beyond_the_type_of_the_answers_is_not_wrapped_around():
    """Class 255 would be -1 in eight bits, as an answer that is missing."""
    scores, answers = torch.zeros(2, 256 + 2), torch.tensor([[-1, 7], [-1, 3]], dtype=torch.int8)
    outcome = outcome_of(scores, torch.tensor([255, 3]), answers, DeferralLoss("vanilla", "ce", num_classes=256))
    assert outcome.experts_right.tolist() == [[False, False], [False, True]]


def test_a_loss_decides_with_its_own_beliefs():
    """Beliefs that put the second expert first, whatever the scores say."""

    class Stubborn:
        vouches_for = "all"

        def __call__(self, scores, labels, answers):
            return scores.sum()

        def beliefs(self, scores):
            return torch.tensor([[0.1, 0.2, 0.3, 0.9]], dtype=scores.dtype).expand(len(scores), 4)

    outcome = outcome_of(torch.tensor([[9.0, 0, 0, 0]]), torch.tensor([0]), torch.tensor([[0, 0]]), Stubborn())
    assert outcome.decision.asked.tolist() == [[False, True]] and outcome.vouches_for == "all"


def test_bayes_optimum_by_hand():
    """Two points, two classes, one expert with A = [0.9, 0.6].

    Point 1: eta = [0.5, 0.5], Acc = 0.75 > 0.5: defer. Point 2: eta = [0.9, 0.1], Acc = 0.87 < 0.9: keep.
    """
    eta = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    got = bayes_optimum(truth_of(eta, torch.tensor([[0.9, 0.6]], dtype=torch.float64)))
    assert got == pytest.approx({"system_error": 17.5, "coverage": 50.0, "classifier_accuracy": 70.0})


def test_bayes_optimum_agrees_with_simulation():
    """Labels drawn from eta, answers from A, and the decision max(eta, Acc) played out 400 times a point."""
    rng = np.random.default_rng(0)
    num_classes, num_experts, points, repeats = 5, 3, 300, 400
    eta = rng.dirichlet(np.full(num_classes, 0.4), points)  # [N, K]
    matrix = rng.uniform(0.1, 0.95, (num_experts, num_classes))  # [J, K]
    got = bayes_optimum(truth_of(torch.from_numpy(eta), torch.from_numpy(matrix)))

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
    best = bayes_optimum(truth_of(torch.from_numpy(eta), torch.from_numpy(matrix)))["system_error"]
    always_keep = 100 * (1 - eta.max(1).mean())
    always_defer = 100 * (1 - (eta @ matrix.T).max(1).mean())
    assert best < min(always_keep, always_defer) - 1
