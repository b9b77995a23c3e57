"""Curves over prices and intervals over test samples, against plain loops and known values."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from l2d.decisions import Deployment, best
from l2d.evaluation import METRICS, bayes_optimum, measure
from l2d.evaluation.areas import area_summary, areas, resampled_areas
from l2d.evaluation.budget import coverage_curve, curve_summary, question_curve
from l2d.evaluation.full import intervals
from l2d.evaluation.intervals import interval, resampled_means
from l2d.evaluation.outcome import observe
from l2d.losses import DeferralLoss
from l2d.report.full_figures import questions
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


def true_outcome(costs: list[float] | None = None, seed: int = 1):
    """The same with a random truth, that the system does not know."""
    rng = torch.Generator().manual_seed(seed)
    eta = torch.rand(N, K, generator=rng, dtype=torch.float64)
    truth = Truth(eta / eta.sum(dim=1, keepdim=True), torch.rand(N, J, generator=rng, dtype=torch.float64))
    return replace(outcome(costs), truth=truth), truth


@pytest.mark.parametrize("costs", [None, [0.05, 0.3]])
def test_no_order_of_questions_costs_less_than_the_optimum_expects(costs):
    """Against random orders and random choices among the experts who are there."""
    seen, truth = true_outcome(costs)
    there, charge = seen.answers >= 0, torch.tensor(costs or [0.0, 0.0], dtype=torch.float64)
    askable = there.any(dim=1).nonzero().squeeze(1)
    curve = question_curve(seen, points=len(askable) + 1)
    least = [error + spent for error, spent in zip(curve["optimum"], curve["optimum_spent"], strict=True)]
    own, rng = truth.eta.max(dim=1).values, torch.Generator().manual_seed(2)
    for _ in range(50):
        order = askable[torch.randperm(len(askable), generator=rng)]
        expert = there.double().clamp(min=1e-9).multinomial(1, generator=rng).squeeze(1)
        for asked in (1, 50, len(askable)):
            rows = order[:asked]
            value = own.sum() + (truth.accuracy[rows, expert[rows]] - charge[expert[rows]] - own[rows]).sum()
            assert least[asked] <= 100 * (1 - value.item() / N) + 1e-9
    assert least[0] == pytest.approx(100 * (1 - own.mean().item())) and curve["optimum_spent"][0] == 0
    assert (sum(curve["optimum_spent"]) > 0) == bool(costs)


def test_the_least_cost_of_all_numbers_of_questions_is_the_optimum_of_the_run():
    """With everybody there: a price of zero is one of the prices."""
    seen, truth = true_outcome([0.05, 0.3])
    seen = replace(seen, decision=replace(seen.cases(), available=torch.ones(N, J).bool()).decide())
    curve = question_curve(seen, points=N + 1)
    least = min(error + spent for error, spent in zip(curve["optimum"], curve["optimum_spent"], strict=True))
    assert least == pytest.approx(bayes_optimum(truth, seen.costs)["system_cost"])
    summary = curve_summary(replace(seen, deployment=None), points=N + 1)
    assert max(summary["optimum"]) == pytest.approx(100 - bayes_optimum(truth)["system_error"])


def test_a_curve_under_a_loss_matrix_counts_what_errors_cost():
    """The rule itself is a point of it: its questions and its system_cost. No optimum: regret has none either."""
    matrix = torch.tensor([[0, 3, 1], [0.5, 0, 1], [2, 1, 0]], dtype=torch.float64)
    seen, _ = true_outcome([0.05, 0.1])
    seen = replace(seen, deployment=replace(seen.deployment, loss_matrix=matrix))
    seen = replace(seen, decision=best(replace(seen.cases(), held_out=seen.cases())))
    asked, askable = int(seen.decision.deferred.sum()), int((seen.decision.margin > -torch.inf).sum())
    curve = question_curve(seen, points=askable + 1)
    assert 0 < asked < askable and curve["optimum"] is curve_summary(seen, 5)["optimum"] is None
    assert curve["cost"][asked] == pytest.approx(measure(seen, METRICS)["system_cost"])
    assert curve["error"][asked] == pytest.approx(measure(seen, METRICS)["system_error"])


def areas_of(seen) -> list[float]:
    return areas(seen, torch.ones(1, len(seen.labels)))[0].tolist()


def test_augrc_worked_by_hand():
    """Four cases, the two that the classifier gets wrong asked about first or last: (0+0+1+2)/16 and (1+2+2+2)/16."""
    system = ScoreSystem(lambda outputs: torch.nn.Identity(), DeferralLoss("vanilla", "ova", 2), 2, 1)
    labels, answers = torch.tensor([1, 1, 0, 0]), torch.zeros(4, 1, dtype=torch.long)
    for expert, expected in (([4.0, 3.0, 2.0, 1.0], 300 / 16), ([1.0, 2.0, 3.0, 4.0], 700 / 16)):
        scores = torch.tensor([[2.0, -2.0, value] for value in expert])
        seen = observe(system, Predicted(scores, labels, answers, torch.arange(4)))
        assert areas_of(seen)[1] == pytest.approx(expected)


def tied_outcome(rows: torch.Tensor):
    """Of these rows out of 30 cases with few distinct scores and some that nobody can be asked about."""
    rng = torch.Generator().manual_seed(3)
    scores, labels = torch.randint(-2, 3, (30, K + J), generator=rng).float(), torch.randint(K, (30,), generator=rng)
    answers = torch.randint(-1, K, (30, J), generator=rng)
    system = ScoreSystem(lambda outputs: torch.nn.Identity(), DeferralLoss("vanilla", "ova", K), K, J)
    return observe(system, Predicted(scores[rows], labels[rows], answers[rows], rows))


def test_the_area_is_the_mean_height_of_the_curve():
    seen = tied_outcome(torch.arange(30))
    coverage, accuracy = coverage_curve(seen)
    expected = torch.trapezoid(accuracy, coverage).item() / (coverage[-1] - coverage[0]).item()
    assert coverage[0] > 0 and len(coverage) < 30 and areas_of(seen)[0] == pytest.approx(expected)
    nobody = replace(seen, decision=replace(seen.cases(), available=torch.zeros(30, J).bool()).decide())
    assert areas_of(nobody)[0] == pytest.approx(measure(nobody, METRICS)["classifier_accuracy"])


@pytest.mark.parametrize("seed", range(5))
def test_areas_of_counts_are_those_of_a_test_set_with_so_many_of_each_case(seed):
    rows = torch.randint(30, (30,), generator=torch.Generator().manual_seed(seed)).sort().values
    counts = rows.bincount(minlength=30)[None]
    assert areas(tied_outcome(torch.arange(30)), counts)[0].tolist() == pytest.approx(areas_of(tied_outcome(rows)))


def test_areas_lie_in_their_intervals_and_better_orders_are_told_apart():
    """On the same cases: an order by whether the classifier is wrong, and a random one; the difference is paired."""
    seen = outcome()
    wrong = (~seen.classifier_right).double()[:, None]
    informed = replace(seen, decision=seen.decision._replace(gain=wrong.expand(N, J) - 0.5))
    for each in (seen, informed):
        found = area_summary(each)
        for name in ("area", "augrc"):
            low, high = found[f"{name}_interval"]
            assert low < found[name] < high
    (_, low), _ = interval(resampled_areas(seen) - resampled_areas(informed))
    assert low > 0


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


@pytest.mark.parametrize(("costs", "panels"), [(None, 2), ([0.05, 0.3], 3)])
def test_error_against_spending_is_drawn_where_questions_cost_anything(costs, panels):
    """With the optimum in grey in every panel over questions."""
    curve = question_curve(true_outcome(costs)[0], points=9)
    values = np.array([curve[key] for key in ("questions", "error", "spent", "optimum", "optimum_spent")])
    present = np.array([[0, 1, 2], [40, 30, 20]])
    runs = pd.DataFrame({"num_experts": [J], "method": ["ova"], "values": [values]})
    figure = questions(runs, runs.assign(values=[present]), ["ova"])
    assert len(figure.axes) == panels
    assert [len(ax.lines) for ax in figure.axes] == [2] * (panels - 1) + [1]
    assert figure.axes[panels - 2].lines[1].get_ydata().tolist() == curve["optimum"]
