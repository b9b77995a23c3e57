"""What asking and erring cost: decisions, system_cost, regret and optimum with costs; loss matrices by hand."""

import json
from dataclasses import replace

import pytest
import torch

import l2d.evaluate
from l2d.decisions import Cases, Deployment, best
from l2d.decisions.confusion import confusion_of
from l2d.errors import UserError
from l2d.evaluate import main
from l2d.evaluation import METRICS, bayes_optimum, measure, outcome_of
from l2d.evaluation.regret import regret
from l2d.losses import DeferralLoss
from l2d.task import Truth
from l2d.train import run


def f64(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def outcome_with(costs, seed: int = 0, count: int = 200):
    """The outcome of random scores of 4 classes and 3 experts under costs, and the truth about its cases."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, 7, generator=rng)
    labels, answers = torch.randint(0, 4, (count,), generator=rng), torch.randint(0, 4, (count, 3), generator=rng)
    outcome = outcome_of(scores, labels, answers, DeferralLoss("vanilla", "ova", 4))
    cases = replace(outcome.cases(), deployment=Deployment(["a", "b", "c"], costs))
    eta = torch.rand(count, 4, generator=rng).double()
    truth = Truth(eta / eta.sum(dim=1, keepdim=True), torch.rand(count, 3, generator=rng).double())
    return replace(outcome, deployment=cases.deployment, decision=cases.decide()), truth


def test_costs_of_zero_leave_every_bit_of_the_decision():
    free, zero = outcome_with(None)[0], outcome_with(torch.zeros(3).double())[0]
    assert all(torch.equal(a, b) for a, b in zip(free.decision[:4], zero.decision[:4], strict=True))
    assert measure(free, METRICS) == measure(zero, METRICS) and measure(zero, METRICS)["system_cost"] is None


def test_coverage_never_falls_as_a_common_cost_grows_and_above_one_nobody_is_asked():
    kept = [
        int((~outcome_with(torch.full((3,), c).double())[0].decision.deferred).sum()) for c in (0, 0.05, 0.2, 0.5, 1.01)
    ]
    assert kept == sorted(kept) and kept[0] < kept[-1] == 200


@pytest.mark.parametrize("costs", [[0.1, 0.1, 0.1], [0.0, 0.3, 0.05]])
def test_the_system_cost_is_the_error_and_what_was_spent(costs):
    outcome, _ = outcome_with(f64(costs))
    metrics = measure(outcome, METRICS)
    spent = sum(c * share for c, share in zip(costs, metrics["deferred_to"], strict=True))
    assert spent > 0 and metrics["system_cost"] == pytest.approx(metrics["system_error"] + spent)
    assert metrics["questions_asked"] == pytest.approx(100 - metrics["coverage"])


@pytest.mark.parametrize("seed", range(5))
def test_regret_with_costs_is_the_distance_to_the_optimum_in_parts_that_add_up(seed):
    costs = f64([0.02, 0.2, 0.4])
    outcome, truth = outcome_with(costs, seed)
    got, optimum = regret(outcome, truth), bayes_optimum(truth, costs)
    parts = [got[part] for part in ("classifier", "decision", "expert")]
    assert min(parts) >= 0 and sum(parts) == pytest.approx(got["total"]) and got["total"] > 0
    spent = 100 * outcome.spent.mean().item()
    assert got["expected_system_error"] + spent - optimum["system_cost"] == pytest.approx(got["total"])


def test_the_optimum_with_costs_by_hand():
    """.6 against .7 - .2: kept. .5 against max(.9 - .2, .65 - .0): expert 0 is asked. Costs turn the third to expert 1."""
    truth = Truth(f64([[0.6, 0.4], [0.5, 0.5], [0.5, 0.5]]), f64([[0.7, 0.5], [0.9, 0.65], [0.8, 0.75]]))
    got = bayes_optimum(truth, f64([0.2, 0.0]))
    assert got["system_error"] == pytest.approx(100 * (0.4 + 0.1 + 0.25) / 3)
    assert got["system_cost"] == pytest.approx(100 * (0.4 + 0.3 + 0.25) / 3)
    assert got["coverage"] == pytest.approx(100 / 3)


MATRIX = f64([[0, 0.1], [1, 0]])  # a false alarm costs a tenth of a missed fraud


def fraud(beliefs, matrix=MATRIX) -> Cases:
    """One expert who misses no fraud, and takes one honest case in five for one: 40 held-out cases of each class."""
    labels = torch.arange(80) % 2
    answers = torch.where(torch.arange(80) % 10 == 0, 1, labels)[:, None]
    there = torch.ones(80, 1, dtype=torch.bool)
    deployment = Deployment(["ann"], loss_matrix=matrix)
    held_out = Cases(torch.full((80, 3), 0.5).double(), answers, there, torch.zeros(80, 3), deployment, labels)
    beliefs = f64(beliefs)
    some = torch.zeros(len(beliefs), 1, dtype=torch.long)
    return Cases(beliefs, some, some >= 0, beliefs, deployment, held_out=held_out)


def test_fraud_by_hand():
    """eta = (.8, .2): to answer honest costs .2 x 1, fraud .8 x .1 = .08, though honest is more probable."""
    cases = fraud([[0.8, 0.2, 0.5], [0.95, 0.05, 0.5], [0.8, 0.2, 0.95], [0.8, 0.2, 0.3]])
    decision = best(cases)
    assert decision.predicted.tolist() == [1, 0, 1, 1]  # .95 x .1 = .095 is more than .05 x 1
    honest, guilty = confusion_of(cases.held_out)[0].tolist()
    lost, wrong = 0.8 * honest[1] * 0.1 + 0.2 * guilty[0], 0.8 * honest[1] + 0.2 * guilty[0]
    severity = lost / wrong  # near .1: its errors are false alarms
    assert 0.1 < severity < 0.2
    expected = [0.08 - (1 - accuracy) * severity for accuracy in (0.5, 0.95, 0.3)]
    assert decision.gain[[0, 2, 3], 0].tolist() == pytest.approx(expected)
    assert decision.asked[:, 0].tolist() == [expected[0] > 0, False, True, expected[2] > 0]


@pytest.mark.parametrize("normalised", [True, False])
def test_a_matrix_of_equal_errors_decides_as_without(normalised):
    """Also where class probabilities do not add up to 1, as one-versus-all gives them."""
    rng = torch.Generator().manual_seed(0)
    beliefs = torch.rand(500, 3, generator=rng, dtype=torch.float64)
    if normalised:
        beliefs[:, :2] /= beliefs[:, :2].sum(dim=1, keepdim=True)
    plain, same = best(fraud(beliefs.tolist(), None)), best(fraud(beliefs.tolist(), 1 - torch.eye(2).double()))
    assert torch.equal(plain.asked, same.asked) and torch.equal(plain.predicted, same.predicted)
    assert torch.allclose(plain.gain, same.gain)


def test_a_loss_matrix_needs_held_out_cases():
    with pytest.raises(UserError, match=r"rule\.loss_matrix .* held_out"):
        best(replace(fraud([[0.5, 0.5, 0.5]]), held_out=None))


SETTING = (
    "dataset.num_train=300", "dataset.num_test=100", "dataset.num_classes=3", "dataset.group_size=3", "experts.num=2",
    "trainer.epochs=8", "backbone.hidden=16", "loss=ova", "held_out=0.3",
)  # fmt: skip
LOSSES = "rule.loss_matrix=[[0,1,1],[5,0,1],[1,1,0]]"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (("rule.loss_matrix=[[0,1],[1,0]]",), r"rule\.loss_matrix=\[\[0, 1\], \[1, 0\]\] must be 3"),
        (("rule.loss_matrix=[[0,1,1],[1,0],[1,1,0]]",), r"rule\.loss_matrix="),
        (("rule.loss_matrix=[[0,-1,1],[1,0,1],[1,1,0]]",), r"rule\.loss_matrix=.*-1"),
        (("rule.loss_matrix=[[0,nan,1],[1,0,1],[1,1,0]]",), r"rule\.loss_matrix=.*nan"),
        (("rule.loss_matrix=[[0.5,1,1],[1,0,1],[1,1,0]]",), r"rule\.loss_matrix=.*0\.5"),
        (("rule.loss_matrix=[[0,a,1],[1,0,1],[1,1,0]]",), r"rule\.loss_matrix=.*a"),
        (("rule.loss_matrix=2",), r"rule\.loss_matrix=2"),
        ((LOSSES, "held_out=0"), r"rule\.loss_matrix .* held_out=0"),
        ((LOSSES, "loss=picce_ce"), r"rule\.loss_matrix .* loss=picce_ce"),
    ],
)
def test_a_loss_matrix_that_cannot_be_meant_is_refused_before_the_training(composed, tmp_path, changes, named):
    with pytest.raises(UserError, match=named):
        run(composed(*SETTING, *changes, f"output_dir={tmp_path}"))
    assert not list(tmp_path.rglob("result.json"))


def test_a_run_is_evaluated_under_costs_and_losses_from_what_it_kept(composed, tmp_path, monkeypatch, capfd):
    """No model is read. With losses the budgets have prices in the same units: none is kept at a price of another scale."""
    metrics = run(composed(*SETTING, LOSSES, "trainer.eval_every=1", f"output_dir={tmp_path}"))
    (folder,) = tmp_path.glob("*/*")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(l2d.evaluate, "from_weights", None)

    def evaluated(*changes):
        main([str(folder), *changes])
        return json.loads((folder / "evaluation.json").read_text())

    losses = evaluated("evaluation=full", "evaluation.budgets=[10]")
    assert losses["metrics"] == metrics and metrics["system_cost"] > metrics["system_error"]
    assert losses["evaluation"]["regret"] is None and losses["evaluation"]["budget"][0]["coverage"] >= 75
    costs = evaluated("rule=best", "experts.costs=[0.1,0.3]", "evaluation=full")
    assert costs["source"] == "outcome" and costs["metrics"]["system_cost"] >= costs["metrics"]["system_error"]
    assert costs["bayes"]["system_cost"] >= costs["bayes"]["system_error"]
    capped = evaluated("rule=caps", "rule.caps=10", LOSSES)
    assert capped["decision"]["limits"][0]["held_out"] <= 10
