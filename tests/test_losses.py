"""Losses: the formulas as they are written down, worked by hand and transcribed naively in plain Python floats."""

from math import exp, inf, log

import pytest
import torch

from l2d.errors import UserError
from l2d.losses import BASES, FORMULATIONS, DeferralLoss

K = 3
PAIRS = [(f, b) for f in ("vanilla", "picce", "pice") for b in ("ce", "ova", "gce", "decoupled", "asm")]


def naive_phi(base: str, theta: list[float], k: int, num_classes: int) -> float:
    """phi(theta, k) by its definition, without any rearrangement."""
    p = exp(theta[k]) / sum(exp(t) for t in theta)
    if base == "ce":
        return -log(p)
    if base == "gce":
        return (1 - p**0.7) / 0.7
    s = [1 / (1 + exp(-t)) for t in theta]
    if base == "asm":  # exp(theta_j) over the sum of itself and of all classes but the predicted one
        classes = [exp(t) for t in theta[:num_classes]]
        others = sum(classes) - max(classes)
        s = [exp(t) / (others + exp(t)) for t in theta]
    if k >= num_classes:
        return -log(s[k]) + log(1 - s[k])
    if base == "ova":
        return -log(s[k]) - sum(log(1 - s[i]) for i in range(len(theta)) if i != k)
    own = exp(theta[k]) / sum(exp(t) for t in theta[:num_classes])
    return -log(own) - sum(log(1 - u) for u in s[num_classes:])


def naive_loss(formulation: str, base: str, theta: list[float], y: int, answers: list[int], num_classes: int) -> float:
    """phi(theta, y) + the phi of every expert that is taught, over the columns of the experts who answered."""
    given = [j for j, m in enumerate(answers) if m != -1]
    theta = theta[:num_classes] + [theta[num_classes + j] for j in given]
    answers = [answers[j] for j in given]
    correct = [j for j, m in enumerate(answers) if m == y]
    taught: list[int] = []
    if formulation == "vanilla":
        taught = correct
    else:
        best, candidates = -inf, correct if formulation == "picce" else range(len(answers))
        for j in candidates:
            if theta[num_classes + j] > best:
                best, taught = theta[num_classes + j], [j]
        taught = [j for j in taught if j in correct]
    return naive_phi(base, theta, y, num_classes) + sum(
        naive_phi(base, theta, num_classes + j, num_classes) for j in taught
    )


def random_case(num_experts: int, seed: int = 0, batch: int = 40, num_classes: int = K):
    """Scores, labels and answers in which experts are right, wrong, missing, and sometimes all wrong."""
    rng = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(batch, num_classes + num_experts, generator=rng)
    labels = torch.randint(num_classes, (batch,), generator=rng)
    return scores, labels, torch.randint(-1, num_classes, (batch, num_experts), generator=rng)


def loss_of(formulation: str, base: str, theta: list[float], y: int, answers: list[int], num_classes: int) -> float:
    loss = DeferralLoss(formulation, base, num_classes)
    return loss(torch.tensor([theta]), torch.tensor([y]), torch.tensor([answers])).item()


@pytest.mark.parametrize(
    ("formulation", "expected"),
    [
        # theta = log [1, 2 | 3, 4, 2], so the softmax is [1, 2, 3, 4, 2] / 12; y = 1; experts 0 and 2 are right.
        ("vanilla", log(12 / 2) + log(12 / 3) + log(12 / 2)),
        ("picce", log(12 / 2) + log(12 / 3)),  # of the two that are right, expert 0 scores higher
        ("pice", log(12 / 2)),  # expert 1 scores highest and is wrong
    ],
)
def test_ce_worked_by_hand(formulation, expected):
    theta = [log(v) for v in (1, 2, 3, 4, 2)]
    assert loss_of(formulation, "ce", theta, 1, [1, 0, 1], 2) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("formulation", "expected"),
    [
        # sigmoid(log v) = v / (1 + v): 1/2, 2/3, 3/4, 4/5, 2/3; phi of expert column j is -theta = -log v.
        # phi(y=1) = -log 2/3 - log 1/2 - log 1/4 - log 1/5 - log 1/3 = log(3/2 * 2 * 4 * 5 * 3) = log 180
        ("vanilla", log(180) - log(3) - log(2)),
        ("picce", log(180) - log(3)),
        ("pice", log(180)),
    ],
)
def test_ova_worked_by_hand(formulation, expected):
    theta = [log(v) for v in (1, 2, 3, 4, 2)]
    assert loss_of(formulation, "ova", theta, 1, [1, 0, 1], 2) == pytest.approx(expected, rel=1e-6)


