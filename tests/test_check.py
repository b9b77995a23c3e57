"""l2d check: joints whose answer is known by hand, losses whose verdict is known, and the command line."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from l2d.check import builder, chosen_losses
from l2d.cli import main
from l2d.conf_files import group_files
from l2d.losses import BASES, FORMULATIONS
from l2d.systems import ScoreSystem
from l2d.theory import condition_holds, conditional_risk, minimise, overlapping_specialists
from l2d.theory.check import check_loss, verdict
from l2d.theory.descend import find_minima
from l2d.theory.families import FAMILIES, Case, draw_cases
from l2d.theory.judge import Finding, judge
from l2d.theory.per_sample import PerSample
from l2d.theory.properties import continuity, convexity, pull
from l2d.theory.simplify import simplify


class Loss:
    """A loss from `losses`, for K classes."""

    def __init__(self, num_classes: int):
        self.num_classes = num_classes

    def __call__(self, scores, labels, answers):
        return self.losses(scores, labels, answers).mean()


def of(name: str, *settings: str) -> Callable[[int, int], PerSample]:
    """(K, J) -> the loss of that name."""
    ((_, cfg),) = chosen_losses([f"loss={name}", *settings], ()).items()
    return builder(name, cfg)


def own(make: Callable[[int], object]) -> Callable[[int, int], PerSample]:
    @cache
    def build(num_classes: int, num_experts: int) -> PerSample:
        system = ScoreSystem(lambda _: nn.Identity(), make(num_classes), num_classes, num_experts)
        return PerSample("own", system, num_classes, num_experts)

    return build


def case(num_classes: int, cells: dict[tuple[int, ...], float]) -> Case:
    """From {(label, answers ...): mass}."""
    experts = len(next(iter(cells))) - 1
    mass = torch.tensor(list(cells.values()), dtype=torch.float64)
    return Case("by hand", num_classes, torch.tensor(list(cells)), mass, torch.ones(experts, dtype=torch.float64))


def judged(build: Callable[[int, int], PerSample], cases: list[Case]) -> list[Finding]:
    return judge(build, cases, 0, lambda number: None)


SOME = [c for c in draw_cases(140, 0) if (c.num_classes, c.num_experts) in ((2, 1), (4, 3))]


def test_the_families_are_what_their_names_say():
    cases = draw_cases(70, 1)
    assert {c.family for c in cases} == set(FAMILIES) == {c.family for c in SOME}
    for c in cases:
        answers = c.cells[:, 1:]
        behind = c.utility.max() - c.utility
        assert ((behind < 1e-6) | (behind > 0.02)).all(), "the best action is clear"
        _, given, mass = c.rows()
        assert mass.sum().item() == pytest.approx(1) and (given < 0).any() == (c.family == "missing at random")
        if c.family == "deterministic experts":
            assert (answers == answers[0]).all()
        if c.family == "duplicated experts":
            assert (answers[:, 0] == answers[:, -1]).all()
        if c.family.startswith("Condition 1"):
            assert condition_holds(c.dense) == c.family.endswith("holds")
        if c.family == "independent given y":
            right = (answers == c.cells[:, :1]).double()
            for label in range(c.num_classes):
                own = c.cells[:, 0] == label
                share = c.mass[own] / c.mass[own].sum()
                each = share @ right[own]
                expected = torch.where(right[own] > 0, each, 1 - each).prod(dim=1)
                torch.testing.assert_close(share, expected)
    exact = next(c for c in cases if c.family == "Condition 1 fails")
    assert torch.equal(exact.dense, overlapping_specialists().double())
    again = draw_cases(70, 1)
    assert all(torch.equal(a.cells, b.cells) and torch.equal(a.mass, b.mass) for a, b in zip(cases, again, strict=True))


@pytest.mark.parametrize("name", ["ce", "ova", "picce_ce", "picce_ova", "pice_ce"])
def test_the_minimum_is_that_of_the_exact_solver(name):
    formulation, base = name.split("_") if "_" in name else ("vanilla", name)
    formulation, base = FORMULATIONS[formulation], BASES[base]
    cases = [c for c in SOME if c.num_experts == 3 and (c.rates == 1).all()]
    for c, found in zip(cases, find_minima(of(name)(4, 3), cases, 0), strict=True):
        exact = minimise(c.dense, formulation, base)
        least = conditional_risk(exact, c.dense, formulation, base).item()
        assert found.settled and found.risk == pytest.approx(least, abs=1e-7)


@pytest.mark.parametrize("name", ["ce", "ova", "balanced_ce", "decoupled", "asm", "gce", "mae"])
def test_consistent_losses_decide_as_bayes_on_every_joint(name):
    findings = judged(of(name), SOME)
    assert not any(f.missed for f in findings) and all(f.minima.settled for f in findings)
    if name != "mae":  # which has no beliefs
        assert max(f.error_all for f in findings) < 0.01
        assert all(f.first_rank in (None, "best") for f in findings)


@pytest.mark.parametrize("name", ["picce_ce", "picce_ova"])
def test_picce_misses_only_where_condition_1_fails(name):
    findings = judged(of(name), SOME)
    assert {f.case.family for f in findings if f.missed} == {"Condition 1 fails"}
    exact = next(f for f in findings if torch.equal(f.case.dense, overlapping_specialists().double()))
    assert exact.regret == pytest.approx(1 / 6) and exact.always and exact.decision in (5, 6)
    assert max(f.error_top for f in findings if f.case.family != "missing at random") < 0.01
    assert max(f.error_all for f in findings) > 0.1


def test_gce_repairs_picce_where_q_is_above_one_half():
    joint = overlapping_specialists()
    specialists = [Case("", 4, joint.nonzero(), joint[joint > 0].double(), torch.ones(3, dtype=torch.float64))]
    regret = {q: judged(of("picce_gce", f"loss.q={q}"), specialists)[0].regret for q in (0.3, 0.7)}
    assert regret == pytest.approx({0.3: 1 / 6, 0.7: 0})
    assert not any(f.missed for f in judged(of("picce_gce", "loss.q=0.9"), SOME))


def test_rs_needs_more_than_the_bayes_bar():
    """Two equal classes and an expert independent of them: RS asks above 2/3, Bayes above 1/2."""

    def independent(right: float) -> Case:
        return case(2, {(y, y ^ wrong): 1 - right if wrong else right for y in (0, 1) for wrong in (0, 1)})

    below, above = judged(of("rs"), [independent(0.64), independent(0.70)])
    assert below.missed and below.decision in (0, 1) and below.regret == pytest.approx(0.14)
    assert not above.missed and above.decision == 2


@pytest.mark.parametrize("name", ["rs", "moe"])
def test_rs_and_the_mixture_miss_the_bayes_decision(name):
    findings = judged(of(name), SOME)
    assert sum(f.missed and f.always for f in findings) >= 3
    assert max(f.regret for f in findings) > 0.05


def test_pice_jumps_and_puts_the_worst_expert_first():
    build = of("pice_ce")
    found = continuity(build(3, 3), 0)
    assert found["lines_with_a_jump"] > 50 and found["example"]["jump"] > 0.1
    experts = torch.tensor(found["example"]["scores"], dtype=torch.float64)[3:]
    given = torch.tensor(found["example"]["answers"]) >= 0
    assert experts[given].topk(2).values.diff().abs() < 1e-6, "where the first expert changes"
    ranks = [f.first_rank for f in judged(build, [c for c in SOME if c.family == "Condition 1 holds"])]
    assert ranks.count("worst") > len(ranks) / 2


def test_a_jump_is_found_with_its_height_and_a_steep_slope_is_none():
    class Step(Loss):
        def losses(self, scores, labels, answers):
            return scores[:, 0] ** 2 + 0.25 * (scores[:, 1] > 0.3)

    class Steep(Loss):
        def losses(self, scores, labels, answers):
            return torch.sigmoid(1e4 * scores[:, 0])

    found = continuity(own(Step)(3, 3), 0)
    assert found["example"]["jump"] == pytest.approx(0.25, abs=1e-6)
    assert found["example"]["scores"][1] == pytest.approx(0.3, abs=1e-6)
    assert continuity(own(Steep)(3, 3), 0)["lines_with_a_jump"] == 0
    assert not any(continuity(of(name)(3, 3), 0)["lines_with_a_jump"] for name in ("ce", "picce_ce", "asm"))


@pytest.mark.parametrize(("name", "convex"), [("ce", True), ("decoupled", True), ("picce_ce", False), ("mae", False)])
def test_convexity_has_a_witness_where_it_fails(name, convex):
    loss = of(name)(3, 3)
    found = convexity(loss, 0)
    assert (found["violated"] == 0) == convex
    if not convex:
        example = found["example"]
        one, two = (torch.tensor([example[key]], dtype=torch.float64) for key in ("scores", "other_scores"))
        rest = torch.tensor([example["label"]]), torch.tensor([example["answers"]])
        ends = (loss.values(one, *rest) + loss.values(two, *rest)).item() / 2
        assert loss.values((one + two) / 2, *rest).item() > ends + 0.01


def test_the_pull_of_the_experts_grows_with_vanilla_losses_alone():
    growth = {}
    for name in ("ce", "picce_ce", "balanced_ce", "decoupled"):
        found = pull(of(name), 0)
        growth[name] = found["upward"][-1] / found["upward"][0]
        assert found["experts"] == [1, 2, 4, 8, 16]
    assert growth["ce"] > 8 and max(growth["picce_ce"], growth["balanced_ce"], growth["decoupled"]) < 3


def test_a_miss_is_made_small_enough_for_paper():
    build = of("pice_ce")
    findings = judged(build, [c for c in draw_cases(140, 0) if (c.num_classes, c.num_experts) == (3, 2)])
    small = simplify(findings, lambda cases: judged(build, cases))
    assert small and small.missed and small.always and small.case.num_experts == 2
    assert len(small.case.cells) <= 3 and torch.equal(small.case.mass, small.case.mass.round())
    assert small.regret >= max(f.regret for f in findings) / 2
    assert simplify([f for f in findings if not f.missed], lambda cases: judged(build, cases)) is None


def test_a_minimum_in_a_kink_counts_and_a_risk_without_bound_does_not():
    class Kink(Loss):
        """The median: |theta_i - [column i is right]|, least at 0 or 1."""

        def losses(self, scores, labels, answers):
            right = torch.cat([F.one_hot(labels, self.num_classes), answers == labels[:, None]], dim=1)  # [B, K+J]
            return (scores - right).abs().sum(dim=1)

    class Falling(Loss):
        def losses(self, scores, labels, answers):
            return -scores[:, 0]

    c = case(2, {(0, 0): 3, (1, 0): 1})
    (found,) = judged(own(Kink), [c])
    assert found.minima.settled
    expected = torch.tensor([1, 0, 1], dtype=torch.float64)
    torch.testing.assert_close(found.minima.scores[0], expected, rtol=0, atol=1e-2)
    judgement = check_loss("falling", own(Falling), [c], 0, lambda number: None)
    assert not judgement.findings[0].minima.settled and "no minimum found in 1 of 1" in verdict(judgement)


def test_verdicts_in_one_sentence():
    def said(name: str) -> str:
        return verdict(check_loss(name, of(name), cases, 0, lambda number: None))

    cases = [c for c in SOME if c.num_experts == 3]
    number = len(cases)
    assert said("decoupled") == f"consistent in all {number} joints; beliefs right for every expert; continuous; convex"
    assert said("picce_ova").endswith(
        "all in the family 'Condition 1 fails'); beliefs right for the top expert; continuous; not convex"
    )


OWN_LOSSES = '''
import torch.nn.functional as F


class Simple:
    """Vanilla cross-entropy, as a user writes it."""

    def __init__(self, num_classes, weight):
        self.num_classes, self.weight = num_classes, weight

    def __call__(self, scores, labels, answers):
        scores = scores.masked_fill(F.pad(answers < 0, (self.num_classes, 0)), -1e9)
        right = (answers == labels[:, None]) * self.weight
        p = scores.log_softmax(dim=1)
        return F.nll_loss(p, labels) - (right * p[:, self.num_classes :]).sum(dim=1).mean()


class Branches(Simple):
    """The same with values that decide what is done, which vmap cannot follow."""

    def __call__(self, scores, labels, answers):
        scores = scores.masked_fill(F.pad(answers < 0, (self.num_classes, 0)), -1e9)
        right, p = answers == labels[:, None], scores.log_softmax(dim=1)
        taught = p[:, self.num_classes :][right].sum() if right.any() else 0.0
        return F.nll_loss(p, labels) - self.weight * taught / len(labels)


class Raises(Simple):
    def __call__(self, scores, labels, answers):
        raise KeyError("nobody")


class Rows(Simple):
    def __call__(self, scores, labels, answers):
        return scores.sum(dim=1)


class Sum(Simple):
    def __call__(self, scores, labels, answers):
        return super().__call__(scores, labels, answers) * len(labels)
'''


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """check(*words) runs the command in a folder with losses of a user's own; exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_losses.py").write_text(OWN_LOSSES)
    Path("mine/loss").mkdir(parents=True)
    for name in ("Simple", "Branches", "Raises", "Rows", "Sum"):
        text = f"_target_: own_losses.{name}\nname: {name.lower()}\nweight: 1.0\n"
        Path("mine/loss", f"{name.lower()}.yaml").write_text(text)

    def run(*words: str) -> tuple[int, str, str]:
        try:
            main(["check", *words])
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


