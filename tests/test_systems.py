"""Systems of several networks: what each stage learns, what the outputs mean, and whole runs of them."""

import csv
import json
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from l2d.data import Batch
from l2d.errors import UserError
from l2d.evaluate import main as evaluate
from l2d.identity import choices, run_name
from l2d.losses import DeferralLoss
from l2d.report import load_runs
from l2d.systems import CompareConfidence, TwoStage, load_system
from l2d.task import load_task
from l2d.train import run

TINY = (
    "dataset.num_train=120", "dataset.num_test=200", "dataset.num_classes=8", "dataset.group_size=4", "experts.num=3",
    "backbone.hidden=8", "backbone.layers=1", "trainer.epochs=2", "trainer.batch_size=20", "verbose=false",
)  # fmt: skip


def linear(num_outputs: int) -> nn.Module:
    return nn.Linear(5, num_outputs)


def two_stage(formulation="vanilla", base="ce", num_experts=2, stage2="naive", num_train=8, **parts) -> TwoStage:
    loss = DeferralLoss(formulation, base, num_classes=3, **parts)
    return TwoStage(
        linear, loss, 3, num_experts, num_train=num_train, seed=0, stage2=stage2, folds=2, share=0.5, router_epochs=None
    )


def stages_of(folder: Path) -> list[str]:
    return [row["stage"] for row in csv.DictReader((folder / "metrics.csv").read_text().splitlines())]


def batch_of(labels: list[int], answers: list[list[int]]) -> Batch:
    count = len(labels)
    torch.manual_seed(0)
    return Batch(torch.randn(count, 5), torch.tensor(labels), torch.tensor(answers), torch.arange(count))


@pytest.fixture
def trained(composed, tmp_path, monkeypatch):
    """trained(*overrides) runs that setting below a folder of its own, and returns the run's folder."""
    monkeypatch.chdir(tmp_path)

    def train(*overrides: str) -> Path:
        before = set(Path("outputs").glob("*/*"))
        run(composed(*TINY, *overrides))
        (folder,) = set(Path("outputs").glob("*/*")) - before
        return folder

    return train


def test_a_method_without_a_loss_is_named_by_its_system(composed, trained):
    cfg = composed("system=compare_confidence")
    assert choices(cfg)["loss"] == "none" and cfg.loss._target_ is None
    assert run_name(cfg).startswith("synthetic/compare_confidence-specialist-J4-")
    folder = trained("system=compare_confidence")
    assert set(load_runs(folder.parent).method) == {"compare_confidence"}


@pytest.mark.parametrize(
    ("setting", "named"),
    [(("loss=none",), "loss=none"), (("loss=ce", "system=compare_confidence"), "loss=ce: system=compare_confidence")],
)
def test_a_loss_that_is_missing_or_not_used_is_refused(trained, setting, named):
    with pytest.raises(UserError, match=named):
        trained(*setting)


def test_confidences_are_learnt_apart_from_the_answers_that_are_there():
    system = CompareConfidence(linear, num_classes=3, num_experts=2).train()
    batch = batch_of([0, 2, 1], [[0, 1], [2, -1], [-1, -1]])
    classifier, experts = system.stages()
    system.stage = "classifier"
    classes = system(batch.inputs)  # [3, 3]
    mean = -sum(row.log_softmax(0)[y] for row, y in zip(classes, batch.labels, strict=True)) / 3
    assert classifier.loss(classes, batch).item() == pytest.approx(mean.item(), rel=1e-6)
    system.stage = "experts"
    p = system(batch.inputs).sigmoid()  # [3, 2]
    each = [-(p[0, 0].log() + (1 - p[0, 1]).log()) / 2, -p[1, 0].log(), torch.tensor(0.0)]  # of those who answered
    assert experts.loss(system(batch.inputs), batch).item() == pytest.approx((sum(each) / 3).item(), rel=1e-6)
    assert {id(p) for p in classifier.parameters}.isdisjoint(id(p) for p in experts.parameters)
    beliefs = system.eval().beliefs(system(batch.inputs))
    assert torch.allclose(beliefs[:, :3].float(), classes.softmax(1)) and torch.allclose(beliefs[:, 3:].float(), p)