def test_pice_teaches_the_top_expert_when_it_is_right():
    # theta = log [1, 1 | 2, 4]; expert 1 has the highest score and is right, and so is expert 0.
    expected = log(8 / 1) + log(8 / 4)
    assert loss_of("pice", "ce", [0, 0, log(2), log(4)], 0, [0, 0], 2) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
@pytest.mark.parametrize("num_experts", [1, 2, 5])
def test_the_batch_mean_of_the_naive_formula(formulation, base, num_experts):
    scores, labels, answers = random_case(num_experts)
    cases = zip(scores.tolist(), labels.tolist(), answers.tolist(), strict=True)
    naive = [naive_loss(formulation, base, theta, y, m, K) for theta, y, m in cases]
    got = DeferralLoss(formulation, base, K)(scores, labels, answers)
    assert got.shape == ()
    assert got.item() == pytest.approx(sum(naive) / len(naive), rel=1e-5)


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
def test_gradients_are_the_finite_differences_of_the_naive_formula(formulation, base):
    scores, labels, answers = random_case(3, seed=1, batch=6)
    scores.requires_grad_()
    DeferralLoss(formulation, base, K)(scores, labels, answers).backward()
    h = 1e-6
    for i, theta in enumerate(scores.detach().double().tolist()):
        for column in range(K + 3):
            up, down = list(theta), list(theta)
            up[column] += h
            down[column] -= h
            rise = [naive_loss(formulation, base, t, int(labels[i]), answers[i].tolist(), K) for t in (up, down)]
            slope = (rise[0] - rise[1]) / (2 * h) / len(labels)
            assert scores.grad[i, column].item() == pytest.approx(slope, abs=2e-6)


@pytest.mark.parametrize("base", BASES)
def test_bases_pass_gradcheck_in_float64(base):
    scores, labels, answers = random_case(3, seed=2, batch=5)
    weights = (answers == labels[:, None]).double()
    scores = scores.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: BASES[base](s, labels, weights), (scores,))


@pytest.mark.parametrize("base", BASES)
def test_with_one_expert_vanilla_is_picce(base):
    case = random_case(1)
    assert (case[2] == case[1][:, None]).any()
    vanilla, picce = (DeferralLoss(f, base, K)(*case) for f in ("vanilla", "picce"))
    assert torch.equal(vanilla, picce)


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
def test_permuting_the_experts_permutes_the_gradients(formulation, base):
    order = [2, 0, 3, 1]  # neither the identity nor a reversal
    scores, labels, answers = random_case(4)
    moved = torch.cat([scores[:, :K], scores[:, K:][:, order]], dim=1)
    loss, gradients = DeferralLoss(formulation, base, K), []
    for s, m in ((scores, answers), (moved, answers[:, order])):
        s.requires_grad_()
        value = loss(s, labels, m)
        gradients.append((value.item(), *torch.autograd.grad(value, s)))
    (before, before_grad), (after, after_grad) = gradients
    assert after == pytest.approx(before, rel=1e-6)
    torch.testing.assert_close(after_grad[:, K:], before_grad[:, K:][:, order])
    torch.testing.assert_close(after_grad[:, :K], before_grad[:, :K])


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
def test_column_k_plus_j_belongs_to_expert_j(formulation, base):
    """Only expert 0 is right and it scores highest: the gradient raises column K, and no other expert column."""
    scores = torch.tensor([[0.0, 0.0, 0.0, 1.0, -1.0, -2.0]], requires_grad=True)
    DeferralLoss(formulation, base, K)(scores, torch.tensor([1]), torch.tensor([[1, 0, 2]])).backward()
    assert [g < 0 for g in scores.grad[0].tolist()] == [False, True, False, True, False, False]


