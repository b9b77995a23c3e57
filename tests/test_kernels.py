"""The functions in C: the same as torch, bit for bit where that is promised; refused where they cannot serve."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from l2d import kernels
from l2d.compose import compose
from l2d.conf_files import config_dir
from l2d.config import build
from l2d.data import Images, Loader, Preprocessing, Split
from l2d.decisions import decide, vote
from l2d.evaluation import METRICS, measure, outcome_of
from l2d.losses import DeferralLoss
from l2d.losses.deferral import without_unanswered
from l2d.models.standardise import Standardise
from l2d.place import Place

K, J, B = 7, 5, 33  # of which no vector has a multiple
CATALOGUE = sorted({path.stem for path in Path(config_dir(), "loss").glob("*.yaml")} - {"none"})


@pytest.fixture(autouse=True)
def compiled():
    if kernels._library is None:
        pytest.skip("needs a C compiler when l2d is installed")


@pytest.fixture
def by_torch(monkeypatch):
    """Call something without the library."""

    def call(function, *arguments, **named):
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "_library", None)
            return function(*arguments, **named)

    return call


def batch(scale=1.0, seed=0, dtype=torch.int8):
    """Scores, labels, and answers of which a fifth are missing."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(K, (B,), generator=rng)
    answers = torch.randint(-1, K, (B, J), generator=rng)
    answers = torch.where(torch.rand(B, J, generator=rng) < 0.5, labels[:, None], answers).to(dtype)
    answers[0], answers[1] = -1, (labels[1] + 1) % K  # nobody answers; nobody is right
    return scale * torch.randn(B, K + J, generator=rng), labels, answers


def loss_named(name, *words):
    return build(compose([f"loss={name}", "experts.costs=0.1", *words]), "loss", num_classes=K, num_experts=J)


def value_and_gradient(loss, scores, labels, answers):
    leaf = scores.clone().requires_grad_()
    value = loss(leaf, labels, answers)
    (gradient,) = torch.autograd.grad(3 * value, leaf)
    return value.detach(), gradient


@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_loss_and_its_gradient_are_those_of_torch_in_double_precision(name, scale, monkeypatch):
    loss, (scores, labels, answers) = loss_named(name), batch(scale)
    called = []
    monkeypatch.setattr(kernels._DeferralLoss, "apply", lambda *a: called.append(a) or type(a[0]).sum(a[0]))
    loss(scores, labels, answers)
    assert called, "the kernel is used"
    monkeypatch.undo()
    value, gradient = value_and_gradient(loss, scores, labels, answers)
    exact = lambda *a: loss.losses(*a, reduction="mean")  # noqa: E731  `forward` would go on in float32
    expected, slope = value_and_gradient(exact, scores.double(), labels, answers)
    torch.testing.assert_close(value.double(), expected, rtol=3e-6, atol=1e-6)
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-4, atol=1e-6 * max(scale, 1))
    assert torch.equal(gradient[:, K:][answers < 0], torch.zeros(int((answers < 0).sum())))


@pytest.mark.parametrize("weight", [0.3, "balanced"])
@pytest.mark.parametrize("base", ["ce", "ova", "gce", "decoupled", "asm"])
@pytest.mark.parametrize("formulation", ["vanilla", "picce", "pice"])
def test_weights_of_the_experts_terms(formulation, base, weight):
    loss, (scores, labels, answers) = DeferralLoss(formulation, base, K, weight=weight), batch(2.0)
    value, gradient = value_and_gradient(loss, scores, labels, answers)
    exact = lambda *a: loss.losses(*a, reduction="mean")  # noqa: E731
    expected, slope = value_and_gradient(exact, scores.double(), labels, answers)
    torch.testing.assert_close(value.double(), expected, rtol=3e-6, atol=1e-6)
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["ce", "soft_picce_ova", "asm", "rs"])
def test_any_number_of_threads_gives_the_same_loss_and_gradient(name):
    """Of 32,768 scores and more, some rows are computed in each of torch's threads."""
    loss, threads = loss_named(name), torch.get_num_threads()
    scores, labels, answers = (torch.cat([part] * 100) for part in batch())
    assert scores.numel() >= 32768  # PARALLEL_FROM in common.h
    try:
        torch.set_num_threads(1)
        value, gradient = value_and_gradient(loss, scores, labels, answers)
        torch.set_num_threads(3)
        again, slope = value_and_gradient(loss, scores, labels, answers)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(value, again) and torch.equal(gradient, slope)


