"""Curves over prices and intervals over test samples, against plain loops and known values."""

from dataclasses import replace

import pytest
import torch

from l2d.decisions import Deployment
from l2d.evaluation import METRICS, measure
from l2d.evaluation.budget import augrc, question_curve
from l2d.evaluation.full import intervals
from l2d.evaluation.intervals import interval, resampled_means
from l2d.evaluation.outcome import observe
from l2d.losses import DeferralLoss
from l2d.systems import ScoreSystem
from l2d.task import Truth
from l2d.training.loop import Predicted

K, J, N = 3, 2, 200


def outcome(costs: list[float] | None = None, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    scores, labels = torch.randn(N, K + J, generator=rng), torch.randint(K, (N,), generator=rng)
    answers = torch.randint(-1, K, (N, J), generator=rng)
    system = ScoreSystem(lambda outputs: torch.nn.Identity(), DeferralLoss("vanilla", "ova", K), K, J)
    given = None if costs is None else torch.tensor(costs, dtype=torch.float64)
    predicted = Predicted(scores, labels, answers, torch.arange(N))
    return observe(system, predicted, deployment=Deployment(["ann", "bob"], given))


@pytest.mark.parametrize("costs", [None, [0.1, 0.1], [0.05, 0.3]])
def test_the_question_curve_equals_a_plain_loop(costs):
    seen = outcome(costs)
    margin = seen.decision.margin.tolist()
    order = sorted(range(N), key=lambda i: -margin[i])
    askable = [i for i in order if margin[i] > -torch.inf]
    curve = question_curve(seen, points=7)
    for point in range(7):
        asked = set(askable[: round(point * len(askable) / 6)])
        experts = seen.decision.expert.tolist()
        wrong = sum(not (seen.expert_right[i] if i in asked else seen.classifier_right[i]) for i in range(N))
        spent = sum((costs or [0, 0])[experts[i]] for i in asked)
        assert curve["questions"][point] == pytest.approx(100 * len(asked) / N)
        assert curve["error"][point] == pytest.approx(100 * wrong / N)
        assert curve["spent"][point] == pytest.approx(100 * spent / N)
        assert curve["cost"][point] == pytest.approx(100 * (wrong + spent) / N)


def test_the_run_itself_is_a_point_of_its_question_curve():
    """As many questions as the rule asked give its error: the rule asks where the gain is above 0."""
    seen = outcome()
    asked = int(seen.decision.deferred.sum())
    askable = int((seen.decision.margin > -torch.inf).sum())
    curve = question_curve(seen, points=askable + 1)
    assert curve["questions"][asked] == pytest.approx(100 * asked / N)
    assert curve["error"][asked] == pytest.approx(measure(seen, METRICS)["system_error"])


def test_system_cost_is_the_error_and_what_was_spent():
    seen = outcome([0.05, 0.3])
    shares = measure(seen, METRICS)
    spent = sum(cost * share for cost, share in zip([0.05, 0.3], shares["deferred_to"], strict=True))
    assert shares["system_cost"] == pytest.approx(shares["system_error"] + spent)


def test_no_order_of_questions_errs_less_than_the_optimum_expects():
    """With the truth as beliefs the curve's own order is the best one; its expected error is the optimum."""
    rng = torch.Generator().manual_seed(1)
    eta = torch.rand(N, K, generator=rng, dtype=torch.float64)
    eta /= eta.sum(dim=1, keepdim=True)
    truth = Truth(eta, torch.rand(N, J, generator=rng, dtype=torch.float64))
    seen = replace(outcome(), truth=truth)
    curve = question_curve(seen, points=N + 1)
    own, best = eta.max(dim=1).values, truth.accuracy.max(dim=1).values
    for _ in range(50):
        order = torch.randperm(N, generator=rng)
        for asked in (1, 50, 199):
            value = own.sum() + (best - own)[order[:asked]].sum()
            at = min(range(N + 1), key=lambda i: abs(curve["questions"][i] - 100 * asked / N))
            if curve["questions"][at] == pytest.approx(100 * asked / N):
                assert curve["optimum"][at] <= 100 * (1 - value.item() / N) + 1e-9
    assert curve["optimum"][0] == pytest.approx(100 * (1 - own.mean().item()))


def test_augrc_worked_by_hand():
    """Four cases, the two that the classifier gets wrong asked about first or last: (0+0+1+2)/16 and (1+2+2+2)/16."""
    system = ScoreSystem(lambda outputs: torch.nn.Identity(), DeferralLoss("vanilla", "ova", 2), 2, 1)
    labels, answers = torch.tensor([1, 1, 0, 0]), torch.zeros(4, 1, dtype=torch.long)
    for expert, expected in (([4.0, 3.0, 2.0, 1.0], 300 / 16), ([1.0, 2.0, 3.0, 4.0], 700 / 16)):
        scores = torch.tensor([[2.0, -2.0, value] for value in expert])
        assert augrc(observe(system, Predicted(scores, labels, answers, torch.arange(4)))) == pytest.approx(expected)


def test_intervals_are_those_of_the_binomial():
    """A share p over n samples has the standard error sqrt(p (1-p) / n), and 95 percent lie within 1.96 of them."""
    n, p = 2000, 0.3
    values = (torch.arange(n) < p * n).double()[:, None]
    means = resampled_means(values)
    (low,), (high,) = interval(means)
    error = (p * (1 - p) / n) ** 0.5
    assert means.mean().item() == pytest.approx(p, abs=error / 5)
    assert low.item() == pytest.approx(p - 1.96 * error, abs=error / 4)
    assert high.item() == pytest.approx(p + 1.96 * error, abs=error / 4)


def test_columns_share_their_resamples_so_differences_are_paired():
    values = torch.rand(100, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = resampled_means(torch.cat([values, values + 0.25], dim=1))
    torch.testing.assert_close(means[:, 1] - means[:, 0], torch.full((len(means),), 0.25, dtype=torch.float64))


def test_the_metric_lies_in_its_interval():
    seen = outcome([0.05, 0.3])
    found, values = intervals(seen), measure(seen, METRICS)
    for name, (low, high) in found.items():
        assert low < values[name] < high
