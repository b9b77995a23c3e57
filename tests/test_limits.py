"""Limits on asking: allocations against brute force, a solver and greedy orders; budgets, caps and batches; who is absent."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import l2d.evaluate
from l2d.decisions import Cases, Deployment, allocate, assign, best, budget, caps, decide
from l2d.errors import UserError
from l2d.evaluate import main
from l2d.evaluation import outcome_of
from l2d.evaluation.absence import fewer_experts
from l2d.evaluation.again import evaluate_kept
from l2d.evaluation.constrained import constrained
from l2d.evaluation.full import full_evaluation
from l2d.evaluation.presence import present
from l2d.losses import DeferralLoss
from l2d.systems import ScoreSystem
from l2d.task import Truth
from l2d.train import run

INF = torch.inf


def free_decision(gain) -> "decide":
    """Of gains [N, J] over a class that is certainly wrong."""
    gain = torch.as_tensor(gain, dtype=torch.float64)
    return decide(torch.cat([gain.new_zeros(len(gain), 1), gain], dim=1), 1, available=gain > -INF)


def worth(gain, asked) -> float:
    return torch.where(asked, torch.as_tensor(gain, dtype=torch.float64), 0).sum().item()


def check(gain, room, allocation) -> None:
    """The limits are kept, and the prices prove that nothing better does."""
    load = allocation.asked.sum(dim=0)
    assert (load <= room).all() and (allocation.asked.sum(dim=1) <= 1).all()
    assert (allocation.prices >= 0).all() and (allocation.prices[load < room] == 0).all()
    assert abs(allocation.gap) < 1e-9


@pytest.mark.parametrize("seed", range(60))
def test_an_allocation_is_the_best_of_all(seed):
    """Few distinct gains, so that ties are frequent; some experts are absent, some have no time."""
    rng = np.random.default_rng(seed)
    count, experts = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    gain = rng.integers(-2, 5, (count, experts)) / 4 if seed % 2 else rng.normal(size=(count, experts))
    gain[rng.random(gain.shape) < 0.15] = -np.inf
    room = torch.tensor([float(rng.choice([0, 1, 2, np.inf])) for _ in range(experts)])
    highest = 0.0
    for choice in itertools.product(range(experts + 1), repeat=count):
        if all(choice.count(j) <= room[j] for j in range(experts)):
            highest = max(highest, sum(gain[i, j] for i, j in enumerate(choice) if j < experts))
    allocation = allocate(free_decision(gain), room)
    check(gain, room, allocation)
    assert worth(gain, allocation.asked) == pytest.approx(highest, abs=1e-12)


@pytest.mark.parametrize("kind", ["free", "alike", "by class"])
def test_an_allocation_is_as_good_as_that_of_a_linear_program_and_no_order_of_serving_is_better(kind):
    """`alike`: the experts differ by noise alone; `by class`: cases of a class have the same gains."""
    rng = np.random.default_rng(0)
    n, j = 150, 6
    gain = {
        "free": rng.beta(6, 2, (n, j)) - rng.beta(5, 2, (n, 1)),
        "alike": rng.beta(6, 2, (1, j)) - rng.beta(5, 2, (n, 1)) + 1e-4 * rng.normal(size=(n, j)),
        "by class": rng.beta(6, 2, (5, j))[rng.integers(0, 5, n)] - rng.beta(5, 2, (n, 1)).round(1),
    }[kind]
    room = torch.tensor([3.0, 5, 8, 0, 10, 2])
    limits = np.concatenate([np.kron(np.eye(n), np.ones(j)), np.kron(np.ones(n), np.eye(j))])
    solved = linprog(-gain.ravel(), A_ub=limits, b_ub=np.append(np.ones(n), room.numpy()))
    allocation = allocate(free_decision(gain), room)
    check(gain, room, allocation)
    value = worth(gain, allocation.asked)
    assert value == pytest.approx(-solved.fun, abs=1e-9)
    for order in [np.arange(n), (-gain.max(axis=1)).argsort(), *(rng.permutation(n) for _ in range(50))]:
        left, served = room.tolist(), 0.0
        for i in order:
            e = max((e for e in range(j) if left[e]), key=lambda e, i=i: gain[i, e], default=None)
            if e is not None and gain[i, e] > 0:
                left[e] -= 1
                served += gain[i, e]
        assert value >= served - 1e-9


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_an_allocation_does_not_depend_on_the_unit_of_gains(size):
    gain = np.random.default_rng(0).normal(size=(200, 5))
    room = torch.tensor([5.0, 9, 3, 0, 20])
    one, other = allocate(free_decision(gain), room), allocate(free_decision(size * gain), room)
    assert torch.equal(one.asked, other.asked) and torch.allclose(size * one.prices, other.prices)


def test_limits_that_are_kept_anyway_change_nothing():
    free = free_decision(np.random.default_rng(0).normal(size=(50, 3)))
    allocation = allocate(free, free.asked.sum(dim=0).double())
    assert torch.equal(allocation.asked, free.asked) and not allocation.prices.any() and allocation.gap == 0


K, J = 3, 4
NAMES = ["ann", "bob", "cy", "dee"]


def cases_of(seed: int, count: int = 300, held_out: int = 400, costs=None) -> Cases:
    """Random beliefs, with answers and labels that do not matter."""

    def some(number: int, seed: int) -> Cases:
        rng = torch.Generator().manual_seed(seed)
        eta = torch.rand(number, K, generator=rng, dtype=torch.float64)
        accuracy = torch.rand(number, J, generator=rng, dtype=torch.float64).sqrt()
        beliefs = torch.cat([eta / eta.sum(dim=1, keepdim=True), accuracy], dim=1)
        there = torch.rand(number, J, generator=rng) < 0.9
        answers = torch.randint(0, K, (number, J), generator=rng)
        labels = torch.randint(0, K, (number,), generator=rng)
        return Cases(beliefs, answers, there, beliefs, Deployment(NAMES, costs), labels)

    return replace(some(count, seed), labels=None, held_out=some(held_out, seed + 1000))


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one[:4], other[:4], strict=True))


def limits(decision) -> dict:
    """who -> row."""
    return {row["who"]: row for row in decision.facts["limits"]}


COSTS = torch.tensor([0.0, 0.1, 0.2, 0.05], dtype=torch.float64)


@pytest.mark.parametrize("costs", [None, COSTS])
def test_a_budget_is_kept_on_held_out_cases_and_spent_where_it_is_worth_most(costs):
    cases = cases_of(0, costs=costs)
    free, held_out = cases.decide(), cases.held_out.decide()
    coverage = []
    for at_most in (0, 5, 20, 60, 100):
        decision = budget(cases, at_most)
        (row,) = decision.facts["limits"]
        coverage.append(int((~decision.deferred).sum()))
        assert row["held_out"] <= at_most
        assert row["load"] == pytest.approx(100 * decision.deferred.double().mean().item())
        assert row["over"] == pytest.approx(max(0, row["load"] - at_most))
        assert decision.facts["kept"] == (row["over"] == 0)
        skipped = free.deferred & ~decision.deferred
        assert decision.facts["given_up"] == pytest.approx(100 * (free.margin * skipped).mean().item())
        if 0 < at_most < 60:
            assert row["price"] == held_out.margin.sort(descending=True).values[4 * at_most].item()
    assert coverage == sorted(coverage, reverse=True) and coverage[0] == 300
    assert same(budget(cases, 100), free) and limits(budget(cases, 100))["all"]["price"] == 0
    assert limits(budget(cases, 0))["all"]["price"] is None  # nobody is asked at any gain


@pytest.mark.parametrize("seed", range(5))
def test_caps_are_kept_on_held_out_cases_by_prices_of_those_who_have_one(seed):
    cases = cases_of(seed, costs=COSTS if seed % 2 else None)
    decision = caps(cases, {"ann": 5, "bob": 7.6, "dee": 0})
    facts, rows = decision.facts, limits(decision)
    assert abs(facts["duality_gap"]) < 1e-9 and facts["given_up"] > 0
    assert rows["ann"]["held_out"] == 5 and 7 <= rows["bob"]["held_out"] <= 7.6 and rows["dee"]["held_out"] == 0
    assert rows["ann"]["price"] > 0 < rows["bob"]["price"] and rows["cy"]["price"] == 0 and rows["dee"]["price"] is None
    assert rows["cy"]["at_most"] is None and rows["cy"]["over"] == 0 and not decision.asked[:, 3].any()
    for j, name in enumerate(NAMES):
        assert rows[name]["load"] == pytest.approx(100 * decision.asked[:, j].double().mean().item())
    prices = torch.tensor(
        [INF if rows[name]["price"] is None else rows[name]["price"] for name in NAMES], dtype=torch.float64
    )
    assert same(decision, cases.decide(prices))
    one = replace(cases, **{key: getattr(cases, key)[7:8] for key in ("beliefs", "answers", "available", "order")})
    assert torch.equal(caps(one, {"ann": 5, "bob": 7.6, "dee": 0}).asked, decision.asked[7:8])  # one case at a time


def test_caps_that_are_slack_have_price_zero_and_change_nothing():
    cases = cases_of(0)
    load = 100 * cases.held_out.decide().asked.double().mean(dim=0)
    slack = caps(cases, dict(zip(NAMES, load.tolist(), strict=True)))
    assert same(slack, cases.decide()) and slack.facts["duality_gap"] == slack.facts["given_up"] == 0
    assert all(row["price"] == 0 for row in slack.facts["limits"])
    assert same(caps(cases, 100), cases.decide()) and same(caps(cases, {}), cases.decide())


def test_one_cap_for_all_experts_is_a_cap_for_each():
    cases = cases_of(1)
    assert same(caps(cases, 6), caps(cases, dict.fromkeys(NAMES, 6)))
    assert all(row["held_out"] <= 6 for row in caps(cases, 6).facts["limits"])


def test_beliefs_that_are_all_equal_ask_nobody_who_has_a_cap():
    """No price tells equal cases apart: rather none of them than all."""
    cases = cases_of(2)
    equal = torch.tensor([[0.5, 0.3, 0.2, 0.8, 0.1, 0.1, 0.1]], dtype=torch.float64).repeat(400, 1)
    held_out = replace(cases.held_out, beliefs=equal, order=equal)
    decision = caps(replace(cases, beliefs=equal[:300], order=equal[:300], held_out=held_out), {"ann": 10})
    assert not decision.deferred.any() and decision.facts["kept"]


def test_a_batch_is_assigned_at_least_as_well_as_by_prices_or_in_any_order():
    cases, room = cases_of(3), {"ann": 3, "bob": 0, "dee": 5}
    free, decision = cases.decide(), assign(cases, batch=70, capacities=room)
    gain = free.gain
    for start in range(0, 300, 70):
        rows = slice(start, start + 70)
        load = decision.asked[rows].sum(dim=0)
        assert load[0] <= 3 and load[1] == 0 and load[3] <= 5
        value = worth(gain[rows], decision.asked[rows])
        for seed in range(20):
            left, served = {0: 3, 1: 0, 2: 70, 3: 5}, 0.0
            for i in torch.randperm(len(gain[rows]), generator=torch.Generator().manual_seed(seed)).tolist():
                best_left, e = max((gain[start + i, e].item(), e) for e in left if left[e])
                if best_left > 0:
                    left[e] -= 1
                    served += best_left
            assert value >= served - 1e-9
    fitted = replace(cases, held_out=cases)  # prices that keep the caps on the very cases
    priced = caps(fitted, {"ann": 4, "bob": 0, "dee": 7})
    exact = assign(cases, 300, {"ann": 12, "bob": 0, "dee": 21})
    assert priced.facts["kept"] and worth(gain, exact.asked) >= worth(gain, priced.asked) - 1e-9
    assert decision.facts["kept"] and decision.facts["batch"] == 70 and limits(decision)["ann"]["load"] == 3
    assert same(assign(cases, 70, 70), free) and torch.equal(assign(cases, 1, 1).asked, free.asked)


@pytest.mark.parametrize("rule", [lambda c: budget(c, 30), lambda c: caps(c, 20), lambda c: assign(c, 50, 9), best])
def test_nobody_who_is_absent_is_asked_by_any_rule(rule):
    cases = cases_of(4)
    decision = rule(cases)
    assert decision.deferred.any() and not (decision.asked & ~cases.available).any()
    nobody = replace(cases, available=torch.zeros_like(cases.available))
    assert not rule(nobody).deferred.any()


def with_truth(cases: Cases, rule):
    """The outcome of a rule whose beliefs are the truth."""
    truth = Truth(*cases.beliefs.split([K, J], dim=1))
    labels = torch.zeros(len(cases.beliefs), dtype=torch.long)
    outcome = outcome_of(cases.beliefs.log(), labels, cases.answers, DeferralLoss("vanilla", "ce", K))
    return replace(
        outcome, beliefs=cases.beliefs, decision=rule(cases), truth=truth, deployment=cases.deployment
    ), truth


@pytest.mark.parametrize("costs", [None, COSTS])
def test_the_regret_to_the_optimum_under_the_same_limits(costs):
    """A batch that is assigned by the truth has none; prices from other cases have some, or missed their limits."""
    cases = cases_of(5, costs=costs)
    outcome, truth = with_truth(cases, lambda c: assign(c, 60, {"ann": 5, "dee": 2}))
    assert constrained(outcome, truth, outcome.decision.facts)["regret"] == pytest.approx(0, abs=1e-9)
    for rule in (lambda c: budget(c, 15), lambda c: caps(c, 4)):
        outcome, truth = with_truth(cases, rule)
        facts = outcome.decision.facts
        got = constrained(outcome, truth, facts)
        assert got["regret"] >= -1e-9 or not facts["kept"]
        assert got["coverage"] >= 100 - sum(row["at_most"] for row in facts["limits"])
    free = cases.decide()
    top = free.margin.sort(descending=True).values[:45].clamp(min=0).sum()  # 15 % of 300
    outcome, truth = with_truth(cases, lambda c: budget(c, 15))
    ours = worth(free.gain, outcome.decision.asked)
    regret = constrained(outcome, truth, outcome.decision.facts)["regret"]
    assert regret == pytest.approx(100 * (top.item() - ours) / 300)


def outcome_on(count: int = 80, num_classes: int = 4, num_experts: int = 3):
    rng = torch.Generator().manual_seed(0)
    scores = torch.randint(-4, 5, (count, num_classes + num_experts), generator=rng) / 2  # with ties
    labels = torch.randint(0, num_classes, (count,), generator=rng)
    answers = torch.randint(-1, num_classes, (count, num_experts), generator=rng)
    return outcome_of(scores, labels, answers, DeferralLoss("vanilla", "ce", num_classes)), scores, labels, answers


def test_the_error_with_fewer_experts_is_that_of_deciding_among_them():
    """All orders of three experts leave a mean between the errors of the subsets; the ends are the classifier and the system."""
    outcome, scores, labels, answers = outcome_on()
    got = fewer_experts(outcome)
    errors = {}
    for there in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in range(4)):
        wrong = 0
        for theta, y, m in zip(scores.tolist(), labels.tolist(), answers.tolist(), strict=True):
            columns = [*range(4), *(4 + j for j in there if m[j] >= 0)]
            action = max(columns, key=lambda a, theta=theta: (theta[a], -a))
            wrong += (m[action - 4] if action >= 4 else action) != y
        errors.setdefault(len(there), []).append(100 * wrong / 80)
    assert got["present"] == [0, 1, 2, 3] and got["vouches_for"] == "all"
    for n in range(4):
        assert got["lowest"][n] in errors[n] and got["highest"][n] in errors[n]
        assert min(errors[n]) <= got["system_error"][n] <= max(errors[n])
    assert got["system_error"][0] == errors[0][0] and got["system_error"][3] == errors[3][0]


def test_curves_of_a_system_under_limits_are_those_without():
    """A curve moves the price itself: prices of caps do not count twice."""
    outcome, *_ = outcome_on()
    system = ScoreSystem(lambda _: torch.nn.Identity(), DeferralLoss("vanilla", "ce", 4), 4, 3)
    settings = {"bins": 10, "curve_points": 11, "labels_shown": 3, "budgets": [10, 50]}
    free = full_evaluation(outcome, system, outcome, **settings)
    cases = replace(outcome.cases(), held_out=outcome.cases())
    for limited in (caps(cases, 10), assign(cases, 20, 2), budget(cases, 10)):
        got = full_evaluation(replace(outcome, decision=limited), system, outcome, **settings)
        assert all(got[key] == free[key] for key in ("curve", "budget", "fewer_experts"))


SETTING = (
    "dataset.num_train=700", "dataset.num_test=200", "trainer.epochs=3", "backbone.hidden=16", "experts.num=3", "loss=ova",
    "held_out=0.3",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(config, folder, result) of a run with three experts and held-out data."""
    from conftest import compose_once

    cfg = compose_once(*SETTING).copy()
    cfg.output_dir = str(tmp_path_factory.mktemp("limits"))
    run(cfg)
    (file,) = Path(cfg.output_dir).glob("*/*/result.json")
    return cfg, file.parent, json.loads(file.read_text())


