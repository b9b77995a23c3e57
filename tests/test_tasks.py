"""Tasks: each composes, trains and tests what it says; copies, shifts and the expert patterns behind them, by hand."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import test_cifar100
import test_features
import test_folder
import torch
from omegaconf import open_dict

from l2d.cli import main
from l2d.config import build, check, config_dir, plain
from l2d.errors import UserError
from l2d.evaluation import bayes_optimum
from l2d.experts import Drawing, ExpertPanel, disjoint, disjoint_domains, graded, make_panel, with_generalist
from l2d.identity import choices, settings
from l2d.inspect import main as inspect
from l2d.report.settings import block_settings
from l2d.task import load_task, make_task
from l2d.theory import condition_holds, condition_holds_given, independent_experts

TASKS = sorted(file.stem for file in Path(config_dir(), "task").glob("*.yaml"))
REAL = {"cifar10h": 3, "cifar100_animal": 20, "annotators": None}
EMBEDDED = [task for task in TASKS if task not in REAL]
NUM = {"overlapped": 18, "many_experts": 100, "condition1_fails": 5, "shift": 4}  # experts; 20 in the others
GROUPS = {"g": [0, 1, 2, 3]}


@pytest.fixture
def panel_of(tiny_dataset):
    """The panel that simulates an accuracy matrix [J, 10] under a Drawing with these settings."""
    return lambda matrix, **drawing: make_panel(matrix, tiny_dataset(10), Drawing(**drawing))


@pytest.fixture
def truth_of(composed):
    return lambda *overrides: load_task(composed(*overrides)).truth


LABELS = torch.arange(2000) % 10
SKILL = np.linspace(0.2, 0.9, 50).reshape(5, 10)


# tasks


@pytest.mark.parametrize("name", TASKS)
def test_a_task_sets_data_and_experts_alone_and_names_its_experts(composed, name):
    cfg, default = composed(f"task={name}"), composed()
    expected = REAL[name] if name in REAL else NUM.get(name, 20)
    assert (cfg.experts.name, cfg.experts.num) == (name, expected)
    assert choices(cfg)["experts"] == name
    if name in REAL:
        return
    check(cfg)
    for group in cfg:
        if group not in ("dataset", "experts", "hydra"):
            expected = (
                {**default[group], "epochs": 150} if (name, group) == ("few_samples", "trainer") else default[group]
            )
            assert cfg[group] == expected, group
    changed = {key for key in cfg.dataset if cfg.dataset[key] != default.dataset[key]}
    assert changed == ({"num_train"} if name == "few_samples" else set())


def test_a_command_line_changes_a_task_and_an_experiment_may_choose_one(composed, tmp_path):
    assert composed("task=few_samples", "experts.num=4").experts.num == 4
    assert composed("experiment=all_methods", "task=duplicates").experts.distinct == 1
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /task: shift\nexperts:\n  shift: {expert_1: 0.2}\n"
    )
    chosen = composed(f"hydra.searchpath=['file://{tmp_path}']", "experiment=mine").experts
    assert (chosen.name, dict(chosen.shift)) == ("shift", {"expert_0": 0.5, "expert_1": 0.2})


@pytest.mark.slow
def test_every_embedded_task_trains_and_knows_its_optimum(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    tiny = ["dataset.num_train=300", "dataset.num_test=200", "trainer.epochs=1", "verbose=false", "loss=ova"]
    main(["train", "-m", f"task={','.join(EMBEDDED)}", *tiny])
    results = [json.loads(file.read_text()) for file in Path("outputs").rglob("result.json")]
    assert sorted(result["choices"]["experts"] for result in results) == EMBEDDED
    for result in results:
        name = result["choices"]["experts"]
        assert result["status"] == "finished"
        assert len(result["experts"]) == NUM.get(name, 20)
        assert 0 < result["bayes"]["system_error"] <= 100 - result["bayes"]["classifier_accuracy"] + 1e-9
        assert ("system_cost" in result["bayes"]) == (name == "unequal_costs")
    capfd.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(next(Path("outputs").rglob("result.json")).parent), "task=shift"])
    assert "task=shift is not possible here" in capfd.readouterr().err


@pytest.mark.slow
def test_the_real_tasks_train_on_the_data_of_a_path(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    test_features.make(Path("people.npz"), 0, 0, names=("net", "nurse"))
    test_folder.write_csv(Path("."))
    test_cifar100.write(tmp_path, test_cifar100.contents())
    small = ["trainer.epochs=1", "trainer.batch_size=2", "verbose=false"]
    main(["train", "task=cifar10h", "dataset.path=people.npz", "experts.num=2", *small])
    main(["train", "task=annotators", "dataset.root=.", "dataset.manifest=labels.csv", *test_folder.SMALL, *small])
    main(["train", "task=cifar100_animal", "dataset.root=.", "dataset.verify=false", "backbone.depth=10", *small])
    results = [json.loads(file.read_text()) for file in Path("outputs").rglob("result.json")]
    found = {result["choices"]["experts"]: [expert["name"] for expert in result["experts"]] for result in results}
    assert found["cifar10h"] == ["net", "nurse"]
    assert found["annotators"] == ["ada", "bob"]
    assert len(found["cifar100_animal"]) == 20
    capfd.readouterr()


def test_the_optimum_of_never_defer_keeps_every_sample(truth_of):
    assert bayes_optimum(truth_of("task=never_defer"))["coverage"] == 100


def test_copies_and_more_specialists_of_a_kind_leave_the_optimum_as_it_is(truth_of):
    optimum = {
        key: bayes_optimum(truth_of(*overrides))
        for key, overrides in {
            "copies": ["task=duplicates"],
            "one": ["task=specialists", "experts.num=1"],
            "many": ["task=many_experts"],
            "twenty": ["task=specialists"],
        }.items()
    }
    assert optimum["copies"] == pytest.approx(optimum["one"])
    assert optimum["many"] == pytest.approx(optimum["twenty"])
    assert optimum["twenty"]["system_error"] < optimum["one"]["system_error"]


def test_the_truth_follows_the_shift(composed):
    """Acc_0(x) at test is half of what it is without the shift; the others' are the same."""
    task, before = load_task(composed("task=shift")), load_task(composed("task=shift", "experts.shift=null"))
    torch.testing.assert_close(task.truth.accuracy[:, 0], before.truth.accuracy[:, 0] / 2)
    assert torch.equal(task.truth.accuracy[:, 1:], before.truth.accuracy[:, 1:])
    assert torch.equal(task.train.answers, before.train.answers)
    accuracy = task.experts()[0]
    assert accuracy["test_accuracy"] == pytest.approx(accuracy["train_accuracy"] / 2, abs=2)
    assert bayes_optimum(task.truth)["system_error"] > bayes_optimum(before.truth)["system_error"]