@pytest.mark.parametrize("experts", [5, 70, 200])
@pytest.mark.parametrize("formulation", ["picce", "pice"])
def test_of_equal_scores_the_first_expert_is_taught_as_by_torch(formulation, experts, by_torch):
    """Scores of few values, so that several experts are level, in any block of 64 of them."""
    rng = torch.Generator().manual_seed(experts)
    labels = torch.randint(K, (B,), generator=rng)
    answers = torch.randint(-1, K, (B, experts), generator=rng, dtype=torch.int8)
    answers[0] = -1
    scores = torch.randint(-2, 3, (B, K + experts), generator=rng).float()
    scores[2] = 0  # all are level
    loss = DeferralLoss(formulation, "ce", K)
    _, gradient = value_and_gradient(loss, scores, labels, answers)
    _, slope = by_torch(value_and_gradient, loss, scores, labels, answers)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-6)


def test_a_loss_worked_by_hand():
    """Two classes, two experts who are both right, scores 0: CE is log 4 for the label and for each expert."""
    scores, labels, answers = torch.zeros(1, 4, requires_grad=True), torch.tensor([1]), torch.tensor([[1, 1]])
    value = DeferralLoss("vanilla", "ce", 2)(scores, labels, answers)
    value.backward()
    assert value.item() == pytest.approx(3 * torch.tensor(4.0).log().item(), rel=1e-6)
    assert scores.grad.tolist() == [pytest.approx([0.75, -0.25, -0.25, -0.25])]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64])
@pytest.mark.parametrize("name", ["picce_ce", "pice_ova", "moe"])
def test_the_type_of_the_answers_and_how_far_rows_are_apart_change_nothing(name, dtype):
    scores, labels, answers = batch()
    wide = torch.cat([scores, torch.zeros(B, 3)], dim=1)[:, : K + J]
    assert wide.stride(0) == K + J + 3
    loss = loss_named(name)
    assert torch.equal(loss(wide, labels, answers.to(dtype)), loss(scores, labels, answers))


def test_not_a_number_and_infinity_reach_the_loss():
    scores, labels, answers = batch()
    for name in CATALOGUE:
        for bad in (torch.nan, torch.inf):
            spoilt = scores.clone()
            spoilt[3, 1] = bad
            assert not torch.isfinite(loss_named(name)(spoilt, labels, answers)), name


def test_a_label_that_is_no_class_is_refused_as_torch_refuses_it():
    scores, labels, answers = batch()
    for wrong in (K + J, -3):
        with pytest.raises((IndexError, RuntimeError)):
            loss_named("ce")(scores, labels.index_fill(0, torch.tensor([2]), wrong), answers)


def test_what_a_kernel_does_not_know_goes_to_torch(by_torch):
    class Own(DeferralLoss):
        def weights(self, scores, labels, answers):
            return torch.zeros(len(scores), J)

    scores, labels, answers = batch()
    alone = torch.nn.functional.cross_entropy(without_unanswered(scores, answers), labels)
    torch.testing.assert_close(Own("vanilla", "ce", K)(scores, labels, answers), alone)
    for loss in (DeferralLoss(lambda theta, correct: correct / 2, "ce", K), DeferralLoss("vanilla", own_base, K)):
        assert torch.equal(
            loss(scores, labels, answers), by_torch(loss.losses, scores, labels, answers, reduction="mean")
        )


def own_base(scores, labels, weights):
    return scores.sum(dim=1)


@pytest.mark.parametrize("name", ["ce", "picce_ova", "asm", "rs"])
def test_second_derivatives_are_those_of_torch(name):
    scores, labels, answers = batch()
    leaf, loss = scores.requires_grad_(), loss_named(name)
    (slope,) = torch.autograd.grad(2 * loss(leaf, labels, answers), leaf, create_graph=True)
    exact = 2 * loss.losses(leaf, labels, answers, reduction="mean")
    (expected,) = torch.autograd.grad(exact, leaf, create_graph=True)
    torch.testing.assert_close(slope, expected)
    ours, theirs = (torch.autograd.grad(one.square().sum(), leaf)[0] for one in (slope, expected))
    assert theirs.abs().max() > 0
    torch.testing.assert_close(ours, theirs)


