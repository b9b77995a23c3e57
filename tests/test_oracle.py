"""What evaluation=full tells: against the truth, worked cases, plain loops, simulation and numeric integration."""

import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from l2d.config import build
from l2d.data import synthetic
from l2d.decisions import price_for
from l2d.errors import UserError
from l2d.evaluation import METRICS, Outcome, bayes_optimum, measure, outcome_of
from l2d.evaluation.budget import coverage_curve, curve_summary, under_budget
from l2d.evaluation.calibration import belief_errors, calibration, reliability
from l2d.evaluation.full import full_evaluation, posterior_profile
from l2d.evaluation.regret import regret
from l2d.experts import simulate
from l2d.losses import DeferralLoss, underfitting
from l2d.losses.base import implied_distribution
from l2d.systems import ScoreSystem
from l2d.task import Truth

SETTINGS = {"bins": 10, "curve_points": 11, "labels_shown": 3, "budgets": [10, 50]}


def f64(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def outcome_with(scores, labels, answers, loss=None, truth: Truth | None = None) -> Outcome:
    """The outcome of scores under a loss (vanilla CE), beside the truth where it is known."""
    loss = loss or DeferralLoss("vanilla", "ce", scores.shape[1] - answers.shape[1])
    return replace(outcome_of(scores, labels, answers, loss), truth=truth)


def regret_of(scores, eta, accuracy) -> dict[str, float]:
    """Of scores whose experts all answered."""
    n = len(scores)
    outcome = outcome_with(scores, torch.zeros(n), torch.zeros(n, accuracy.shape[1], dtype=torch.int8))
    return regret(outcome, Truth(eta, accuracy))


def without_backbone(loss, num_classes: int = 4, num_experts: int = 3) -> ScoreSystem:
    return ScoreSystem(lambda _: torch.nn.Identity(), loss, num_classes, num_experts)


def random_truth(seed: int, n: int = 200, num_classes: int = 4, num_experts: int = 3):
    """eta [N, K], an accuracy matrix [J, K], and Acc_j(x) = sum_y eta_y A[j, y], [N, J]."""
    rng = np.random.default_rng(seed)
    eta, matrix = rng.dirichlet(np.full(num_classes, 0.4), n), rng.uniform(0.1, 0.95, (num_experts, num_classes))
    return torch.from_numpy(eta), torch.from_numpy(matrix), torch.from_numpy(eta @ matrix.T)


def random_batch(seed: int, n: int = 60, num_classes: int = 4, num_experts: int = 3, missing: bool = True):
    """Few distinct scores, so that ties are frequent; some answers missing."""
    rng = random.Random(seed)
    scores = [[float(rng.randint(-4, 4)) / 2 for _ in range(num_classes + num_experts)] for _ in range(n)]
    answers = [[rng.randint(-1 if missing else 0, num_classes - 1) for _ in range(num_experts)] for _ in range(n)]
    labels = [rng.randrange(num_classes) for _ in range(n)]
    return torch.tensor(scores), torch.tensor(labels), torch.tensor(answers, dtype=torch.int8)


@pytest.mark.parametrize("seed", range(5))
def test_a_positive_margin_is_the_decision_to_defer(seed):
    scores, labels, answers = random_batch(seed)
    decision = outcome_with(scores, labels, answers).decision
    available = scores.clone()
    available[:, 4:][answers < 0] = -torch.inf
    action = available.argmax(dim=1)
    assert 0 < (action >= 4).sum() < len(action)
    assert torch.equal(torch.where(decision.margin > 0, 4 + decision.expert, decision.predicted), action)


def test_regret_by_hand():
    """Three points of the same eta = [.5, .3, .2], Acc = [.6, .4]: the best is to ask expert 0, at 0.6."""
    scores = torch.tensor([[1.0, 2, 0, 0, 0], [2.0, 1, 0, 0, 0], [0.0, 0, 0, 0, 1]])
    got = regret_of(scores, f64([[0.5, 0.3, 0.2]] * 3), f64([[0.6, 0.4]] * 3))
    # kept with class 1: .5 - .3 lost by the classifier, .6 - .5 by keeping; kept with class 0: .1 by keeping;
    # deferred to expert 1: .6 - .4 by the expert
    expected = {
        "classifier": 0.2,
        "decision": 0.2,
        "expert": 0.2,
        "total": 0.6,
        "expected_system_error": 0.7 + 0.5 + 0.6,
    }
    assert got == pytest.approx({part: 100 * value / 3 for part, value in expected.items()})


@pytest.mark.parametrize("seed", range(20))
def test_the_three_parts_are_what_repairing_each_would_save(seed):
    """A plain loop: repair the class and the expert first, then the decision; the parts add up to the regret."""
    eta, _, accuracy = random_truth(seed)
    scores = torch.randn(len(eta), 7, generator=torch.Generator().manual_seed(seed))
    got = regret_of(scores, eta, accuracy)
    saved = {"classifier": 0.0, "decision": 0.0, "expert": 0.0}
    for theta, p, a in zip(scores.tolist(), eta.tolist(), accuracy.tolist(), strict=True):
        action = max(range(7), key=theta.__getitem__)
        part, mine, better = ("classifier", p[action], max(p)) if action < 4 else ("expert", a[action - 4], max(a))
        saved[part] += (better - mine) / len(eta)
        saved["decision"] += (max(*p, *a) - better) / len(eta)
    assert min(saved.values()) > 0  # every kind of mistake is made
    assert {part: got[part] for part in saved} == pytest.approx({part: 100 * v for part, v in saved.items()})
    assert got["classifier"] + got["decision"] + got["expert"] == pytest.approx(got["total"], abs=1e-9)
    best = bayes_optimum(Truth(eta, accuracy))["system_error"]
    assert got["expected_system_error"] - best == pytest.approx(got["total"], abs=1e-9)


def test_the_bayes_system_has_no_regret():
    eta, _, accuracy = random_truth(0)
    got = regret_of(torch.cat([eta, accuracy], dim=1).log(), eta, accuracy)
    assert all(got[part] == 0 for part in ("total", "classifier", "decision", "expert"))


def test_the_expected_error_is_that_of_the_simulated_system():
    """Labels drawn from eta, answers from A, 400 times a point, through the metrics of every run."""
    eta, matrix, accuracy = random_truth(1, n=300)
    scores = torch.randn(300, 7, generator=torch.Generator().manual_seed(1))
    expected = regret_of(scores, eta, accuracy)["expected_system_error"]
    rng = np.random.default_rng(2)
    labels = (rng.random((300, 400))[:, :, None] > eta.numpy().cumsum(1)[:, None]).sum(2).clip(max=3).ravel()
    answers = torch.from_numpy(simulate(matrix.numpy(), labels, seed=3))
    outcome = outcome_with(scores.repeat_interleave(400, 0), torch.from_numpy(labels), answers)
    played = measure(outcome, METRICS)["system_error"]
    assert played == pytest.approx(expected, abs=5 * 100 * math.sqrt(0.25 / len(labels)))


def test_bayes_quantities_of_a_two_class_mixture_against_numeric_integration():
    """Two Gaussians: along the line through the prototypes x ~ 1/2 N(-d/2, 1) + 1/2 N(d/2, 1), eta_1 = sigmoid(d x)."""
    data = synthetic("two", 2, 1, grid=1, pixel=1, separation=0.8, num_train=2, num_test=40_000, seed=0)
    eta, matrix = data.posterior(data.test.inputs.pixels), f64([[0.95, 0.55], [0.6, 0.8]])
    got = bayes_optimum(Truth(eta, eta @ matrix.T))

    rng = torch.Generator().manual_seed(0)  # the prototypes are the first thing that the dataset's seed gives
    d = (0.8 * torch.randn(2, 3, generator=rng)).diff(dim=0).norm().item()
    x = np.linspace(-12, 12, 20_001)
    density = sum(np.exp(-((x - m) ** 2) / 2) for m in (-d / 2, d / 2)) / 2 / math.sqrt(2 * math.pi)
    eta_1 = 1 / (1 + np.exp(-d * x))
    own = np.maximum(eta_1, 1 - eta_1)
    asked = np.max([(1 - eta_1) * a + eta_1 * b for a, b in matrix.tolist()], axis=0)
    step = x[1] - x[0]
    integral = {
        "system_error": 100 * (1 - (density * np.maximum(own, asked)).sum() * step),
        "coverage": 100 * (density * (own > asked)).sum() * step,
        "classifier_accuracy": 50 * (1 + math.erf(d / 2 / math.sqrt(2))),
    }
    assert 20 < integral["coverage"] < 80
    assert (density * own).sum() * step == pytest.approx(integral["classifier_accuracy"] / 100, abs=1e-6)
    assert got == pytest.approx(integral, abs=5 * 100 * math.sqrt(0.25 / 40_000))


def test_estimators_are_exact_at_the_optimum():
    """The optimal scores in closed form. Vanilla: log [eta, Acc] (CE), logit (OvA). PiCCE, independent experts given y:
    in the order of accuracy, each expert has the probability of being right where all before it are wrong."""
    eta, matrix, accuracy = random_truth(3, n=50)
    by_accuracy = accuracy.argsort(dim=1, descending=True)
    taught = torch.zeros_like(accuracy)
    for i, order in enumerate(by_accuracy.tolist()):
        still_wrong = eta[i].clone()
        for j in order:
            taught[i, j] = (still_wrong * matrix[j]).sum()
            still_wrong *= 1 - matrix[j]
    best = by_accuracy[:, 0]
    for formulation, targets in (("vanilla", accuracy), ("picce", taught)):
        optimum = torch.cat([eta, targets], dim=1)  # [N, K+J]
        for base, scores in (("ce", optimum.log() + 3), ("ova", optimum.logit())):
            loss, answers = DeferralLoss(formulation, base, 4), torch.zeros(50, 3, dtype=torch.int8)
            outcome = outcome_with(scores, torch.zeros(50), answers, loss)
            estimated = outcome.beliefs
            torch.testing.assert_close(estimated[:, :4], eta, rtol=0, atol=1e-9)
            assert torch.equal(outcome.decision.expert, best)
            errors = belief_errors(outcome, Truth(eta, accuracy))
            assert errors == pytest.approx({"class_probability_mae": 0, "expert_accuracy_mae": 0}, abs=1e-6)
            if formulation == "vanilla":
                torch.testing.assert_close(estimated[:, 4:], accuracy, rtol=0, atol=1e-9)
            implied = without_backbone(loss).fitted(scores)
            torch.testing.assert_close(implied, optimum / optimum.sum(1, keepdim=True), rtol=0, atol=1e-9)


def test_errors_of_estimates_by_hand():
    scores = f64([[0.7, 0.3, 0.9, 0.1], [0.5, 0.5, 0.2, 1.4]]).log()  # vanilla CE believes exp(scores) here
    outcome = outcome_with(scores, torch.zeros(2), torch.zeros(2, 2, dtype=torch.int8))
    got = belief_errors(outcome, Truth(f64([[0.6, 0.4], [0.9, 0.1]]), f64([[0.8, 0.3], [0.5, 0.7]])))
    # classes: .1, .1, .4, .4; experts: .9 against .8, and 1.4, which counts as 1, against .7
    assert got == pytest.approx({"class_probability_mae": 25, "expert_accuracy_mae": 20})


@pytest.mark.parametrize("base", ["ce", "ova"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_scores_give_finite_beliefs_and_a_distribution(base, dtype):
    """Also where every sigmoid underflows to 0."""
    scores = 1e4 * torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=dtype)] * 4)
    beliefs = DeferralLoss("vanilla", base, 2).beliefs(scores)
    implied = implied_distribution(beliefs, scores)
    assert beliefs.isfinite().all()
    torch.testing.assert_close(implied.sum(dim=1), torch.ones(16, dtype=dtype))