def test_the_command_prints_a_table_and_writes_all_numbers(check):
    code, out, _ = check("loss=picce_ce", "--joints", "7", "--seed", "3", "--out", "found.json")
    assert code == 0 and out.splitlines()[-1].startswith("picce_ce: ")
    rows = {line.split("|")[1].strip(): line.split("|")[2:4] for line in out.splitlines() if line.startswith("|")}
    assert set(FAMILIES) < set(rows) and int(rows["all"][0]) == 7
    found = json.loads(Path("found.json").read_text())
    assert found["seed"] == 3 and len(found["joints"]) == 7 and list(found["losses"]) == ["picce_ce"]
    loss = found["losses"]["picce_ce"]
    assert loss["vouches_for"] == "top" and loss["verdict"] in out
    specialists = [joint["family"] for joint in found["joints"]].index("Condition 1 fails")
    assert found["joints"][specialists]["cells"][0] == [0, 1, 0, 1, 1.0]
    assert not found["joints"][specialists]["condition_1"]
    assert loss["joints"][specialists]["missed"] and loss["joints"][specialists]["regret"] == pytest.approx(1 / 6)
    assert loss["families"]["all"]["missed"] == sum(joint["missed"] for joint in loss["joints"]) == int(rows["all"][1])
    assert loss["worst"]["regret"] > 0.08 and {"continuity", "convexity", "pull"} <= loss.keys()


