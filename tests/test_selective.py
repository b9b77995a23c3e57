"""system=selective: a routing table and a threshold, fitted on held-out data after a classifier was trained."""

import json
from pathlib import Path

import pytest
import torch
from conftest import finished
from torch import nn

from l2d.cli import main
from l2d.data import Batch
from l2d.evaluation import METRICS, measure, observe
from l2d.systems import SelectiveSystem
from l2d.systems.selective import best_threshold
from l2d.task import hold_out
from l2d.training.loop import Predicted

SMALL = ("dataset.num_train=400", "dataset.num_test=300", "trainer.epochs=3", "backbone.hidden=16", "held_out=0.4")


def selective(table: bool, num_experts: int = 2, strength: float = 2) -> SelectiveSystem:
    return SelectiveSystem(lambda _: nn.Identity(), 2, num_experts, seed=0, table=table, strength=strength)


def scores(sure: float, predicted: int) -> list[float]:
    """Scores of two classes with this probability of the predicted one."""
    return [sure, 1 - sure] if predicted == 0 else [1 - sure, sure]


# (probability, predicted class, label, answers of two experts), half of them for the table and half for the threshold
TABLE = [
    (0.9, 0, 0, [0, 1]),
    (0.9, 0, 1, [1, 0]),
    (0.9, 0, 1, [0, 1]),
    (0.9, 1, 1, [1, -1]),
    (0.9, 1, 0, [1, -1]),
]
THRESHOLD = [
    (0.54, 0, 1, [1, 0]),  # gap .64 - .54 = .10, asking helps
    (0.60, 0, 0, [0, 0]),  # gap .04, no difference
    (0.70, 0, 0, [1, 0]),  # gap -.06, asking harms
    (0.90, 0, 1, [1, 0]),  # gap -.26, asking helps
    (0.80, 1, 1, [-1, 0]),  # expert 1 alone: 1/3 - .80, asking harms
]


def settled(table: bool) -> SelectiveSystem:
    one, other = hold_out(10, 0.5, seed=0)
    rows = dict(zip([*one.tolist(), *other.tolist()], TABLE + THRESHOLD, strict=True))
    sure, predicted, labels, answers = zip(*(rows[i] for i in range(10)), strict=True)
    system = selective(table)
    outputs = torch.tensor([scores(p, k) for p, k in zip(sure, predicted, strict=True)]).log()
    system.settle(outputs, torch.tensor(labels), torch.tensor(answers, dtype=torch.int8))
    return system


def test_table_and_threshold_worked_by_hand():
    """Expert 0 is right on 3 of 5 (2 of 3 where class 0 is predicted, 1 of 2 where it is class 1), expert 1 on 1 of 3 (all class 0);
    two more answers are added. The gain is 1 from the first gap on, and again after the fourth: fewer questions win."""
    system = settled(table=True)
    expected = [[(2 + 2 * 3 / 5) / 5, (1 + 2 * 3 / 5) / 4], [(1 + 2 / 3) / 5, (2 / 3) / 2]]
    torch.testing.assert_close(system.table, torch.tensor(expected))
    assert system.threshold.item() == pytest.approx((0.10 + 0.04) / 2, abs=1e-6)
    beliefs = system.beliefs(torch.tensor([scores(0.54, 0), scores(0.8, 1)]).log())
    wanted = [[0.54, 0.46, 0.64 - 0.07, 1 / 3 - 0.07], [0.2, 0.8, 0.55 - 0.07, 1 / 3 - 0.07]]
    torch.testing.assert_close(beliefs, torch.tensor(wanted).double(), atol=1e-6, rtol=0)


def test_without_a_table_it_is_the_best_single_expert():
    """Gaps .06, .0, -.10, -.30 of expert 0, and 1/3 - .8 of expert 1."""
    system = settled(table=False)
    torch.testing.assert_close(system.table, torch.tensor([[0.6, 0.6], [1 / 3, 1 / 3]]))
    assert system.threshold.item() == pytest.approx(0.03, abs=1e-6)