def test_a_run_that_compares_confidences_has_two_stages_and_is_evaluated_again(trained, composed):
    folder = trained("system=compare_confidence", "evaluation=full")
    assert [row.split(",")[1] for row in (folder / "metrics.csv").read_text().split()[1:]] == [
        "classifier", "classifier", "experts", "experts",
    ]  # fmt: skip
    result = json.loads((folder / "result.json").read_text())
    assert result["evaluation"]["calibration"]["expert"]["ece"] is not None
    for weights in (folder, folder / "model.safetensors"):  # from the kept outcome, and from the weights
        evaluate([str(weights)])
        assert json.loads((folder / "evaluation.json").read_text())["metrics"] == result["metrics"]


def test_the_classifier_of_a_comparison_does_not_depend_on_the_experts(trained):
    few, many = (
        load_file(trained("system=compare_confidence", f"experts.num={n}") / "model.safetensors") for n in (1, 4)
    )
    same = [name for name in few if name.startswith("backbone.") and torch.equal(few[name], many[name])]
    assert same == [name for name in few if name.startswith("backbone.")]


@pytest.mark.parametrize("weight", [1.0, 0.3, "balanced"])
@pytest.mark.parametrize("base", ["ce", "ova", "gce"])
@pytest.mark.parametrize("formulation", ["vanilla", "picce", "pice"])
def test_a_router_is_taught_by_the_agents_who_are_right(formulation, base, weight):
    """Written out for every sample: agent 0 is the classifier, and an expert who did not answer is not there."""
    torch.manual_seed(1)
    scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    right = torch.tensor([True, False, True, False])
    batch = batch_of([0, 1, 2, 0], [[0, 0], [1, -1], [0, 2], [1, 2]])
    losses = two_stage(formulation, base, weight=weight).losses(scores, right, batch)
    for i, loss in enumerate(losses):
        answered = [0, *(1 + j for j in range(2) if batch.answers[i, j] >= 0)]
        correct = {0: bool(right[i])} | {a: batch.answers[i, a - 1] == batch.labels[i] for a in answered[1:]}
        by_score = sorted(answered, key=lambda a: -scores[i, a].item())
        taught = [a for a in answered if correct[a]]
        if formulation == "picce":
            taught = [a for a in by_score if correct[a]][:1]
        elif formulation == "pice":
            taught = [a for a in by_score[:1] if correct[a]]
        share = 1 / (len(answered) - 1) if weight == "balanced" else weight
        weights = {a: 1.0 if a == 0 else share for a in answered}
        if base == "ova":
            p = scores[i].sigmoid()
            expected = sum(-weights[a] * (p[a] if a in taught else 1 - p[a]).log() for a in answered)
        else:
            q = 0.7 if base == "gce" else 0.0
            e = {a: (scores[i, a].exp() * weights[a] ** (1 / (1 - q))) for a in answered}
            p = {a: e[a] / sum(e.values()) for a in answered}
            phi = (lambda u: -u.log()) if base == "ce" else (lambda u: (1 - u**0.7) / 0.7)
            expected = sum((weights[a] * phi(p[a]) for a in taught), torch.zeros(()))
        assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    assert torch.autograd.gradcheck(lambda s: two_stage(formulation, base).losses(s, right, batch), scores)


def population(counts: dict[tuple[int, ...], int]) -> tuple[torch.Tensor, Batch]:
    """Who is right, (classifier, expert 1, ..), so many times each: [right of the classifier], and the batch."""
    rows = torch.tensor([cell for cell, count in counts.items() for _ in range(count)])  # [N, 1+J]
    return rows[:, 0].bool(), batch_of([1] * len(rows), rows[:, 1:].tolist())