def test_held_out_data_follow_training(composed):
    held_out = [
        load_task(composed("task=shift", "held_out=0.2", f"experts.shift={shift}")).held_out.answers
        for shift in ("null", "{expert_0:0}")
    ]
    assert torch.equal(*held_out)


# Condition 1


def test_condition_1_fails_where_the_generalist_is_best_and_holds_where_a_specialist_is():
    """By hand, expert 0 right with 0.8 on all, 1 on {0, 1} and 2 on {2, 3} with 0.95, else 0.05. eta = (3, 3, 2, 2) / 10: Acc =
    (0.8, 0.59, 0.41), and 0 and 2 together are right with 0.6 (1 - 0.2 * 0.95) + 0.4 (1 - 0.2 * 0.05) = 0.882, 1 and 2 with
    1 - 0.05 * 0.95 = 0.9525."""
    matrix = with_generalist(3, 4, GROUPS, "g", overlap=0, in_domain=0.95, in_group=0.05, generalist=0.8)
    assert matrix.tolist() == [[0.8] * 4, [0.95, 0.95, 0.05, 0.05], [0.05, 0.05, 0.95, 0.95]]
    eta = torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.97, 0.01, 0.01, 0.01]], dtype=torch.float64)
    experts = torch.from_numpy(matrix)
    assert [condition_holds(independent_experts(row, experts)) for row in eta] == [False, True]
    assert condition_holds_given(eta, experts).tolist() == [False, True]


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_condition_1_of_independent_experts_agrees_with_the_definition(num):
    generator = torch.Generator().manual_seed(num)
    eta, *matrices = torch.rand(9, num, 3, dtype=torch.float64, generator=generator)
    eta = eta / eta.sum(dim=1, keepdim=True)
    exact = [[condition_holds(independent_experts(row, matrix)) for row in eta] for matrix in matrices]
    assert [condition_holds_given(eta, matrix).tolist() for matrix in matrices] == exact
    assert {holds for row in exact for holds in row} == ({True, False} if num > 2 else {True})