def test_an_expert_without_answers_is_not_asked_and_few_samples_leave_the_threshold_at_0():
    system = selective(table=True)
    system.settle(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[0, -1]]))
    assert system.table[1].tolist() == [0, 0] and system.table[0].tolist() == [1, 1]
    assert system.threshold == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_other_threshold_is_better_on_the_samples_it_is_fitted_on(seed):
    rng = torch.Generator().manual_seed(seed)
    gap = (torch.rand(40, generator=rng) * 20 - 10).round() / 10.5  # with equal ones
    better = torch.randint(-1, 2, (40,), generator=rng)
    reached = better[gap > best_threshold(gap, better)].sum()
    assert reached == max(better[gap > t].sum() for t in torch.linspace(-1, 1, 2001))


def test_it_asks_exactly_where_the_gap_is_above_the_threshold():
    rng = torch.Generator().manual_seed(0)
    system = selective(table=True, num_experts=3)
    system.table.copy_(torch.rand(3, 2, generator=rng))
    outputs, labels = 3 * torch.randn(500, 2, generator=rng), torch.randint(2, (500,), generator=rng)
    answers = torch.randint(-1, 2, (500, 3), generator=rng)
    for threshold in (-0.9, -0.3, 0.0, 0.4):
        system.threshold.fill_(threshold)
        decision = observe(system, Predicted(outputs, labels, answers, torch.arange(500))).decision
        best = system.table.T[outputs.argmax(1)].masked_fill(answers < 0, -torch.inf).max(1)
        gap = best.values - outputs.softmax(1).max(1).values
        assert torch.equal(decision.deferred, gap > threshold)
        assert torch.equal(decision.expert[decision.deferred], best.indices[decision.deferred])


def test_only_the_classifier_is_trained():
    (stage,) = selective(table=True).stages()
    outputs = torch.randn(6, 2)
    batch = Batch(outputs, torch.tensor([0, 1, 1, 0, 1, 0]), torch.full((6, 2), -1), torch.arange(6))
    assert stage.loss(outputs, batch) == nn.functional.cross_entropy(outputs, batch.labels)


def test_a_run_its_weights_and_its_kept_outcome_say_the_same_also_after_an_interruption(
    tmp_path, monkeypatch, cut_and_continued
):
    monkeypatch.chdir(tmp_path)
    words = ["train", "system=selective", *SMALL, "evaluation=full", "trainer.eval_every=1"]
    main([*words, "output_dir=whole"])
    folder, result = finished("whole")
    assert result["vouches_for"] == "none" and 0 < result["metrics"]["coverage"] <= 100
    for source in (folder, folder / "model.safetensors"):
        main(["evaluate", str(source), "out=again.json"])
        again = json.loads(Path("again.json").read_text())
        assert again["metrics"] == result["metrics"] and again["evaluation"] == result["evaluation"], source

    assert cut_and_continued(*words)["metrics"] == result["metrics"]


def test_held_out_data_are_asked_for_before_training(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for command in (["train"], ["data", "check"]):
        with pytest.raises(SystemExit, match="2"):
            main([*command, "system=selective", *SMALL[:-1]])
        assert "held_out=0" in capfd.readouterr().err and not list(tmp_path.rglob("result.json")), command


def test_costs_are_refused_with_a_system_that_could_weigh_them(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["train", "system=selective", *SMALL, "experts.costs=0.1"])
    said = capfd.readouterr().err
    assert "experts.costs=0.1" in said and "system=compare_confidence" in said and "loss=" not in said
    assert not list(tmp_path.rglob("result.json"))
    main(["train", "system=compare_confidence", *SMALL, "experts.costs=0.1"])


def test_experts_who_know_nothing_are_not_asked():
    """Fitted on 2,000 samples: the system is hardly worse than the classifier alone."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (2000,), generator=rng)
    right = torch.rand(2000, generator=rng) < 0.8
    outputs = nn.functional.one_hot(torch.where(right, labels, 1 - labels), 2).float() * 1.5
    system = selective(table=True, strength=10)
    answers = torch.randint(2, (2000, 2), generator=rng)
    system.settle(outputs, labels, answers)
    got = measure(observe(system, Predicted(outputs, labels, answers, torch.arange(2000))), METRICS)
    assert got["coverage"] == 100 and 100 - got["system_error"] == pytest.approx(got["classifier_accuracy"])