def test_several_losses_are_one_table_and_the_same_whoever_is_beside_them(check):
    code, out, err = check("loss=ce,ova", "--joints", "2")
    assert code == 0 and "2 of 2" in err
    rows = [line for line in out.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["ce", "ova"]
    assert set(rows) < set(check("loss=ova", "loss=ce", "--joints", "2")[1].splitlines())


def test_a_loss_of_the_users_own_is_judged_by_the_same_line(check):
    """Vanilla CE: by vmap, by a loop, and as the package has it."""
    for name in ("simple", "branches"):
        words = ("--config-dir", "mine", f"loss={name}", "loss.weight=1", "--joints", "3", "--out", f"{name}.json")
        code, out, err = check(*words)
        assert code == 0, err
        assert f"{name} loss.weight=1: consistent in all 3 joints; has no beliefs; continuous; convex" in out
    check("loss=ce", "--joints", "3", "--out", "ce.json")
    risks = {}
    for path in Path().glob("*.json"):
        (loss,) = json.loads(path.read_text())["losses"].values()
        risks[path.stem] = [joint["risk"] for joint in loss["joints"]]
    assert risks["simple"] == pytest.approx(risks["ce"], abs=1e-6)
    assert risks["branches"] == pytest.approx(risks["ce"], abs=1e-6)


def test_the_notice_of_a_loss_is_shown_once(check):
    code, _, err = check("loss=css,liu", "--joints", "1")
    assert code == 0 and err.count("loss.cost=0") == 1


def test_all_names_every_loss_of_the_configuration(monkeypatch, check):
    named = []
    monkeypatch.setattr("l2d.check.check", lambda losses, *rest: named.extend(losses))
    assert check("--config-dir", "mine", "loss=all", "loss.name=x")[0] == 0
    assert named == [f"{name} loss.name=x" for name in group_files(["mine"])["loss"] if name != "none"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "loss=NAME"),
        (["loss=hinge"], "picce_ce"),
        (["loss=none"], "loss=none"),
        (["loss=ce", "loss.hinge=1"], "hinge"),
        (["loss=ce", "loss.base=nowhere"], "loss.base=nowhere"),
        (["loss=ce", "experts.num=3"], "experts.num=3"),
        (["loss=ce", "--joints", "0"], "--joints 0"),
        (["loss=ce", "--joints", "many"], "many"),
        (["loss=ce", "--seed", "-1"], "--seed -1"),
        (["loss=ce", "--config-dir", "nowhere"], "nowhere"),
        (["loss=raises"], "KeyError: 'nobody'"),
        (["loss=rows"], "[6]"),
        (["loss=sum"], "mean"),
        (["loss=ce,rows"], "loss=rows"),
        (["loss=ce", "--out", "mine"], "a folder"),
        (["loss=ce", "--out", "nowhere/found.json"], "nowhere"),
    ],
)
def test_mistakes_are_sentences(check, words, says):
    before = sorted(Path().rglob("*"))
    out = [] if "--out" in words else ["--out", "found.json"]
    code, shown, err = check("--config-dir", "mine", *words, *out)
    assert code == 2 and says in err and "Traceback" not in err and shown == ""
    assert [p for p in sorted(Path().rglob("*")) if "__pycache__" not in p.parts] == before