@pytest.fixture
def under(composed, finished):
    """under("rule=budget") is the run evaluated under it."""
    _, folder, result = finished
    return lambda *overrides: evaluate_kept(composed(*SETTING, *overrides), folder, result)


@pytest.mark.parametrize(
    "rule",
    [
        ("rule=budget", "rule.defer_at_most=10"),
        ("rule=caps", "rule.caps={expert_0: 10, expert_2: 5}"),
        ("rule=assign", "rule.batch=50", "rule.capacities={expert_0: 4}"),
    ],
)
def test_a_finished_run_is_put_under_limits(under, rule):
    """The fitted limits are kept on held-out data; what is said about them is JSON, with the optimum under them."""
    evaluated = under(*rule, "evaluation=full")
    facts, full = evaluated.result["decision"], evaluated.result["evaluation"]
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    for row in facts["limits"]:
        assert row["at_most"] is None or row.get("held_out", 0) <= row["at_most"]
    assert full["constrained"]["regret"] > 0 and len(full["fewer_experts"]["system_error"]) == 4
    assert full["constrained"]["system_error"] >= evaluated.result["bayes"]["system_error"] - 1e-9


def test_a_limit_on_the_command_line_replaces_that_of_the_run(finished, monkeypatch, capfd):
    _, folder, _ = finished
    monkeypatch.setattr(l2d.evaluate, "from_weights", None)  # no model is read

    def limits_under(*changes):
        main([str(folder), *changes])
        return json.loads((folder / "evaluation.json").read_text())["decision"]["limits"]

    config = (folder / "config.yaml").read_text()
    assert limits_under("rule=caps", "rule.caps={expert_1: 3}", "experts.costs=0.1")[1]["at_most"] == 3
    row, written = limits_under("rule=caps", "rule.caps={expert_1: 3}")[1], capfd.readouterr().out
    assert f"expert_1 {row['load']:.4g} of 3% (price {row['price']:.3f}" in written and "system cost" in written
    assert "expert_0 " not in written  # who has no limit is not listed
    try:
        (folder / "config.yaml").write_text(
            config.replace(
                "_target_: l2d.decisions.best\n  name: best",
                "_target_: l2d.decisions.caps\n  name: caps\n  caps: {expert_0: 9}",
            )
        )
        assert [row["at_most"] for row in limits_under("rule.caps={expert_2: 4}")] == [None, None, 4]
    finally:
        (folder / "config.yaml").write_text(config)