@pytest.mark.parametrize("base", BASES)
def test_picce_is_continuous_where_the_leading_expert_changes_and_pice_jumps(base):
    """Two experts cross at 0.7. In the first case both are right, in the second only expert 0 is."""

    def values(formulation: str, answers: list[int]) -> list[float]:
        return [
            loss_of(formulation, base, [0.3, -1.2, -0.9, 0.7, 0.7 + step], 1, answers, K) for step in (-1e-5, 0, 1e-5)
        ]

    for answers in ([1, 1], [1, 0]):
        below, tie, above = values("picce", answers)
        assert abs(below - tie) < 1e-4
        assert abs(above - tie) < 1e-4
    below, _, above = values("pice", [1, 0])
    phi = naive_phi(base, [0.3, -1.2, -0.9, 0.7, 0.7], K, K)
    assert below - above == pytest.approx(phi, abs=1e-4)
    assert abs(phi) > 0.5


def test_ties_go_to_the_lowest_index():
    tied = torch.tensor([[0.5, 2.0, 2.0, 2.0]])
    right = torch.tensor([[True, False, True, True]])
    assert FORMULATIONS["picce"](tied, right).tolist() == [[0, 0, 1, 0]]
    assert FORMULATIONS["pice"](tied, right).tolist() == [[0, 0, 0, 0]]  # expert 1 leads, and is wrong
    assert FORMULATIONS["pice"](tied, ~right).tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
