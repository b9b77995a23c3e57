"""The decision: argmax of utilities, equal to argmax of scores where nothing is charged, and monotone in what is."""

import itertools
import random
import sys

import pytest
import torch

from l2d import train
from l2d.decisions import decide
from l2d.errors import UserError
from l2d.evaluation import outcome_of
from l2d.losses import DeferralLoss

K, J = 3, 2
LOSSES = list(itertools.product(("vanilla", "picce", "pice"), ("ce", "ova")))


def actions(decision) -> list[int]:
    """k for a prediction, K + j for a question."""
    asked = decision.asked.int().argmax(dim=1)
    return torch.where(decision.deferred, K + asked, decision.predicted).tolist()


def first_highest(row: list[float]) -> int:
    return max(range(len(row)), key=lambda a: (row[a], -a))


def scores_of_all_kinds() -> torch.Tensor:
    """Random ones of every size, all combinations of ties and +-1e4, and neighbours in float32."""
    rng = torch.Generator().manual_seed(0)
    random_ = [size * torch.randn(400, K + J, generator=rng) for size in (1e-3, 1, 10, 40, 100, 1e4)]
    extreme = torch.tensor(list(itertools.product((-1e4, -30.0, 0.0, 30.0, 1e4), repeat=K + J)))
    near = torch.randn(400, 1, generator=rng) * torch.tensor([1, 20, 50, 90.0]).repeat(100)[:, None]
    steps = torch.randint(-2, 3, (400, K + J), generator=rng).int()
    neighbours = (near.expand(-1, K + J).contiguous().view(torch.int32) + steps).view(torch.float32)  # ulps apart
    return torch.cat([*random_, extreme, neighbours])


@pytest.mark.parametrize(("formulation", "base"), LOSSES)
def test_without_costs_the_decision_is_the_argmax_of_the_scores(formulation, base):
    scores = scores_of_all_kinds()
    answers = torch.zeros(len(scores), J, dtype=torch.int8)
    outcome = outcome_of(scores, torch.zeros(len(scores)), answers, DeferralLoss(formulation, base, K))
    assert outcome.beliefs.isfinite().all() and (outcome.beliefs >= 0).all() and (outcome.beliefs <= 1).all()
    assert actions(outcome.decision) == [first_highest(row) for row in scores.tolist()]
    assert torch.equal(outcome.decision.margin > 0, outcome.decision.deferred)


@pytest.mark.parametrize(("formulation", "base"), LOSSES)
def test_an_unavailable_expert_is_not_asked(formulation, base):
    scores = scores_of_all_kinds()
    answers = torch.randint(-1, 2, (len(scores), J), generator=torch.Generator().manual_seed(1))
    outcome = outcome_of(scores, torch.zeros(len(scores)), answers, DeferralLoss(formulation, base, K))
    expected = []
    for row, m in zip(scores.tolist(), answers.tolist(), strict=True):
        expected.append(first_highest(row[:K] + [t if a >= 0 else -torch.inf for t, a in zip(row[K:], m, strict=True)]))
    assert actions(outcome.decision) == expected


def test_utilities_equal_a_plain_loop():
    """Costs and prices are subtracted from the experts' accuracies; nobody who is absent is asked."""
    rng = random.Random(0)
    for _ in range(50):
        beliefs = [[rng.choice([0, 0.25, 0.5, 0.75, 1]) for _ in range(K + J)] for _ in range(20)]
        costs, prices = ([rng.choice([0, 0.25]) for _ in range(J)] for _ in range(2))
        available = [[rng.random() < 0.7 for _ in range(J)] for _ in range(20)]
        got = decide(
            torch.tensor(beliefs).double(),
            K,
            costs=torch.tensor(costs),
            prices=torch.tensor(prices),
            available=torch.tensor(available),
        )
        for i, row in enumerate(beliefs):
            utility = row[:K] + [
                b - c - p if there else -torch.inf
                for b, c, p, there in zip(row[K:], costs, prices, available[i], strict=True)
            ]
            assert actions(got)[i] == first_highest(utility)