@pytest.mark.parametrize(
    "rule", [("rule=best",), ("rule=budget",), ("rule=caps", "rule.caps=20"), ("rule=assign", "rule.capacities=9")]
)
def test_only_those_named_are_asked(under, rule):
    """Without the others: their outputs are not looked at, and no weights change."""
    metrics = under(*rule, "rule.available=[expert_2]").result["metrics"]
    assert metrics["deferred_to"][:2] == [0, 0] and metrics["deferred_to"][2] > 0
    everyone = under(*rule).result["metrics"]
    assert under(*rule, "rule.available=[expert_2,expert_0,expert_1]").result["metrics"] == everyone
    assert under(*rule, "rule.absence=1").result["metrics"]["coverage"] == 100
    assert under(*rule, "rule.absence=0").result["metrics"] == everyone


def test_a_share_of_experts_is_absent_at_random_and_the_same_every_time(under):
    asked = [under(f"rule.absence={rate}").outcomes["test"].decision for rate in (0.3, 0.3, 0.6)]
    assert same(asked[0], asked[1])
    absent = [(decision.gain == -INF).double().mean().item() for decision in asked]
    assert absent[0] == pytest.approx(0.3, abs=0.08) and absent[2] == pytest.approx(0.6, abs=0.08)


def table(path: Path, rows: list[list[int]], header="expert_0,expert_1,expert_2", ids=None) -> str:
    lines = [",".join(map(str, row if ids is None else [ids[i], *row])) for i, row in enumerate(rows)]
    path.write_text("\n".join([header if ids is None else f"id,{header}", *lines]) + "\n")
    return f"rule.available={path}"