def test_without_a_correct_expert_only_the_class_is_taught(formulation, base):
    theta = [0.4, -1.0, 0.2, 2.0, 0.0, -3.0]
    assert loss_of(formulation, base, theta, 1, [0, 2, 0], K) == pytest.approx(naive_phi(base, theta, 1, K), rel=1e-6)


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
def test_an_expert_without_an_answer_takes_no_part_in_the_loss(formulation, base):
    """Its column has no gradient, and all else is as if that expert were not there."""
    scores, labels, answers = random_case(3, batch=60)
    answers[:, 1] = -1
    loss = DeferralLoss(formulation, base, K)
    scores.requires_grad_()
    value = loss(scores, labels, answers)
    (gradient,) = torch.autograd.grad(value, scores)
    others = [*range(K), K, K + 2]
    fewer = scores.detach()[:, others].requires_grad_()
    alone = loss(fewer, labels, answers[:, [0, 2]])
    (gradient_alone,) = torch.autograd.grad(alone, fewer)
    torch.testing.assert_close(value, alone, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient[:, others], gradient_alone, rtol=1e-5, atol=1e-8)
    assert not gradient[:, K + 1].any()


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
def test_the_flag_complete_changes_no_bit_where_no_answer_is_missing(formulation, base):
    scores, labels, _ = random_case(4, seed=3)
    answers = torch.randint(K, (len(labels), 4), generator=torch.Generator().manual_seed(4))
    results = []
    for complete in (False, True):
        scores.requires_grad_()
        value = DeferralLoss(formulation, base, K, complete=complete)(scores, labels, answers)
        results.append((value, *torch.autograd.grad(value, scores)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
def test_huge_scores_stay_finite(formulation, base):
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * (K + 2))
    for answers in ([0, 0], [1, 0], [1, 1], [0, -1], [-1, -1]):
        scores = (1e4 * signs).requires_grad_()
        rows = len(scores)
        loss = DeferralLoss(formulation, base, K)(
            scores, torch.zeros(rows, dtype=torch.long), torch.tensor([answers]).expand(rows, 2)
        )
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(scores.grad).all()
    # theta_y = 1e4 against 0: nothing to lose; theta_y = -1e4 against 0: 1e4 to lose, plus what the zeros cost
    # (float32 numbers near 1e4 are 1e-3 apart).
    # A-SM: exp(0) against the two other classes gives u = 1/3, and against one (the other is predicted) u = 1/2.
    quiet = {"ce": 0.0, "ova": 4 * log(2), "gce": 0.0, "decoupled": 2 * log(2), "asm": 2 * log(3 / 2)}[base]
    assert loss_of(formulation, base, [1e4, 0, 0, 0, 0], 0, [1, 1], K) == pytest.approx(quiet, abs=2e-3)
    loud = {
        "ce": 1e4 + log(4), "ova": 1e4 + 4 * log(2), "gce": 1 / 0.7, "decoupled": 1e4 + 3 * log(2), "asm": 1e4 + 3 * log(2),
    }[base]  # fmt: skip
    assert loss_of(formulation, base, [-1e4, 0, 0, 0, 0], 0, [1, 1], K) == pytest.approx(loud, rel=1e-6)


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_give_a_float32_loss(formulation, base, dtype):
    """Equal to the float32 loss of the rounded scores, also where a sum in half precision would overflow."""
    scores, labels, answers = random_case(3)
    half = torch.cat([scores, torch.full((1, K + 3), 6e4)]).to(dtype).requires_grad_()
    labels, answers = torch.cat([labels, labels[:1]]), torch.cat([answers, labels[:1, None].expand(1, 3)])
    loss = DeferralLoss(formulation, base, K)
    got = loss(half, labels, answers)
    loss_in_float32 = loss(half.detach().float(), labels, answers)
    got.backward()
    assert got.dtype == torch.float32
    assert torch.isfinite(got)
    assert torch.equal(got, loss_in_float32)
    assert half.grad.dtype == dtype
    assert torch.isfinite(half.grad).all()


@pytest.mark.parametrize(("formulation", "base"), PAIRS)
def test_autocast_does_not_reach_the_loss(formulation, base):
    case = random_case(3)
    loss = DeferralLoss(formulation, base, K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(*case)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, loss(*case))


def test_no_gradient_flows_through_the_weights():
    """A formulation with smooth weights w = 2 sigmoid(score): phi's own gradient is all that comes back."""

    def smooth(expert_scores, correct):
        return 2 * expert_scores.sigmoid()

    scores, labels, answers = random_case(2)
    answers = answers.abs()  # all of them given
    scores.requires_grad_()
    DeferralLoss(smooth, "ova", K)(scores, labels, answers).backward()
    # d/dtheta [softplus(theta) - w theta] = sigmoid(theta) - w, with w held fixed
    expected = -scores[:, K:].detach().sigmoid() / len(labels)
    torch.testing.assert_close(scores.grad[:, K:], expected)


@pytest.mark.parametrize("answers_dtype", [torch.int8, torch.int16, torch.int64])
def test_answers_may_be_small_integers(answers_dtype):
    scores, labels, answers = random_case(3)
    loss = DeferralLoss("vanilla", "ce", K)
    assert torch.equal(loss(scores, labels, answers.to(answers_dtype)), loss(scores, labels, answers))


def test_a_users_own_formulation_and_base(tmp_path, monkeypatch):
    """By function and by dotted path: half the weight for every correct expert; squared distance to the target."""
    (tmp_path / "my_own_losses.py").write_text(
        "def half(expert_scores, correct):\n"
        "    return correct / 2\n"
        "def squared(scores, labels, weights):\n"
        "    import torch\n"
        "    classes = scores.shape[1] - weights.shape[1]\n"
        "    target = torch.nn.functional.one_hot(labels, classes).float()\n"
        "    return (scores - torch.cat([target, weights], 1)).square().sum(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_losses

    scores, labels, answers = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([1]), torch.tensor([[1, 0]])
    for formulation, base in (
        ("my_own_losses.half", "my_own_losses.squared"),
        (my_own_losses.half, my_own_losses.squared),
    ):
        # (1 - 0)^2 + (2 - 1)^2 + (3 - 1/2)^2 + (4 - 0)^2
        assert DeferralLoss(formulation, base, 2)(scores, labels, answers).item() == 1 + 1 + 6.25 + 16
    # the user's formulation with a base of the package: log 4 for the class, half of log 4 for expert 0
    mixed = DeferralLoss("my_own_losses.half", "ce", 2)(torch.zeros(1, 4), labels, answers)
    assert mixed.item() == pytest.approx(1.5 * log(4), rel=1e-6)


@pytest.mark.parametrize("wrong", ["pisce", "math.pi", "no_such_module.f", "", None])
def test_a_wrong_name_is_refused_with_the_names_that_work(wrong):
    with pytest.raises(UserError, match=r"formulation.*vanilla, picce, pice"):
        DeferralLoss(wrong, "ce", K)
    with pytest.raises(UserError, match=r"base.*ce, ova"):
        DeferralLoss("vanilla", wrong, K)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("number", [0.3, 2])
@pytest.mark.parametrize("base", sorted(BASES))
def test_a_weight_is_a_number_or_one_for_each_sample(base, number, reduction):
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(5, K + 2, generator=rng, dtype=torch.float64).requires_grad_()
    labels, taught = torch.tensor([0, 1, 2, 0, 1]), torch.rand(5, 2, generator=rng, dtype=torch.float64)
    values, gradients = [], []
    for weight in (number, torch.full((5, 1), number, dtype=torch.float64)):
        value = BASES[base](scores, labels, taught, weight, reduction)
        values.append(value)
        gradients += torch.autograd.grad(value.sum(), scores)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)