def test_condition_1_fails_on_most_inputs_of_its_task(composed):
    task = load_task(composed("task=condition1_fails"))
    holds = condition_holds_given(task.truth.eta, torch.from_numpy(task.panel.matrix))
    assert 100 * (~holds).double().mean().item() == pytest.approx(
        62.2, abs=0.1
    )  # as the task and docs/benchmark.md say


# expert patterns


def test_domains_begin_again_from_the_start_of_the_group():
    assert disjoint_domains([9, 4, 6, 1, 0], 5, 2, wrap=True) == [[9, 4], [6, 1], [9, 4], [6, 1], [9, 4]]
    matrix = disjoint(9, 6, GROUPS, "g", 1, 0.9, 0.5, wrap=True)
    assert np.array_equal(matrix[4:8], matrix[:4])
    assert matrix[8].tolist() == [0.9, 0.5, 0.5, 0.5, 1 / 6, 1 / 6]


@pytest.mark.parametrize(("size", "wrap", "named"), [(2, False, "experts.wrap=true"), (6, True, "at most 0 experts")])
def test_domains_that_do_not_fit_are_refused(size, wrap, named):
    with pytest.raises(UserError, match=named):
        disjoint_domains(range(5), 3, size, wrap)


def test_graded_experts_entry_by_entry():
    matrix = graded(4, 5, GROUPS, "g", 0.9, (0.4, 0.2))
    np.testing.assert_allclose(matrix, [[skill] * 4 + [0.2] for skill in (0.9, 0.4, 0.3, 0.2)])
    assert graded(2, 3, {}, None, 0.5, 0.25).tolist() == [[0.5] * 3, [0.25] * 3]
    assert graded(1, 3, {}, None, 0.5, 0.25).tolist() == [[0.5] * 3]


def test_a_generalist_alone_and_with_specialists(composed):
    """Group of six classes, two windows of four that share two."""
    cfg = composed("experts=generalist", "experts.num=3", "experts.overlap=2")
    matrix = build(cfg, "experts", num_classes=10, groups={"specialty": list(range(6))})
    outside = [0.1] * 4
    expected = [[0.8] * 6, [0.95] * 4 + [0.05] * 2, [0.05] * 2 + [0.95] * 4]
    assert matrix.tolist() == [row + outside for row in expected]
    cfg.experts.num = 1
    alone = build(cfg, "experts", num_classes=10, groups={"specialty": list(range(6))})
    assert alone.tolist() == matrix[:1].tolist()


# copies