@pytest.mark.parametrize("seed", range(5))
def test_reliability_equals_a_plain_loop(seed):
    rng = random.Random(seed)
    bins, n = rng.randint(1, 12), rng.randint(1, 80)
    confidence = [rng.choice([rng.random(), 0.0, 1.0, 1.7]) for _ in range(n)]
    right = [rng.random() < 0.6 for _ in range(n)]
    got = reliability(torch.tensor(confidence), torch.tensor(right), bins)
    ece = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = [i for i, c in enumerate(confidence) if low <= min(c, 1) < high or (b == bins - 1 and c >= 1)]
        assert got["count"][b] == len(inside)
        if not inside:
            assert got["confidence"][b] is None and got["accuracy"][b] is None
            continue
        mean, share = sum(min(confidence[i], 1) for i in inside) / len(inside), sum(right[i] for i in inside)
        assert got["confidence"][b] == pytest.approx(100 * mean, abs=1e-4)
        assert got["accuracy"][b] == pytest.approx(100 * share / len(inside))
        ece += len(inside) / n * abs(mean - share / len(inside))
    assert got["ece"] == pytest.approx(100 * ece, abs=1e-4)


def test_calibration_is_of_the_predicted_class_and_of_the_expert_who_would_be_asked():
    """Two classes, two experts; on the second sample expert 1 has no answer, on the third nobody has."""
    answers = torch.tensor([[1, 0], [0, -1], [-1, -1]])
    scores = f64([[0.75, 0.25, 0.3, 0.9], [0.4, 0.6, 0.35, 0.9], [0.75, 0.25, 0.3, 0.9]]).log()  # exp is believed
    got = calibration(outcome_with(scores, torch.tensor([0, 0, 1]), answers), bins=2)
    # classifier: .75 right, .6 wrong, .75 wrong; experts: .9 (expert 1, right), .35 (expert 0, right)
    assert got["classifier"]["count"] == [0, 3]
    assert got["classifier"]["ece"] == pytest.approx(100 * (0.7 - 1 / 3), abs=1e-4)
    assert got["expert"]["count"] == [1, 1]
    assert got["expert"]["ece"] == pytest.approx(100 * (0.65 + 0.1) / 2, abs=1e-4)


