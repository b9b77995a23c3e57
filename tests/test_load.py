"""Many experts and classes at once: the parts of a run work at that size, in the memory that was predicted."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

from l2d.data.synthetic import synthetic
from l2d.errors import UserError
from l2d.evaluation import METRICS, measure, observe
from l2d.experts import accuracy_matrix, disjoint_domains, simulate
from l2d.losses import DeferralLoss
from l2d.models import MLP
from l2d.systems import ScoreSystem
from l2d.training.loop import Predicted

J, K, N = 500, 10_000, 20_000


@pytest.fixture(scope="module")
def table():
    """500 experts on 20,000 samples of 10,000 classes; each knows 20 classes, all of them the whole."""
    matrix = accuracy_matrix(disjoint_domains(range(K), J, K // J), range(K), K, 1.0, 0.25)  # [J, K]
    labels = np.arange(N) % K
    tracemalloc.start()
    predictions = simulate(matrix, labels, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return labels, predictions, peak


def test_an_expert_table_takes_two_bytes_an_answer_and_little_beside(table):
    _, predictions, peak = table
    assert predictions.dtype == np.int16 and predictions.shape == (N, J)
    assert predictions.nbytes == 2 * N * J <= peak < 2 * N * J + 8e6


def test_answers_of_a_large_table_follow_the_pattern(table):
    labels, predictions, _ = table
    right = predictions == labels[:, None]
    owner = labels // (K // J)
    assert right[np.arange(N), owner].all(), "in its domain an expert is always right"
    rest = right.sum() - N
    assert abs(rest / (N * (J - 1)) - 0.25) < 0.001, "and outside it one time in four"
    assert predictions.min() == 0 and predictions.max() == K - 1


@pytest.mark.parametrize("formulation", ["vanilla", "picce", "pice"])
@pytest.mark.parametrize("base", ["ce", "ova"])
def test_every_loss_is_finite_and_has_the_value_that_equal_scores_imply(table, formulation, base):
    y, m = (torch.from_numpy(part[:64]) for part in table[:2])
    scores = torch.zeros(64, K + J, requires_grad=True)
    loss = DeferralLoss(formulation, base, K)(scores, y, m)
    loss.backward()
    correct = m == y[:, None]
    taught = (
        {"vanilla": correct.sum(1), "picce": correct.any(1), "pice": correct[:, 0]}[formulation].double().mean().item()
    )
    expected = (1 + taught) * math.log(K + J) if base == "ce" else (K + J) * math.log(2)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert scores.grad.isfinite().all() and scores.grad.abs().sum() > 0


def test_evaluation_of_a_large_table_counts_every_sample_once(table):
    labels, predictions = (torch.from_numpy(part[:2000]) for part in table[:2])
    scores = torch.zeros(2000, K + J)
    scores[torch.arange(1000), labels[:1000]] = 1.0  # the classifier is right on the first half
    scores[torch.arange(1000, 2000), K + labels[1000:] // (K // J)] = (
        1.0  # and the owner of the class is asked on the second
    )
    system = ScoreSystem(lambda outputs: torch.nn.Identity(), DeferralLoss("vanilla", "ce", K), K, J)
    outcome = observe(system, Predicted(scores, labels, predictions, torch.arange(2000)))
    metrics = measure(outcome, METRICS)
    assert metrics["system_error"] == 0 and metrics["coverage"] == 50 and metrics["expert_accuracy_deferred"] == 100
    assert len(metrics["deferred_to"]) == J and sum(metrics["deferred_to"]) == pytest.approx(50)


def test_sizes_beyond_memory_are_rejected_before_allocation():
    sizes = {"num_classes": 4, "group_size": 2, "grid": 2, "pixel": 1, "num_train": 8, "num_test": 8}
    small = {"name": "small", "separation": 1.0, "seed": 0, **sizes}
    assert len(synthetic(**small).train) == 8
    for key in ("num_train", "num_test", "num_classes", "grid", "pixel"):
        with pytest.raises(UserError, match="GB are free"):
            synthetic(**small | {key: 10**12})
    for hidden, layers in ((10**9, 2), (1, 10**9)):
        with pytest.raises(UserError, match="GB are free"):
            MLP(10, (3, 8, 8), hidden, layers)