@pytest.mark.parametrize("more", [{}, {"correlation": 0.6}, {"answer_rate": 0.3}, {"resample": "per_epoch"}])
def test_copies_answer_as_their_originals_do_and_nobody_else_changes(panel_of, more):
    panel, alone = panel_of(SKILL, distinct=2, **more), panel_of(SKILL, **more)
    assert panel.names == ["expert_0", "expert_1", "expert_0_copy_2", "expert_1_copy_2", "expert_0_copy_3"]
    assert np.array_equal(panel.matrix, SKILL[[0, 1, 0, 1, 0]])
    for split, epoch in (("train", 0), ("train", 3), ("test", 0), ("held_out", 0)):
        answers = panel.answers(split, LABELS, epoch)
        assert torch.equal(answers, alone.answers(split, LABELS, epoch)[:, [0, 1, 0, 1, 0]])
        assert answers.is_contiguous()


def test_as_many_distinct_experts_as_there_are_leave_no_copies(panel_of):
    for distinct in (5, 9):
        panel = panel_of(SKILL, distinct=distinct)
        assert panel.names == [f"expert_{j}" for j in range(5)]
        assert torch.equal(panel.answers("test", LABELS), panel_of(SKILL).answers("test", LABELS))


def test_recorded_experts_have_no_copies_and_modelled_ones_do(composed, tiny_dataset, capsys):
    data = tiny_dataset(4, annotators=2)
    mixed = make_task(composed("experts=mixed", "experts.num=5", "experts.distinct=1"), data)
    assert mixed.expert_names == [
        "annotator_0", "annotator_1",
        "annotator_0_simulated_1", "annotator_0_simulated_1_copy_2", "annotator_0_simulated_1_copy_3",
    ]  # fmt: skip
    assert torch.equal(mixed.train.answers[:, 2], mixed.train.answers[:, 4])
    capsys.readouterr()
    people = make_task(composed("experts=human", "+experts.distinct=1"), data)
    assert people.expert_names == ["annotator_0", "annotator_1"]
    assert "experts.distinct=1" in capsys.readouterr().err


def test_a_population_has_copies_and_shifts_too(composed):
    cfg = composed("system=population", "experts.population=3", "experts.num=2", "experts.distinct=2")
    task = load_task(cfg)
    assert task.population.names == ["expert_0", "expert_1", "expert_0_copy_2"]
    assert task.expert_names == ["expert_1_copy_2", "expert_0_copy_3"]
    assert torch.equal(task.context_answers[:, 1], task.train.answers[:, 0])
    cfg.experts.shift = {"expert_1": 0}
    shifted = load_task(cfg)
    assert torch.equal(shifted.train.answers, task.train.answers)
    assert shifted.truth.accuracy[:, 0].max() == 0
    assert not (shifted.test.answers[:, 0] == shifted.test.labels).any()
    assert torch.equal(shifted.truth.accuracy[:, 1], task.truth.accuracy[:, 1])


# shift


def test_a_shift_changes_the_test_table_of_the_expert_it_names_and_nothing_else(panel_of):
    panel, before = panel_of(SKILL, shift={"expert_3": 0.0}), panel_of(SKILL)
    for split in ("train", "held_out"):
        assert torch.equal(panel.answers(split, LABELS), before.answers(split, LABELS))
    test, usual = panel.answers("test", LABELS), before.answers("test", LABELS)
    others = [0, 1, 2, 4]
    assert torch.equal(test[:, others], usual[:, others])
    assert not (test[:, 3] == LABELS).any()
    assert (usual[:, 3] == LABELS).double().mean() > 0.6


def test_a_copy_shifts_with_its_original(panel_of):
    panel = panel_of(SKILL, distinct=2, shift={"expert_1": 0.5})
    np.testing.assert_allclose(panel.accuracies("test"), [SKILL[0], SKILL[1] / 2] * 2 + [SKILL[0]])
    np.testing.assert_array_equal(panel.accuracies("train"), panel.matrix)
    answers = panel.answers("test", LABELS)
    assert torch.equal(answers[:, 1], answers[:, 3])