def least_risk(system: TwoStage, counts: dict[tuple[int, ...], int]) -> torch.Tensor:
    """The router's scores [1+J] of least mean loss on a population, the best of several starts."""
    right, batch = population(counts)
    found = []
    for start in range(6):
        torch.manual_seed(start)
        scores = torch.randn(1 + system.num_experts, dtype=torch.float64).requires_grad_()
        optimizer = torch.optim.LBFGS([scores], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

        def risk(scores=scores, optimizer=optimizer):
            optimizer.zero_grad()
            value = system.losses(scores.expand(len(right), -1), right, batch).mean()
            value.backward()
            return value

        optimizer.step(risk)
        found.append((risk().item(), scores.detach()))
    return min(found, key=lambda pair: pair[0])[1]


def outputs_of(system: TwoStage, router: torch.Tensor) -> torch.Tensor:
    """[1, K+J] of router scores [1+J], as `forward` puts them together, for a classifier that believes (.2, .7, .1)."""
    classes = torch.tensor([0.2, 0.7, 0.1]).log()
    return torch.cat([classes - classes.max() + router[0], router[1:]])[None]


WHO_IS_RIGHT = [  # counts of (classifier, expert 1, expert 2); the best agent is the classifier, expert 1, expert 2
    dict(zip(product((0, 1), repeat=3), counts, strict=True))
    for counts in ([5, 3, 4, 2, 11, 4, 6, 9], [6, 2, 13, 5, 3, 1, 8, 4], [4, 12, 2, 7, 3, 9, 1, 5])
]


@pytest.mark.parametrize("best", range(3))
@pytest.mark.parametrize(
    ("base", "weight"), [("ce", 1.0), ("ce", "balanced"), ("ova", 1.0), ("ova", "balanced"), ("gce", 1.0)]
)
def test_the_router_of_least_risk_trusts_the_best_agent_and_knows_how_good_they_are(base, weight, best):
    counts, system = WHO_IS_RIGHT[best], two_stage("vanilla", base, weight=weight)
    cells = torch.tensor([cell for cell, count in counts.items() for _ in range(count)], dtype=torch.float64)
    accuracy = cells.mean(dim=0)  # [3]
    assert int(accuracy.argmax()) == best
    router = least_risk(system, counts)
    assert int(router.argmax()) == best
    beliefs = system.beliefs(outputs_of(system, router))[0]
    assert int(beliefs[:3].argmax()) == 1, "the class that the classifier predicts"
    if base == "ova":
        assert system.vouches_for == "all"
        torch.testing.assert_close(beliefs[[1, 3, 4]], accuracy, atol=1e-5, rtol=0)
    else:
        assert system.vouches_for == "none"
        ratios = (beliefs[3:] / beliefs[1]).clamp(max=1 / 0.7)  # a belief is at most 1
        torch.testing.assert_close(ratios, (accuracy[1:] / accuracy[0]).clamp(max=1 / 0.7), atol=1e-4, rtol=0)
        torch.testing.assert_close(beliefs[:3].float(), torch.tensor([0.2, 0.7, 0.1]))


@pytest.mark.parametrize("formulation", ["vanilla", "picce"])
def test_a_router_for_one_expert_has_a_closed_form(formulation):
    """p(classifier right, expert right) = .3 both, .2 classifier alone, .4 expert alone. PiCCE: expert, or classifier alone."""
    counts = {(1, 1): 3, (1, 0): 2, (0, 1): 4, (0, 0): 1}
    system = two_stage(formulation, "ce", num_experts=1)
    router = least_risk(system, counts)
    odds = {"vanilla": 7 / 5, "picce": 7 / 2}[formulation]
    assert (router[1] - router[0]).exp().item() == pytest.approx(odds, rel=1e-4)


def test_a_router_that_picks_vouches_for_nobody():
    """PiCCE's other agents are believed to be right where all above them are wrong: here the classifier, with .2 for .5."""
    system = two_stage("picce", "ova", num_experts=1)
    router = least_risk(system, {(1, 1): 3, (1, 0): 2, (0, 1): 4, (0, 0): 1})
    torch.testing.assert_close(router.sigmoid(), torch.tensor([0.2, 0.7], dtype=torch.float64), atol=1e-4, rtol=0)
    assert system.vouches_for == "none"


@pytest.mark.parametrize("base", ["ce", "ova", "gce"])
@pytest.mark.parametrize("formulation", ["vanilla", "picce", "pice"])
def test_agents_are_interchangeable(formulation, base):
    system, order = two_stage(formulation, base), torch.tensor([2, 0, 1])
    right, batch = population(WHO_IS_RIGHT[0])
    scores = torch.randn(len(right), 3)
    agents = torch.cat([right[:, None], batch.answers == 1], dim=1)[:, order].long()
    exchanged = system.losses(scores[:, order], agents[:, 0].bool(), batch._replace(answers=agents[:, 1:]))
    torch.testing.assert_close(exchanged, system.losses(scores, right, batch))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("base", ["ce", "ova", "gce"])
def test_the_outputs_decide_as_the_router_and_predict_as_the_classifier(base, scale):
    from l2d.decisions import decide

    torch.manual_seed(0)
    system, inputs = two_stage("vanilla", base).eval(), scale * torch.randn(200, 5)
    with torch.no_grad():
        outputs, agent = system(inputs), system.router(inputs).argmax(dim=1)  # [200, K+J], [200]
        beliefs = system.beliefs(outputs)
        decision = decide(beliefs, 3, order=outputs)
        assert torch.equal(decision.predicted, system.backbone(inputs).argmax(dim=1))
    assert torch.equal(torch.where(decision.deferred, decision.expert + 1, 0), agent)
    assert beliefs.isfinite().all() and (beliefs >= 0).all() and (beliefs <= 1).all()
    assert (beliefs[:, :3].sum(dim=1) < 1 + 1e-9).all()


def test_probabilities_of_an_ova_router_add_up_to_one_where_they_can():
    beliefs = two_stage("vanilla", "ova").beliefs(outputs_of(None, torch.tensor([0.0, 1.0, -1.0])))
    assert beliefs[0, :3].tolist() == pytest.approx([1 / 3, 1 / 2, 1 / 6])  # .2 and .1 share what .5 leaves
    doubtful = two_stage("vanilla", "ova").beliefs(outputs_of(None, torch.tensor([-2.0, 1.0, -1.0])))
    own = torch.tensor(-2.0).sigmoid().item()  # the predicted class stays the most probable one
    assert doubtful[0, :3].tolist() == pytest.approx([own, own, own]) and int(doubtful[0, :3].argmax()) == 1


def test_the_router_learns_from_the_answers_of_networks_that_have_not_seen_the_row():
    system = two_stage(stage2="cross_fit", num_train=9)
    classifier, *folds, router = system.stages()
    assert [stage.name for stage in (classifier, *folds, router)] == ["classifier", "fold_1", "fold_2", "router"]
    assert classifier.rows is None and router.rows is None
    rows = [set(stage.rows.tolist()) for stage in folds]
    assert rows[0] | rows[1] == set(range(9)) and not rows[0] & rows[1] and {len(r) for r in rows} == {4, 5}
    batch = batch_of([1] * 9, [[1, 0]] * 9)._replace(samples=torch.arange(9).flip(0))
    outputs = torch.cat([torch.randn(9, 3), torch.tensor([[1.0, 2.0]]).expand(9, 2)], dim=1)  # only fold 1 is right
    unseen = torch.tensor([i not in rows[0] for i in batch.samples.tolist()])
    expected = system.losses(outputs[:, :3], unseen, batch).mean()
    assert router.loss(outputs, batch).item() == pytest.approx(expected.item())


def test_held_out_rows_are_the_routers_alone():
    classifier, router = two_stage(stage2="held_out", num_train=10).stages()
    assert sorted([*classifier.rows.tolist(), *router.rows.tolist()]) == list(range(10)) and len(router.rows) == 5


def test_the_classifier_is_bit_identical_whatever_the_router_learns(trained):
    settings = [("loss=ce",), ("loss=ova", "system.stage2=naive"), ("experts.num=1", "system.router_epochs=1")]
    folders = [trained("system=two_stage", *setting) for setting in settings]
    first, *others = (load_file(folder / "model.safetensors") for folder in folders)
    for other in others:
        names = [name for name in other if name.startswith(("backbone.", "folds."))]
        assert len(names) in (4, 12) and all(torch.equal(first[name], other[name]) for name in names)
    assert stages_of(folders[0]) == ["classifier"] * 2 + ["fold_1"] * 2 + ["fold_2"] * 2 + ["router"] * 2
    assert stages_of(folders[2])[-2:] == ["fold_2", "router"]
    assert folders[0].name.startswith("two_stage-ce-")


def test_one_classifier_serves_other_experts_and_losses(trained, composed, capsys):
    first = trained("system=two_stage", "loss=ova")
    init = f"init={first}"
    weights = load_file(first / "model.safetensors")
    for setting in (("experts.num=2",), ("loss=balanced_ova",)):
        second = trained("system=two_stage", init, *setting)
        again = load_file(second / "model.safetensors")
        names = [name for name in again if name.startswith(("backbone.", "folds."))]
        assert len(names) == 12 and all(torch.equal(weights[name], again[name]) for name in names)
        assert (second / "metrics.csv").read_text().count("\n") == 1 + 2  # the epochs of the router
    capsys.readouterr()
    other = trained("system=two_stage", init, "seed=1", "loss=ce")
    assert set(stages_of(other)) == {"fold_1", "fold_2", "router"} and "folds of that run" in capsys.readouterr().err
    assert torch.equal(load_file(other / "model.safetensors")["backbone.1.weight"], weights["backbone.1.weight"])
    score = trained("loss=ce")
    system = load_system(composed(*TINY, "system=two_stage", f"init={score}"), load_task(composed(*TINY)))
    assert [stage.name for stage in system.stages()] == ["fold_1", "fold_2", "router"]
    with pytest.raises(UserError, match=r"init.*stage2=held_out"):
        trained("system=two_stage", "system.stage2=held_out", init)
    held = trained("system=two_stage", "system.stage2=held_out")
    assert (trained("system=two_stage", "system.stage2=held_out", f"init={held}", "loss=ce") / "metrics.csv").exists()


def test_held_out_data_were_not_seen_by_the_run_that_weights_come_from(trained, composed, tmp_path):
    """Rules are fitted on them. The same rows may be held out again, and other data are other data."""
    seen, held = trained("loss=ce"), trained("loss=ce", "held_out=0.2")
    with pytest.raises(UserError, match=r"init=.*held_out=0 and seed=0.*held_out=0\.2"):
        trained("loss=ova", f"init={seen}", "held_out=0.2")
    with pytest.raises(UserError, match=r"init=.*held_out=0\.2 and seed=0.*seed=1"):
        trained("loss=ova", f"init={held}", "held_out=0.2", "seed=1")
    again = trained("loss=ova", f"init={held}", "held_out=0.2")
    second = trained("loss=ova", f"init={seen}", "trainer.epochs=1")
    (second / "config.yaml").write_text((second / "config.yaml").read_text().replace("held_out: 0", "held_out: 0.2"))
    with pytest.raises(UserError, match=f"init={seen}"):  # the run before
        trained("loss=asm", f"init={second}", "held_out=0.2")
    assert trained("loss=asm", f"init={again}", "held_out=0.2").exists()
    (held / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"config\.yaml.*held_out=0\.2"):
        trained("loss=decoupled", f"init={held}", "held_out=0.2")


def test_networks_that_saw_the_rows_of_a_fold_are_not_the_start_of_its_network(trained, composed):
    first = trained("system=two_stage")
    cfg = composed(*TINY, "system=two_stage", f"init={first}", "seed=1")
    system, theirs = load_system(cfg, load_task(cfg)), load_file(first / "model.safetensors")
    assert not any(torch.equal(theirs[name], own) for name, own in system.state_dict().items() if "folds." in name)


@pytest.mark.parametrize("stage2", ["cross_fit", "held_out", "naive"])
def test_a_two_stage_run_is_evaluated_again_and_reported(trained, stage2):
    folder = trained(
        "system=two_stage", "loss=ova", f"system.stage2={stage2}", "evaluation=full", "experts.answer_rate=0.8"
    )
    result = json.loads((folder / "result.json").read_text())
    assert result["evaluation"]["calibration"]["classifier"]["ece"] is not None
    for weights in (folder, folder / "model.safetensors"):
        evaluate([str(weights)])
        assert json.loads((folder / "evaluation.json").read_text())["metrics"] == result["metrics"]
    evaluate([str(folder), "dataset.num_train=30"])  # other training data, and so another division of them
    assert json.loads((folder / "evaluation.json").read_text())["source"] == "weights"
    named = {"cross_fit": "ova two_stage"}.get(stage2, f"ova two_stage stage2={stage2}")  # what is not the default
    assert set(load_runs(folder.parent).method) == {named}


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (("system.stage2=x",), r"system\.stage2=x"),
        (("system.folds=1",), r"system\.folds=1"),
        (("system.folds=121",), r"system\.folds=121 .* 120"),
        (("system.share=1.5",), r"system\.share=1\.5"),
        (("system.stage2=held_out", "system.share=0.001"), r"system\.share=0\.001 .* 120"),
        (("system.router_epochs=0",), r"system\.router_epochs=0"),
        (("loss=decoupled",), "loss .base=decoupled.*ce, ova or gce"),
        (("loss=soft_picce_ce",), "loss .SoftPicce.*ce, ova or gce"),
        (("loss=rs",), "loss .Realizable.*ce, ova or gce"),
        (("loss=css", "experts.costs=0.1"), "loss .CostSensitive.*ce, ova or gce"),
        (
            ("loss=ce", "experts.costs=0.1"),
            r"experts\.costs=0\.1 .* loss=ce with system=two_stage .* loss=ova or balanced_ova",
        ),
    ],
)
def test_a_setting_that_no_router_can_have_is_refused(trained, setting, named):
    with pytest.raises(UserError, match=named):
        trained("system=two_stage", *setting)
    assert not list(Path("outputs").glob("*/*/metrics.csv"))