def test_graphs_fake_tensors_and_vmap_are_left_to_torch():
    scores, labels, answers = batch()
    loss = DeferralLoss("vanilla", "decoupled", K)
    with FakeTensorMode() as mode:
        faked = [mode.from_tensor(each) for each in (scores, labels, answers)]
        assert kernels.deferral_loss(loss.kernel(), *faked, loss.losses) is None and loss(*faked).shape == ()
    one = lambda s, y, m: loss(s[None], y[None], m[None])  # noqa: E731
    torch.testing.assert_close(torch.vmap(one)(scores, labels, answers).mean(), loss(scores, labels, answers))


@pytest.mark.parametrize("costs", [None, torch.linspace(0, 0.2, J, dtype=torch.float64)])
@pytest.mark.parametrize("case", ["random", "ties", "ties in order too", "infinite order", "NaN", "nobody there"])
def test_decisions_are_torchs_bit_for_bit(case, costs, by_torch):
    rng = torch.Generator().manual_seed(1)
    beliefs, order = torch.rand(400, K + J, dtype=torch.float64, generator=rng), torch.randn(400, K + J, generator=rng)
    available = torch.rand(400, J, generator=rng) < 0.6
    if case != "random":
        beliefs = (2 * beliefs).round() / 2
    if case == "ties in order too":
        order = order.round().double()
    if case == "infinite order":
        order[torch.rand(order.shape, generator=rng) < 0.3] = -torch.inf
    if case == "NaN":
        beliefs[5, 2] = torch.nan
    if case == "nobody there":
        available[:40] = False
    given = {"costs": costs, "available": available, "order": order}
    ours, theirs = decide(beliefs, K, **given), by_torch(decide, beliefs, K, **given)
    for one, other in zip(ours[:4], theirs[:4], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    utility = beliefs[:, K:].masked_fill(~available, -torch.inf)
    assert (kernels.decide(beliefs, utility, order) is None) == (case in ("NaN", "infinite order"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 3, 8, 100])
def test_argmax_takes_the_first_of_equals_and_not_a_number_before_all(columns, dtype):
    rng = torch.Generator().manual_seed(2)
    table = torch.randint(5, (500, columns + 2), generator=rng).to(dtype)
    table[torch.rand(table.shape, generator=rng) < 0.02] = torch.nan
    table[torch.rand(table.shape, generator=rng) < 0.3] = -torch.inf
    part = table[:, :columns]  # rows are apart
    assert torch.equal(kernels.argmax(part), part.argmax(dim=1))


@pytest.mark.parametrize("experts", [1, 20, 300])
@pytest.mark.parametrize("dtype, classes", [(torch.int8, 5), (torch.int8, 128), (torch.int16, 1000)])
def test_what_a_panel_says(dtype, classes, experts):
    rng = torch.Generator().manual_seed(3)
    answers, labels = torch.randint(-1, classes, (3000, experts), generator=rng).to(dtype), torch.arange(3000) % classes
    answers[:5] = -1
    right, given = answers == labels[:, None], answers >= 0
    heard = kernels.heard(answers, labels)
    assert torch.equal(heard.majority, vote(answers, given, torch.ones(1, 1)))
    for table, along_rows, along_columns in (
        (right, heard.right, heard.right_of),
        (given, heard.given, heard.given_of),
    ):
        assert torch.equal(along_rows, table.sum(dim=1, dtype=torch.int32))
        assert torch.equal(along_columns, table.sum(dim=0, dtype=torch.int32))

    gain, asked = torch.randn(right.shape, generator=rng).double(), torch.rand(right.shape, generator=rng) < 0.3
    gain[torch.rand(right.shape, generator=rng) < 0.4] = -torch.inf
    there, of_them_asked = kernels.right_experts(answers, labels, gain, asked)
    right &= gain > -torch.inf
    assert torch.equal(there, right.sum(dim=1, dtype=torch.int32))
    assert torch.equal(of_them_asked, (right & asked).sum(dim=1, dtype=torch.int32))


def test_metrics_are_the_same_without_the_library(by_torch):
    scores, labels, answers = batch()
    loss = loss_named("ova")
    metrics = lambda: measure(outcome_of(scores, labels, answers, loss), METRICS)  # noqa: E731
    ours, theirs = metrics(), by_torch(metrics)
    assert ours == theirs and None not in ours["expert_accuracy"] and ours["false_negative_rate"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux alone")
def test_large_tables_are_asked_for_in_large_pages():
    table = kernels.empty_table(4200, 1000)
    assert (table.shape, table.dtype) == ((4200, 1000), torch.float64)
    middle = table.data_ptr() + table.nbytes // 2
    asked = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
        elif line.startswith("VmFlags:") and first <= middle < last:
            asked = "hg" in line.split()
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no large pages")
    assert asked


def test_standardised_vectors_are_torchs_bit_for_bit(by_torch):
    x = 100 + torch.randn(64, 37, generator=torch.Generator().manual_seed(4))
    layer = Standardise(x.mean(dim=0).tolist(), x.std(dim=0).tolist())
    assert kernels.standardise(x, layer.mean, layer.scale) is not None
    assert torch.equal(layer(x), by_torch(layer, x))


@pytest.mark.parametrize("augment", ["none", "flip", "crop_flip", "evaluated"])
@pytest.mark.parametrize(
    "shape, size", [((3, 32, 32), (32, 32)), ((1, 9, 12), (8, 10)), ((3, 6, 5), (6, 5)), ((2, 300, 40), (300, 40))]
)
def test_windows_of_images_are_torchs_bit_for_bit(shape, size, augment, by_torch):
    rng = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (50, *shape), dtype=torch.uint8, generator=rng)
    mean, std = (0.5, 0.48, 0.44)[: shape[0]], (0.25, 0.21, 0.2)[: shape[0]]
    train = augment != "evaluated"
    preprocessing = Preprocessing((shape[0], *size), mean, std, augment=augment if train else "crop_flip")
    split = Split(Images(images, preprocessing), torch.zeros(50, dtype=torch.int64))

    def batches():
        loader = Loader(split, Place(), 8, seed=3, train=train)
        return loader.feed._kernel_serves, [part.inputs.clone() for part in loader.epoch(2, start=1)]

    (used, ours), (not_used, theirs) = batches(), by_torch(batches)
    assert used and not not_used and len(ours) == (5 if train else 6)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_indices_out_of_range_are_refused_before_anything_is_read():
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    affine, out = torch.ones(2, 1), torch.empty(1, 1, 8, 8)
    window = lambda *values: torch.tensor(values)[:, None]  # noqa: E731  [4, 1]
    for wrong in ((2, 0, 0, 0), (-1, 0, 0, 0), (0, 9, 0, 0), (0, 0, -1, 0)):
        assert not kernels.cut_windows(images, window(*wrong), affine, out, 4)
    assert kernels.cut_windows(images, window(1, 8, 8, 1), affine, out, 4)
    assert not kernels.cut_windows(images, window(1, 8, 8, 1), affine, torch.empty(2, 1, 8, 8), 4)


def test_a_library_from_another_source_is_not_used(tmp_path):
    """In a copy of the package whose source was changed after it was built."""
    package = tmp_path / "l2d" / "kernels"
    package.mkdir(parents=True)
    here = Path(kernels.__file__).parent
    for path in (here / "__init__.py", *here.glob("*.[ch]"), *here.glob("compiled*")):
        (package / path.name).write_bytes(path.read_bytes())
    for name in ("__init__.py", "errors.py", "lazy.py"):
        (tmp_path / "l2d" / name).write_bytes((here.parent / name).read_bytes())
    code = "from l2d import kernels; print(kernels.__file__, kernels._library is not None)"
    run = lambda: subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)  # noqa: E731
    done = run()
    assert done.stdout.split() == [str(package / "__init__.py"), "True"] and done.stderr == ""
    with (package / "panels.c").open("a") as file:
        file.write("\n")
    done = run()
    assert done.stdout.split()[1] == "False" and "l2d/kernels/*.c" in done.stderr and done.stderr.count("\n") == 1