@pytest.mark.parametrize("drawing", [{"shift": {"nobody": 0.5}}, {"shift": {"expert_2": 0.5}, "distinct": 2}])
def test_a_shift_of_nobody_is_refused(panel_of, drawing):
    with pytest.raises(UserError, match=r"^experts\.shift=.*expert_0, expert_1"):
        panel_of(SKILL, **drawing)


def test_recorded_answers_do_not_shift(tiny_dataset):
    data = tiny_dataset(4, annotators=2)
    recorded = {split: np.zeros((len(samples), 1), int) for split, samples in data.splits().items()}
    with pytest.raises(UserError, match=r"^experts\.shift=.*nobody here"):
        make_panel(ExpertPanel(["ada"], recorded=recorded), data, Drawing(shift={"ada": 0.5}))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("experts.distinct=0", "experts.distinct=0"),
        ("experts.shift={expert_0:1.5}", "experts.shift.expert_0=1.5"),
        ("experts.shift={0:0.5}", "experts.shift={0: 0.5}"),
        ("experts.shift=0.5", "experts.shift=0.5"),
    ],
)
def test_invalid_copies_and_shifts_are_rejected(composed, override, named):
    with pytest.raises(UserError) as refused:
        check(composed(override))
    assert str(refused.value).startswith(f"{named} must be ")


# what stays as it was

# Digests of the tables of training epochs 0 and 2, test and held-out, before there were copies and shifts.
TABLES = {
    Drawing(3): ("15c48b71beb2bde1", "c43c5943f7ba0a74"),
    Drawing(3, "per_epoch"): ("b62e8fcb5d86fa61", "22cf7196a6340036"),
    Drawing(3, "once", 0.6, 0.3): ("aee335ce5bfe34fc", "38a6ffb533393401"),
}


@pytest.mark.parametrize("drawing", TABLES)
def test_tables_without_copies_and_shifts_are_what_they_were(drawing):
    matrix = np.linspace(0.1, 0.9, 24).reshape(4, 6)
    confusion = np.stack([np.full((6, 6), 0.1) + 0.4 * np.eye(6)] * 2)
    labels = torch.arange(600) % 6
    panels = ExpertPanel(list("abcd"), matrix, drawing=drawing), ExpertPanel(list("ab"), None, {}, confusion, drawing)
    for panel, digest in zip(panels, TABLES[drawing], strict=True):
        moments = (("train", 0), ("train", 2), ("test", 0), ("held_out", 0))
        tables = torch.cat([panel.answers(split, labels, epoch) for split, epoch in moments])
        assert hashlib.sha256(tables.numpy().tobytes()).hexdigest()[:16] == digest


def test_keys_that_say_nothing_leave_a_run_the_one_it_was(composed):
    """Neither the fingerprint nor the report tells a run from one of a version without these keys."""
    cfg = composed()
    older = composed()
    with open_dict(older):
        for key in ("distinct", "shift", "wrap", "population"):
            del older.experts[key]
    assert settings(cfg) == settings(older)
    assert block_settings(_plain(cfg), {}) == block_settings(_plain(older), {})
    for override in ("experts.distinct=2", "experts.shift={expert_0:0.5}", "experts.wrap=true"):
        changed = composed(override)
        assert settings(changed) != settings(cfg)
        assert block_settings(_plain(changed), {}) != block_settings(_plain(cfg), {})


def _plain(cfg) -> dict:
    return {str(group): plain(cfg[group]) for group in cfg if group != "hydra"}


def test_data_check_says_who_is_a_copy_and_whose_accuracy_shifts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["dataset.num_train=200", "dataset.num_test=200"]
    inspect(["check", "task=shift", "experts.distinct=3", *small])
    shown = " ".join(capsys.readouterr().out.split())
    assert "experts.shift): expert_0 0.5." in shown
    assert "1 of 4 experts answer every training sample exactly as another one does" in shown
    inspect(["check", *small])
    assert "as another one does" not in capsys.readouterr().out