def test_a_table_says_who_is_there_in_each_case(under, tmp_path):
    """In the order of the test set, with the experts' columns in any order."""
    there = torch.randint(0, 2, (200, 3), generator=torch.Generator().manual_seed(0))
    decision = under(table(tmp_path / "a.csv", there.tolist())).outcomes["test"].decision
    assert torch.equal(decision.gain > -INF, there.bool())
    turned = table(tmp_path / "b.csv", there.flip(1).tolist(), "expert_2,expert_1,expert_0")
    assert same(under(turned).outcomes["test"].decision, decision)


def test_a_finished_run_is_reported_again_when_the_table_changes(composed, tmp_path):
    coverage = []
    for there in (1, 0, 1):
        setting = table(tmp_path / "t.csv", [[there] * 3] * 200)
        coverage.append(run(composed(*SETTING, setting, f"output_dir={tmp_path / 'out'}"))["coverage"])
    assert coverage[0] == coverage[2] < coverage[1] == 100


def test_a_table_with_ids_is_matched_by_them(composed, tmp_path):
    """Rows in any order, and of more cases than there are."""
    setting = table(tmp_path / "t.csv", [[0, 1, 1], [1, 0, 1], [1, 1, 0]], ids=["c", "x", "a"])
    cfg = composed(setting)
    there = present(cfg, ["expert_0", "expert_1", "expert_2"], 2, ["a", "c"])
    assert there.int().tolist() == [[1, 1, 0], [0, 1, 1]]
    with pytest.raises(UserError, match=r"t\.csv .* b is not in it"):
        present(cfg, ["expert_0", "expert_1", "expert_2"], 2, ["a", "b"])
    # held-out cases stand in no table
    assert present(cfg, ["expert_0", "expert_1", "expert_2"], 5, None, table=False).all()