def test_a_cost_above_one_never_defers_and_coverage_never_falls_as_a_cost_grows():
    beliefs = torch.rand(500, K + J, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = [
        int((~decide(beliefs, K, costs=torch.full((J,), cost)).deferred).sum()) for cost in (0, 0.1, 0.3, 0.6, 1.01)
    ]
    assert kept == sorted(kept) and kept[0] < kept[-1] == 500


def test_a_common_price_is_a_threshold_on_the_gain():
    beliefs = torch.rand(300, K + J, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    free = decide(beliefs, K)
    priced = decide(beliefs, K, prices=torch.full((J,), 0.2))
    assert torch.equal(free.at_price(0.2).asked, priced.asked)
    assert 0 < priced.deferred.sum() < free.deferred.sum()


def test_the_probability_gap_orders_deferrals_not_the_ratio_of_beliefs():
    """x1: eta .90, Acc .95 (ratio 1.06, gap .05); x2: eta .20, Acc .22 (ratio 1.10, gap .02): x1 is worth more."""
    beliefs = torch.tensor([[0.90, 0.05, 0.05, 0.95, 0.0], [0.20, 0.15, 0.15, 0.22, 0.0]], dtype=torch.float64)
    first, second = decide(beliefs, K).margin.tolist()
    assert first == pytest.approx(0.05) and second == pytest.approx(0.02)


def test_spending_a_budget_by_gap_is_best_in_expectation_at_every_coverage():
    """With the truth as beliefs, no other order of deferring expects a higher accuracy: against 200 random orders, the
    ratio and the difference of logits."""
    rng = torch.Generator().manual_seed(0)
    eta = torch.rand(100, K, generator=rng, dtype=torch.float64)
    eta /= eta.sum(dim=1, keepdim=True)
    accuracy = torch.rand(100, J, generator=rng, dtype=torch.float64)
    decision = decide(torch.cat([eta, accuracy], dim=1), K)
    own, best = eta.max(dim=1).values, accuracy.max(dim=1).values

    def expected(order: torch.Tensor) -> torch.Tensor:
        return own.sum() + (best - own)[order].cumsum(dim=0)

    ours = expected(decision.margin.argsort(descending=True))
    orders = [torch.randperm(100, generator=rng) for _ in range(200)]
    orders += [(best / own).argsort(descending=True), (best.logit() - own.logit()).argsort(descending=True)]
    assert all((ours >= expected(order) - 1e-12).all() for order in orders)
    assert (ours > expected(orders[-2]) + 1e-3).any()


COSTS = (
    "dataset.num_train=1000",
    "dataset.num_test=400",
    "trainer.epochs=5",
    "backbone.hidden=32",
    "experts.num=3",
    "loss=ce",
)


def test_what_an_expert_costs_decides_whether_it_is_asked(composed, tmp_path):
    """Decided after the training, so the run is the same; a cost of zero changes nothing, and above one nobody is asked."""
    free = train.run(with_output(composed(*COSTS), tmp_path))
    (folder,) = tmp_path.glob("*/*")
    coverage = [free["coverage"]]
    for cost in (0, 0.2, 0.5, 1.5):
        priced = train.run(with_output(composed(*COSTS, f"experts.costs={cost}"), tmp_path))
        assert cost != 0 or priced == free
        coverage.append(priced["coverage"])
    assert coverage == sorted(coverage) and coverage[-1] == 100 > coverage[0]
    one = train.run(with_output(composed(*COSTS, "experts.costs=[2,0,2]"), tmp_path))
    assert one["deferred_to"][0] == one["deferred_to"][2] == 0 < one["deferred_to"][1]
    assert list(tmp_path.glob("*/*")) == [folder]


@pytest.mark.parametrize("costs", ["[0.1,0.2]", "-0.1", "[0.1,nan,0.2]", "cheap"])
def test_costs_that_cannot_be_meant_are_refused_before_the_training(composed, tmp_path, costs):
    with pytest.raises(UserError, match=r"experts\.costs="):
        train.run(with_output(composed(*COSTS, f"experts.costs={costs}"), tmp_path))
    assert not list(tmp_path.rglob("result.json"))


def with_output(cfg, folder):
    cfg.output_dir = str(folder)
    return cfg


@pytest.mark.parametrize("at_once", [1, 7 * (K + J)])
def test_outcomes_do_not_depend_on_how_many_numbers_are_computed_with_at_once(monkeypatch, at_once):
    scores, loss = scores_of_all_kinds()[::50], DeferralLoss("vanilla", "ce", K)
    labels, answers = (
        torch.zeros(len(scores), dtype=torch.long),
        torch.arange(len(scores) * J).view(-1, J) % (K + 1) - 1,
    )
    module = sys.modules[decide.__module__]
    monkeypatch.setattr(module, "AT_ONCE", len(scores) * (K + J))  # all of them
    whole = outcome_of(scores, labels, answers, loss)
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    parts = outcome_of(scores, labels, answers, loss)
    torch.testing.assert_close(parts.beliefs, whole.beliefs, rtol=0, atol=0)
    for some, all_of_them in zip(parts.decision[:4], whole.decision[:4], strict=True):
        assert torch.equal(some, all_of_them)