def test_a_calibrated_classifier_has_a_small_ece_and_an_overconfident_one_has_not():
    confidence = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    right = torch.rand(20_000, generator=torch.Generator().manual_seed(1)) < confidence
    assert reliability(confidence, right, 10)["ece"] < 2
    assert reliability(confidence.sqrt(), right, 10)["ece"] > 10


def test_underfitting_by_hand():
    """K = 2, J = 2, all scores log-odds by hand: CE softmax [1, 2, 3, 4] / 10; y = 1, both experts right."""
    scores = torch.tensor([[1.0, 2, 3, 4]]).log()
    case = (scores, torch.tensor([1]), torch.tensor([[1, 1]]))
    vanilla = underfitting(DeferralLoss("vanilla", "ce", 2), *case)
    # gradient (1 + 2) softmax - [0, 1, 1, 1] = [.3, -.4, -.1, .2]
    assert vanilla == pytest.approx({"expert_aggregation": 2, "label_margin": 10, "class_gradient_share": 70}, rel=1e-5)
    picce = underfitting(DeferralLoss("picce", "ce", 2), *case)
    # gradient 2 softmax - [0, 1, 0, 1] = [.2, -.6, .6, -.2]
    assert picce == pytest.approx({"expert_aggregation": 1, "label_margin": 10, "class_gradient_share": 50}, rel=1e-5)
    one_vs_all = underfitting(DeferralLoss("vanilla", "ova", 2), *case)
    # sigmoid [1/2, 2/3, 3/4, 4/5]: margin (2/3 - 1/2) / sum; gradient [1/2, -1/3, -1/4, -1/5]
    assert one_vs_all["label_margin"] == pytest.approx(100 / 6 / (1 / 2 + 2 / 3 + 3 / 4 + 4 / 5), rel=1e-5)
    share = (1 / 2 + 1 / 3) / (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
    assert one_vs_all["class_gradient_share"] == pytest.approx(100 * share, rel=1e-5)


def test_gradients_of_different_samples_do_not_cancel():
    """OvA at scores 0: every column gets 1/2 from each sample, the classes with either sign: they are 2 of 3."""
    answers = torch.tensor([[0], [1]])
    got = underfitting(DeferralLoss("vanilla", "ova", 2), torch.zeros(2, 3), torch.tensor([0, 1]), answers)
    assert got["class_gradient_share"] == pytest.approx(200 / 3, rel=1e-5)


def test_the_aggregation_is_the_sum_of_accuracies_or_the_chance_that_someone_is_right():
    scores, labels, answers = random_batch(0, n=500)
    metrics = measure(outcome_with(scores, labels, answers), METRICS)
    vanilla, picce = (
        underfitting(DeferralLoss(f, "ce", 4), scores, labels, answers)["expert_aggregation"]
        for f in ("vanilla", "picce")
    )
    accuracies = [sum(int(a == y) for a, y in zip(answers[:, j], labels, strict=True)) / 500 for j in range(3)]
    assert vanilla == pytest.approx(sum(accuracies), rel=1e-5)
    assert picce == pytest.approx(metrics["any_expert_correct"] / 100, rel=1e-5)


def test_underfitting_leaves_the_scores_and_their_graph_alone():
    scores, labels, answers = random_batch(1)
    scores.requires_grad_()
    with torch.no_grad():
        underfitting(DeferralLoss("picce", "ova", 4), scores, labels, answers)
    assert scores.grad is None and scores.requires_grad


def test_vanilla_flattens_the_posterior_by_one_plus_the_sum_of_accuracies():
    """Five labels and three experts right 0.8 of the time, the scores optimal for the vanilla cross-entropy."""
    eta = f64([[0.05, 0.5, 0.1, 0.25, 0.1]])
    scores = torch.cat([eta, f64([[0.8, 0.8, 0.8]])], dim=1).log()
    loss, accuracy = DeferralLoss("vanilla", "ce", 5), f64([[0.8, 0.8, 0.8]])
    outcome = outcome_with(scores, torch.tensor([1]), torch.zeros(1, 3, dtype=torch.int8), loss, Truth(eta, accuracy))
    got = posterior_profile(outcome, without_backbone(loss, 5).fitted(scores), 3)
    assert got["before"] == pytest.approx([50, 25, 10])
    assert got["true"] == pytest.approx([50, 25, 10])
    assert got["after"] == pytest.approx([50 / 3.4, 25 / 3.4, 10 / 3.4])


@pytest.mark.parametrize("seed", range(10))
def test_the_curve_equals_a_plain_loop_over_prices(seed):
    scores, labels, answers = random_batch(seed, n=40)
    outcome = outcome_with(scores, labels, answers)
    sample, margin = outcome.decision, outcome.decision.margin
    coverage, accuracy = coverage_curve(outcome)
    expected = set()
    for t in [math.inf, *sorted(math.nextafter(m, -math.inf) for m in margin.tolist() if m > -math.inf)]:
        kept, right = 0, 0
        for i in range(40):
            defer = margin[i] > t
            kept += not defer
            right += (answers[i, sample.expert[i]] if defer else sample.predicted[i]).item() == labels[i].item()
        expected.add((100 * kept / 40, 100 * right / 40))
    assert coverage.tolist() == [c for c, _ in sorted(expected)]
    assert accuracy.tolist() == [a for _, a in sorted(expected)]
    metrics = measure(outcome, METRICS)  # price 0 is the system itself
    assert (metrics["coverage"], 100 - metrics["system_error"]) in expected


def test_the_grid_lies_on_the_curve_and_is_empty_where_it_does_not_reach():
    scores, labels, answers = random_batch(0, n=40, missing=False)
    answers[:8] = -1  # nobody can be asked about these: the curve begins at coverage 20
    outcome = outcome_with(scores, labels, answers)
    coverage, accuracy = (values.tolist() for values in coverage_curve(outcome))
    got = curve_summary(outcome, points=11)
    assert got["coverage"] == pytest.approx(list(range(0, 101, 10))) and got["optimum"] is None
    assert coverage[0] == 20 and got["accuracy"][:2] == [None, None]
    assert got["accuracy"][2] == accuracy[0] and got["accuracy"][-1] == accuracy[-1]


def test_experts_without_any_answer_are_never_asked():
    scores, labels, answers = random_batch(2)
    outcome = outcome_with(scores, labels, torch.full_like(answers, -1))
    coverage, accuracy = coverage_curve(outcome)
    assert coverage.tolist() == [100]
    assert curve_summary(outcome, 3)["accuracy"] == [None, None, accuracy.item()]
    (row,) = under_budget(outcome, outcome, [50])
    assert row["coverage"] == 100 and row["price"] is None


@pytest.mark.parametrize("at_most", [0, 5, 10, 33.3, 50, 99])
@pytest.mark.parametrize("ties", [False, True])
def test_the_budget_is_kept_on_held_out_data_and_used_up(at_most, ties):
    margin = torch.randn(200, generator=torch.Generator().manual_seed(0))
    margin = (2 * margin).round() if ties else margin
    t = price_for(margin, at_most)
    assert 100 * sum(m > t for m in margin.tolist()) / 200 <= at_most
    below = max((m for m in margin.tolist() if m < t), default=-math.inf)  # the next lower price breaks it
    assert 100 * sum(m > below for m in margin.tolist()) / 200 > at_most


def test_prices_come_from_held_out_data_alone():
    """On the test data the experts' scores are higher, so the same price defers more there than the budget says."""
    scores, labels, answers = random_batch(3, n=400, missing=False)
    held_out = outcome_with(scores, labels, answers)
    higher = scores + torch.tensor([0.0] * 4 + [0.5] * 3)
    same, shifted = (under_budget(outcome_with(s, labels, answers), held_out, [20])[0] for s in (scores, higher))
    assert same["price"] == shifted["price"]
    assert same["coverage"] >= 80 > shifted["coverage"]
    sample, wrong = held_out.decision, 0
    for i in range(400):
        defer = sample.margin[i] > same["price"]
        wrong += (answers[i, sample.expert[i]] if defer else sample.predicted[i]).item() != labels[i].item()
    assert same["system_error"] == pytest.approx(100 * wrong / 400)


@pytest.mark.parametrize("formulation", ["vanilla", "picce", "pice"])
@pytest.mark.parametrize("base", ["ce", "ova"])
def test_the_full_evaluation_is_json_for_every_loss(formulation, base):
    eta, _, accuracy = random_truth(4, n=60)
    batch, unseen = random_batch(4, missing=False), random_batch(5)
    unseen[0][:, 4:] += 0.25  # so that its margins are nowhere those of the test data
    loss = DeferralLoss(formulation, base, 4)
    held_out = outcome_with(*unseen, loss)
    outcome = outcome_with(*batch, loss, Truth(eta, accuracy))
    got = full_evaluation(outcome, without_backbone(loss), held_out, **SETTINGS)
    assert json.loads(json.dumps(got, allow_nan=False)) == got
    assert all(value is not None for value in got.values())
    assert [row["defer_at_most"] for row in got["budget"]] == [10, 50]
    margin = held_out.decision.margin
    assert [row["price"] for row in got["budget"]] == [price_for(margin, at_most) for at_most in (10, 50)]
    assert got["regret"]["total"] > 0


def test_unknown_parts_of_the_full_evaluation_are_none():
    """No truth, no held-out data, and a loss whose base has no estimator; then one that is not made of two parts."""

    def squared(scores, labels, weights):
        return scores.square().sum(dim=1) * (1 + weights.sum(dim=1))

    def evaluated(loss):
        return full_evaluation(outcome_with(*random_batch(6), loss), without_backbone(loss), None, **SETTINGS)

    got = evaluated(DeferralLoss("vanilla", squared, 4))
    unknown = {"regret", "estimates", "calibration", "posterior", "budget"}
    assert {key for key, value in got.items() if value is None} == unknown
    assert got["underfitting"]["label_margin"] is None
    assert got["underfitting"]["expert_aggregation"] > 0
    whole = evaluated(lambda scores, labels, answers: scores[:, :4].square().sum())
    assert whole["underfitting"] == {
        "expert_aggregation": None,
        "label_margin": None,
        "class_gradient_share": pytest.approx(100),
    }


@pytest.mark.parametrize(
    "wrong", ["bins=0", "curve_points=1", "labels_shown=0", "budgets=[10, 101]", "budgets=[x]", "bins=null"]
)
def test_settings_that_cannot_work_are_refused_by_key_and_value(composed, wrong):
    cfg = composed("evaluation=full", f"evaluation.{wrong}")
    loss = DeferralLoss("vanilla", "ce", 4)
    offered = {"outcome": outcome_with(*random_batch(7), loss), "held_out": None, "system": without_backbone(loss)}
    with pytest.raises(UserError, match=re.escape(f"evaluation.{wrong.partition('=')[0]}=")):
        build(cfg, "evaluation", **offered)
