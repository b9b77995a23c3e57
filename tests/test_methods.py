"""Every loss of conf/loss, by its name: the formula transcribed in plain Python floats, and what all of them promise."""

from math import exp, log
from pathlib import Path

import pytest
import torch
from torch import Tensor

from l2d.compose import compose
from l2d.conf_files import config_dir
from l2d.config import build
from l2d.decisions import decide
from l2d.errors import UserError
from l2d.losses import BASES, CostSensitive, DeferralLoss, Mixture, Realizable, SoftPicce
from l2d.systems import ScoreSystem

K = 3
COST = 0.2
NAMES = sorted({path.stem for path in Path(config_dir(), "loss").glob("*.yaml")} - {"none"})


def loss_named(name: str, num_classes: int = K, **offered):
    costs = [f"experts.costs={COST}"] if name in ("css", "liu") else []
    return build(compose([f"loss={name}", *costs], ()), "loss", num_classes=num_classes, **offered)


def random_case(num_experts: int = 4, seed: int = 0, batch: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, labels and answers in which experts are right, wrong, missing, and sometimes all of one."""
    rng = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(batch, K + num_experts, generator=rng)
    labels = torch.randint(K, (batch,), generator=rng)
    return scores, labels, torch.randint(-1, K, (batch, num_experts), generator=rng)


def f64(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sigmoid(t: float) -> float:
    return 1 / (1 + exp(-t))


def bce(p: float, right: bool) -> float:
    return -log(p if right else 1 - p)


def naive(name: str, theta: list[float], y: int, answers: list[int]) -> float:
    """The loss of one sample by its definition, over the experts who answered."""
    given = [j for j, m in enumerate(answers) if m != -1]
    right = [answers[j] == y for j in given]
    classes, experts = theta[:K], [theta[K + j] for j in given]
    share = 1 / max(len(given), 1)
    total = sum(map(exp, classes + experts))
    p = [exp(t) / total for t in classes + experts]
    own = [exp(t) / sum(map(exp, classes)) for t in classes]
    taught = [p[K + i] for i in range(len(given)) if right[i]]  # of the correct experts
    yhat = max(range(K), key=lambda k: theta[k])
    if name in ("rs", "moe", "rs_gce"):
        u = p[y] + sum(taught)
        return (1 - u**0.7) / 0.7 if name == "rs_gce" else -log(u)
    if name == "soft_picce_ce":
        return -log(p[y]) - (log(sum(taught)) if taught else 0)
    if name == "soft_picce_ova":
        odds = sum(exp(t) for t, r in zip(experts, right, strict=True) if r)
        others = sum(bce(sigmoid(t), False) for t in experts)
        return sum(bce(sigmoid(t), k == y) for k, t in enumerate(classes)) + others - (log(odds) if odds else 0)
    if name == "balanced_ce":
        among = [exp(t) for t in classes] + [exp(t) * share for t in experts]
        picked = [share * log(among[K + i] / sum(among)) for i in range(len(given)) if right[i]]
        return -log(among[y] / sum(among)) - sum(picked)
    if name in ("balanced_ova", "decoupled", "asm"):
        z = sum(exp(t) for k, t in enumerate(classes) if k != yhat)
        believed = [exp(t) / (z + exp(t)) if name == "asm" else sigmoid(t) for t in experts]
        label = sum(bce(sigmoid(t), k == y) for k, t in enumerate(classes)) if "ova" in name else -log(own[y])
        return label + share * sum(map(bce, believed, right))
    if name in ("css", "liu"):
        earning = range(K) if name == "css" else [yhat]
        return -log(p[y]) - COST * sum(log(p[k]) for k in earning) - sum(map(log, taught))
    formulation, _, base = name.rpartition("_")
    if base == "ova":
        picked = _picked(formulation, experts, right)
        terms = [bce(sigmoid(t), k == y) for k, t in enumerate(classes)]
        return sum(terms) + sum(bce(sigmoid(t), i in picked) for i, t in enumerate(experts))
    q = {"ce": 0.0, "gce": 0.7, "mae": 1.0}[base]
    columns = [y] + [K + i for i in _picked(formulation, experts, right)]
    return sum((1 - p[i] ** q) / q if q else -log(p[i]) for i in columns)


def _picked(formulation: str, experts: list[float], right: list[bool]) -> list[int]:
    """The experts that are taught."""
    among = [i for i in range(len(experts)) if right[i] or formulation == "pice"]
    if formulation:
        among = [i for i in among if experts[i] == max(experts[k] for k in among)]
    return [i for i in among if right[i]]


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_mean_of_the_naive_formula(name):
    for num_experts in (1, 2, 5):
        scores, labels, answers = random_case(num_experts, seed=num_experts)
        rows = zip(scores.tolist(), labels.tolist(), answers.tolist(), strict=True)
        expected = [naive(name, *row) for row in rows]
        got = loss_named(name)(scores, labels, answers)
        assert got.shape == ()
        assert got.item() == pytest.approx(sum(expected) / len(expected), rel=1e-5)
        each = loss_named(name).losses(scores.double(), labels, answers)
        torch.testing.assert_close(each, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def own_phi(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """A base that is a plain function."""
    return -scores.gather(1, labels[:, None]).squeeze(1) + (weights * scores[:, K:].sigmoid()).sum(dim=1)


OTHERS = {
    "alpha": lambda: Realizable(K, alpha=0.3),
    "alpha and q": lambda: Realizable(K, q=0.5, alpha=0.3),
    "balanced soft PiCCE": lambda: SoftPicce("decoupled", K, weight="balanced"),
    "weighted OvA": lambda: DeferralLoss("picce", "ova", K, weight=0.25),
    "own base": lambda: DeferralLoss("vanilla", own_phi, K),
}


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_the_mean_and_its_gradient_are_those_of_the_losses_of_each_sample(name):
    scores, labels, answers = random_case(5, seed=2, batch=7)
    loss = OTHERS[name]() if name in OTHERS else loss_named(name)
    leaf = scores.clone().requires_grad_()
    mean, each = loss(leaf, labels, answers), loss.losses(leaf, labels, answers)
    assert each.shape == (7,)
    torch.testing.assert_close(mean, each.mean())
    gradients = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in (mean, each.mean())]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_finite_differences_of_the_naive_formula(name):
    scores, labels, answers = random_case(3, seed=1, batch=6)
    scores = scores.double().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_named(name).losses(scores, labels, answers).sum(), scores)
    h = 1e-6
    for i, theta in enumerate(scores.tolist()):
        for column in range(K + 3):
            ends = []
            for step in (h, -h):
                moved = list(theta)
                moved[column] += step
                ends.append(naive(name, moved, int(labels[i]), answers[i].tolist()))
            assert gradient[i, column].item() == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_permuting_the_experts_permutes_the_gradients_and_the_beliefs(name):
    order = [2, 0, 3, 1]  # neither the identity nor a reversal
    scores, labels, answers = random_case(4)
    columns = [*range(K), *(K + j for j in order)]
    loss, found = loss_named(name), []
    for s, m in ((scores, answers), (scores[:, columns], answers[:, order])):
        s = s.detach().requires_grad_()
        value = loss(s, labels, m)
        found.append((value, *torch.autograd.grad(value, s), loss.beliefs(s.detach())))
    (before, before_grad, beliefs), (after, after_grad, moved) = found
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(after_grad, before_grad[:, columns])
    torch.testing.assert_close(moved, beliefs[:, columns])


@pytest.mark.parametrize("name", NAMES)
def test_an_expert_without_an_answer_takes_no_part(name):
    """Its column has no gradient, and all else is as if that expert were not there."""
    scores, labels, answers = random_case(3, batch=60)
    answers[:, 1] = -1
    loss, others = loss_named(name), [*range(K), K, K + 2]
    whole, fewer = scores.clone().requires_grad_(), scores[:, others].clone().requires_grad_()
    value, alone = loss(whole, labels, answers), loss(fewer, labels, answers[:, [0, 2]])
    (gradient,), (gradient_alone,) = torch.autograd.grad(value, whole), torch.autograd.grad(alone, fewer)
    torch.testing.assert_close(value, alone, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient[:, others], gradient_alone, rtol=1e-5, atol=1e-8)
    assert not gradient[:, K + 1].any()


@pytest.mark.parametrize("name", NAMES)
def test_without_any_answer_the_classes_are_taught_alone(name):
    scores, labels, _ = random_case(3)
    scores.requires_grad_()
    value = loss_named(name)(scores, labels, torch.full((len(labels), 3), -1))
    (gradient,) = torch.autograd.grad(value, scores)
    assert torch.isfinite(value)
    assert gradient[:, :K].abs().sum(1).min() > 0
    assert not gradient[:, K:].any()


@pytest.mark.parametrize("name", NAMES)
def test_the_flag_complete_changes_no_value_where_no_answer_is_missing(name):
    scores, labels, answers = random_case(4, seed=3)
    answers = answers.abs()
    found = []
    for complete in (False, True):
        s = scores.clone().requires_grad_()
        value = loss_named(name, complete=complete)(s, labels, answers)
        found += [value, *torch.autograd.grad(value, s)]
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[1], found[3], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_huge_scores_stay_finite(name):
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * (K + 2))
    for answers in ([0, 0], [1, 0], [1, 1], [0, -1], [-1, -1]):
        scores = (1e4 * signs).requires_grad_()
        loss = loss_named(name)
        value = loss(scores, torch.zeros(len(scores), dtype=torch.long), torch.tensor([answers]).expand(len(scores), 2))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(scores.grad).all()
        assert torch.isfinite(loss.beliefs(scores.detach().double())).all()


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_scores_give_a_float32_loss_also_under_autocast(name):
    scores, labels, answers = random_case(3)
    half = scores.bfloat16().requires_grad_()
    loss = loss_named(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(half, labels, answers)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(half.detach().float(), labels, answers))
    (gradient,) = torch.autograd.grad(value, half)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", NAMES)
def test_compiles_into_one_graph(name):
    case = random_case(3)
    torch._dynamo.reset()
    for complete in (False, True):
        loss = loss_named(name, complete=complete)
        answers = case[2].abs() if complete else case[2]
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(case[0], case[1], answers), loss(case[0], case[1], answers))


def decided(loss, scores: Tensor, costs: float = 0.0) -> Tensor:
    """The action [N] of every row of scores: a class, or K + the expert asked."""
    beliefs = loss.beliefs(scores.double())
    decision = decide(beliefs, K, costs=torch.full((scores.shape[1] - K,), costs), order=scores)
    return torch.where(decision.deferred, K + decision.expert, decision.predicted)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"decoupled", "moe"}))
def test_the_decision_by_beliefs_is_the_highest_score(name):
    """Decoupled heads have no common scale, and a mixture decides by its gate."""
    scores = 3 * torch.randn(500, K + 3, generator=torch.Generator().manual_seed(5))
    costs = COST if name in ("css", "liu") else 0.0
    assert torch.equal(decided(loss_named(name), scores, costs), scores.argmax(dim=1))


# -- what each method says of itself ------------------------------------------------------------------------------------


def test_the_weight_is_one_over_the_number_who_answered():
    """theta = 0, K = 2: with three experts of whom two answered, each softmax has exp(z) = 1, 1, 1/2, 1/2."""
    loss = DeferralLoss("vanilla", "ce", 2, weight="balanced")
    value = loss(torch.zeros(1, 5), torch.tensor([0]), torch.tensor([[0, -1, 1]]))
    assert value.item() == pytest.approx(log(3) + log(6) / 2, rel=1e-6)


@pytest.mark.parametrize("base", BASES)
def test_with_one_expert_balanced_is_vanilla(base):
    case = random_case(1)
    plain, balanced = (DeferralLoss("vanilla", base, K, weight=weight)(*case) for weight in (1, "balanced"))
    torch.testing.assert_close(plain, balanced)


@pytest.mark.parametrize("weight", ["balanced", 0.1, 3.0])
@pytest.mark.parametrize("base", BASES)
def test_a_weight_does_not_change_what_is_learnt(base, weight):
    """At eta = (.5, .3, .2) and Acc = (.6, .1) the gradient of the risk is 0 with any weight."""
    eta, accuracy = f64([0.5, 0.3, 0.2]), f64([0.6, 0.1])
    wanted = torch.cat([eta, accuracy])
    scores = {
        "ce": wanted.log(), "gce": wanted.log() / 0.3, "ova": wanted.logit(), "decoupled": torch.cat([eta.log(), accuracy.logit()]),
        "asm": torch.cat([eta.log(), accuracy.logit() + log(0.5)]),
    }[base].requires_grad_()  # fmt: skip
    loss = DeferralLoss("vanilla", base, 3, weight=weight)
    risk = torch.zeros((), dtype=torch.float64)
    for y in range(3):
        for first in (True, False):
            for second in (True, False):
                mass = (
                    eta[y] * (accuracy[0] if first else 1 - accuracy[0]) * (accuracy[1] if second else 1 - accuracy[1])
                )
                answers = torch.tensor([[y if right else (y + 1) % 3 for right in (first, second)]])
                risk = risk + mass * loss.losses(scores[None], torch.tensor([y]), answers).sum()
    (slope,) = torch.autograd.grad(risk, scores)
    assert slope.abs().max() < 1e-9
    torch.testing.assert_close(loss.beliefs(scores.detach()[None])[0], wanted)


def test_a_weight_that_cannot_be_undone_is_refused():
    with pytest.raises(UserError, match=r"loss\.weight=balanced.*q=1"):
        DeferralLoss("vanilla", "gce", K, weight="balanced", q=1.0)
    with pytest.raises(UserError, match=r"loss\.weight=0\.5"):
        DeferralLoss("vanilla", lambda scores, labels, weights: scores.sum(1), K, weight=0.5)
    with pytest.raises(UserError, match=r"loss\.q=0\.5.*base=ce"):
        DeferralLoss("vanilla", "ce", K, q=0.5)


@pytest.mark.parametrize("base", ["decoupled"])
def test_no_answer_reaches_the_classes_of_decoupled_heads(base):
    """The second derivatives between class and expert columns are 0; duplicated experts leave the class gradients alone."""
    scores, labels, answers = random_case(3, batch=4)
    loss = DeferralLoss("vanilla", base, K, weight="balanced")
    hessian = torch.autograd.functional.hessian(lambda s: loss(s.view(4, -1), labels, answers), scores.flatten())
    blocks = hessian.view(4, K + 3, 4, K + 3)
    assert not blocks[:, :K, :, K:].any()

    def class_gradient(loss, *columns: int) -> Tensor:
        s = scores[:, [*range(K), *(K + c for c in columns)]].requires_grad_()
        return torch.autograd.grad(loss(s, labels, answers[:, columns]), s)[0][:, :K]

    assert torch.equal(class_gradient(loss, 0), class_gradient(loss, 0, 0, 0))
    cross_entropy = DeferralLoss("vanilla", "ce", K)
    assert not torch.allclose(class_gradient(cross_entropy, 0), class_gradient(cross_entropy, 0, 0, 0))


def test_asymmetric_softmax_with_one_expert_is_the_published_formula():
    scores, labels, answers = random_case(1)
    answers = answers.abs()
    e = scores.double().exp()
    u = e[:, K] / (e.sum(1) - e[:, :K].max(1).values)
    right = answers[:, 0] == labels
    expected = -scores[:, :K].double().log_softmax(1).gather(1, labels[:, None]).squeeze(1)
    expected -= torch.where(right, u, 1 - u).log()
    got = DeferralLoss("vanilla", "asm", K).losses(scores.double(), labels, answers)
    torch.testing.assert_close(got, expected)


def test_gce_tends_to_cross_entropy_and_mae_is_bounded():
    case = random_case(3)
    near, ce = DeferralLoss("vanilla", "gce", K, q=1e-7)(*case), DeferralLoss("vanilla", "ce", K)(*case)
    assert near.item() == pytest.approx(ce.item(), abs=1e-5)
    mae = DeferralLoss("vanilla", "gce", K, q=1.0).losses(100 * case[0], *case[1:])
    most = 1 + (case[2] == case[1][:, None]).sum(1)
    assert ((mae >= 0) & (mae <= most)).all()


def test_a_mixture_of_experts_is_the_realizable_surrogate_decided_otherwise():
    """-log(g_0 p(y) + sum_j g_j correct_j), transcribed, equals RS; the gate can keep what the best column defers."""
    scores, labels, answers = random_case(2)
    answers = answers.abs()
    p = scores.softmax(1)
    g_0, g = p[:, :K].sum(1), p[:, K:]
    own = scores[:, :K].softmax(1).gather(1, labels[:, None]).squeeze(1)
    team = -(g_0 * own + (g * (answers == labels[:, None])).sum(1)).log()
    torch.testing.assert_close(Mixture(K).losses(scores, labels, answers), team)
    assert torch.equal(Mixture(K)(scores, labels, answers), Realizable(K)(scores, labels, answers))
    split = torch.log(torch.tensor([[0.2, 0.2, 0.2, 0.4]]))  # 0.6 for the classes together, 0.4 for the expert
    assert decided(Realizable(K), split).tolist() == [K]
    assert decided(Mixture(K), split).tolist() == [0]


def test_the_realizable_surrogate_mixed_with_the_classifiers_loss():
    scores, labels, answers = random_case(2)
    alone = torch.nn.functional.cross_entropy(scores[:, :K], labels)
    torch.testing.assert_close(Realizable(K, alpha=0.0)(scores, labels, answers), alone)
    half = Realizable(K, alpha=0.5)(scores, labels, answers)
    torch.testing.assert_close(half, (Realizable(K)(scores, labels, answers) + alone) / 2)


@pytest.mark.parametrize("classes", ["all", "best"])
@pytest.mark.parametrize("base", ["ce", "ova", "gce", "decoupled"])
@pytest.mark.parametrize("formulation", ["vanilla", "picce"])
def test_without_a_cost_training_time_costs_change_nothing(formulation, base, classes):
    case = random_case(3)
    parts = {"formulation": formulation, "base": base, "num_classes": K}
    free, plain = CostSensitive(classes, None, **parts), DeferralLoss(**parts)
    torch.testing.assert_close(free(*case), plain(*case))
    torch.testing.assert_close(free.beliefs(case[0]), plain.beliefs(case[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("base", ["ce", "ova"])
@pytest.mark.parametrize(("classes", "total"), [("all", 1 + 3 * COST), ("best", 1 + COST)])
def test_the_closed_forms_of_training_time_costs(base, classes, total):
    """One expert, eta = (.5, .3, .2), Acc = .6: columns ~ [eta + c s, Acc] are where the risk is flat; beliefs are the truth."""
    eta, accuracy = f64([0.5, 0.3, 0.2]), 0.6
    earned = COST * f64([1, 1, 1] if classes == "all" else [1, 0, 0])
    wanted = torch.cat([eta + earned, f64([accuracy])]) / total
    scores = (wanted.log() if base == "ce" else wanted.logit()).requires_grad_()
    loss = CostSensitive(classes, COST, formulation="vanilla", base=base, num_classes=3)
    risk = torch.zeros((), dtype=torch.float64)
    for y in range(3):
        for right, chance in ((True, accuracy), (False, 1 - accuracy)):
            answer = torch.tensor([[y if right else (y + 1) % 3]])
            risk = risk + eta[y] * chance * loss.losses(scores[None], torch.tensor([y]), answer).sum()
    (slope,) = torch.autograd.grad(risk, scores)
    assert slope.abs().max() < 1e-9
    torch.testing.assert_close(loss.beliefs(scores.detach()[None])[0], f64([0.5, 0.3, 0.2, 0.6]))


def test_the_best_class_changes_without_a_jump():
    loss = CostSensitive("best", COST, formulation="vanilla", base="ce", num_classes=K)
    values = [
        loss.losses(f64([[1.0, 1.0 + step, 0.0, 0.5]]), torch.tensor([2]), torch.tensor([[2]])).item()
        for step in (-1e-8, 1e-8)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-7)


def test_unequal_costs_are_refused_before_training():
    with pytest.raises(UserError, match=r"loss\.cost=\[0\.1, 0\.2\]"):
        CostSensitive("all", [0.1, 0.2], formulation="vanilla", base="ce", num_classes=K)
    same = CostSensitive("all", [0.1, 0.1], formulation="vanilla", base="ce", num_classes=K)
    assert same.cost == 0.1


@pytest.mark.parametrize("weight", [1.0, 0.3, "balanced"])
@pytest.mark.parametrize("base", ["ce", "ova", "decoupled", "asm"])
def test_the_gradient_of_soft_picce_is_that_of_its_value(base, weight):
    scores, labels, answers = random_case(3, batch=8)
    loss = SoftPicce(base, K, weight=weight)
    assert torch.autograd.gradcheck(lambda s: loss.losses(s, labels, answers), scores.double().requires_grad_())


@pytest.mark.parametrize("base", ["gce", "torch.nn.functional.cross_entropy"])
def test_soft_picce_refuses_a_base_whose_gradient_it_would_not_have(base):
    with pytest.raises(UserError, match=rf"loss\.base={base}"):
        SoftPicce(base, K)


@pytest.mark.parametrize("classes", ["all", "best"])
@pytest.mark.parametrize("base", ["ce", "ova"])
def test_training_time_costs_on_the_weights_of_picce_as_written(base, classes):
    """phi(y) + c sum of phi(k) over the classes that earn it + phi(K + j) of the most confident correct expert."""
    scores, labels, answers = random_case(3)
    loss = CostSensitive(classes, COST, formulation="picce", base=base, num_classes=K)
    got = loss.losses(scores.double(), labels, answers).tolist()
    for value, theta, y, m in zip(got, scores.tolist(), labels.tolist(), answers.tolist(), strict=True):
        columns = [*range(K), *(K + j for j in range(3) if m[j] >= 0)]
        correct = [K + j for j in range(3) if m[j] == y]
        picked = sorted(correct, key=lambda i: theta[i])[-1:]
        earning = range(K) if classes == "all" else [max(range(K), key=lambda k: theta[k])]
        taught = {i: float(i == y) + COST * (i in earning) + (i in picked) for i in columns}
        if base == "ce":
            total = sum(exp(theta[i]) for i in columns)
            expected = -sum(share * log(exp(theta[i]) / total) for i, share in taught.items())
        else:
            most = 1 + COST * len(earning)
            expected = sum(most * log(1 + exp(theta[i])) - taught[i] * theta[i] for i in columns)
        assert value == pytest.approx(expected, rel=1e-6)


def test_soft_picce_shares_one_unit_among_the_correct_experts():
    """theta = log [1, 1 | 1, 3, 4], the first two experts right: w = (1/4, 3/4, 0), and -log p of both together."""
    loss = SoftPicce("ce", 2)
    scores = torch.tensor([[1.0, 1.0, 1.0, 3.0, 4.0]]).log()
    labels, answers = torch.tensor([0]), torch.tensor([[0, 0, 1]])
    assert loss.weights(scores, labels, answers).tolist() == [pytest.approx([0.25, 0.75, 0])]
    assert loss(scores, labels, answers).item() == pytest.approx(log(10) + log(10 / 4), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "vouches"),
    [("balanced_ce", "all"), ("balanced_ova", "all"), ("decoupled", "all"), ("asm", "all"), ("gce", "all"), ("css", "all"),
     ("picce_gce", "top"), ("mae", "none"), ("rs", "none"), ("moe", "none"), ("soft_picce_ce", "none")],
)  # fmt: skip
def test_whose_accuracy_a_loss_vouches_for(name, vouches):
    loss = loss_named(name)
    system = ScoreSystem(lambda outputs: torch.nn.Identity(), loss, K, 2)
    assert (loss.vouches_for, system.vouches_for) == (vouches, vouches)