MEMORISED = (
    "dataset.num_train=400", "dataset.num_test=2000", "dataset.num_classes=10", "dataset.group_size=5", "verbose=false",
    "dataset.separation=0.25", "experts.num=2", "experts.in_group=0.9", "backbone.hidden=128", "backbone.layers=1",
    "trainer.epochs=30", "trainer.batch_size=50", "system=two_stage", "loss=ova",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_router_that_learns_from_memorised_images_hardly_defers_and_errs_more(composed, tmp_path, seed):
    def metrics(stage2):
        return run(composed(*MEMORISED, f"system.stage2={stage2}", f"seed={seed}", f"output_dir={tmp_path}"))

    naive, fitted = metrics("naive"), metrics("cross_fit")
    assert naive["classifier_accuracy"] == fitted["classifier_accuracy"], "the classifier is the same"
    assert naive["coverage"] > 99 and fitted["coverage"] < 40
    assert naive["system_error"] > fitted["system_error"] + 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
@pytest.mark.parametrize("system", ["two_stage", "compare_confidence"])
def test_a_compiled_run_of_several_stages_ends_as_one_that_is_not(composed, tmp_path, monkeypatch, system):
    from torch._dynamo.utils import counters

    def metrics(*more):
        return run(composed(*TINY, f"system={system}", f"output_dir={tmp_path / str(len(more))}", *more))

    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assert metrics("trainer.compile=true") == metrics()
    assert not counters["graph_break"]
    torch._dynamo.reset()