@pytest.mark.parametrize(
    ("available", "named"),
    [
        ("rule.available=[expert_7]", "expert_7"),
        ("rule.available=[]", r"available=\[\]"),
        ("rule.available=3", "available=3"),
        ("rule.available=nowhere.csv", "nowhere.csv"),
        ("rule.absence=1.5", "absence=1.5"),
        ("rule.absence=often", "absence=often"),
        ("rule.absence=true", "absence=True"),
        ("short", "1 rows for 200"),
        ("two", "expert_1=2"),
        ("unknown", "expert_2"),
        ("ids", "no ids"),
    ],
)
def test_who_cannot_be_meant_is_refused_before_the_training(composed, tmp_path, available, named):
    rows = [[1, 1, 1]] * 200
    files = {
        "short": lambda: table(tmp_path / "t.csv", rows[:1]),
        "two": lambda: table(tmp_path / "t.csv", [[1, 2, 1], *rows[1:]]),
        "unknown": lambda: table(tmp_path / "t.csv", [[1, 1]] * 200, "expert_0,expert_1"),
        "ids": lambda: table(tmp_path / "t.csv", rows, ids=range(200)),
    }
    setting = files[available]() if available in files else available
    cfg = composed(*SETTING, setting, f"output_dir={tmp_path / 'out'}")
    with pytest.raises(UserError, match=named):
        run(cfg)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (("rule=budget", "rule.defer_at_most=-1"), r"rule\.defer_at_most=-1"),
        (("rule=budget", "rule.defer_at_most=101"), r"rule\.defer_at_most=101"),
        (("rule=budget", "rule.defer_at_most=nan"), r"rule\.defer_at_most=nan"),
        (("rule=budget", "held_out=0"), "rule=budget .* held_out=0"),
        (("rule=budget", "loss=rs"), "rule=budget .* loss=rs"),
        (("rule=caps", "rule.caps={alice: 10}"), r"rule\.caps\.alice=10: .* expert_0"),
        (("rule=caps", "rule.caps={expert_0: -1}"), r"rule\.caps=.*-1"),
        (("rule=caps", "rule.caps={expert_0: 100.5}"), r"rule\.caps=.*100\.5"),
        (("rule=caps", "rule.caps=few"), r"rule\.caps=few"),
        (("rule=caps",), r"rule\.caps has no value"),
        (("rule=caps", "rule.caps=5", "held_out=0"), "rule=caps .* held_out=0"),
        (("rule=caps", "rule.caps=5", "loss=picce_ce"), "rule=caps .* loss=picce_ce"),
        (("rule=assign", "rule.capacities={expert_0: 2.5}"), r"rule\.capacities=.*2\.5"),
        (("rule=assign", "rule.capacities={bob: 2}"), r"rule\.capacities\.bob=2"),
        (("rule=assign", "rule.capacities=-1"), r"rule\.capacities=-1"),
        (("rule=assign", "rule.capacities=5", "rule.batch=0"), r"rule\.batch=0"),
        (("rule=assign", "rule.capacities=5", "loss=picce_ova"), "rule=assign .* loss=picce_ova"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused_before_the_training(composed, tmp_path, changes, named):
    cfg = composed(*SETTING, *changes, f"output_dir={tmp_path}")
    with pytest.raises(UserError, match=named):
        run(cfg)
    assert not list(tmp_path.rglob("result.json"))


def test_a_method_that_vouches_for_one_expert_says_so_when_others_are_absent(composed, tmp_path, capfd):
    small = ("dataset.num_train=60", "dataset.num_test=20", "trainer.epochs=1", f"output_dir={tmp_path}")
    run(composed(*SETTING, *small, "loss=picce_ce", "rule.available=[expert_0]", "evaluation=full"))
    assert "loss=picce_ce" in (said := capfd.readouterr().err) and said.count("rule.available=") == 1
    (file,) = tmp_path.glob("*/*/result.json")
    assert json.loads(file.read_text())["evaluation"]["fewer_experts"]["vouches_for"] == "top"
