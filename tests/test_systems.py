"""Systems of several networks: what each stage learns, what the outputs mean, and whole runs of them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_report import write_run
from torch import nn

from l2d.data import Batch
from l2d.errors import UserError
from l2d.evaluate import main as evaluate
from l2d.identity import choices, run_name
from l2d.report import load_runs
from l2d.systems import CompareConfidence
from l2d.train import run

TINY = (
    "dataset.num_train=120", "dataset.num_test=200", "dataset.num_classes=8", "dataset.group_size=4", "experts.num=3",
    "backbone.hidden=8", "backbone.layers=1", "trainer.epochs=2", "trainer.batch_size=20", "verbose=false",
)  # fmt: skip


def linear(num_outputs: int) -> nn.Module:
    return nn.Linear(5, num_outputs)


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


def test_a_method_without_a_loss_is_named_by_its_system(composed, tmp_path):
    cfg = composed("system=compare_confidence")
    assert choices(cfg)["loss"] == "none" and cfg.loss._target_ is None
    assert run_name(cfg).startswith("synthetic/compare_confidence-specialist-J4-")
    write_run(tmp_path, "none", 4, 0, (30.0, 60, 50), system__name="compare_confidence", loss__formulation=None)
    assert set(load_runs(tmp_path).method) == {"compare_confidence"}


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
