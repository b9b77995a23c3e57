"""Panels of recorded and simulated experts: who is chosen, and every entry of their tables."""

import numpy as np
import pytest
import torch

from l2d.config import build, check
from l2d.data import Dataset, Loader, Split
from l2d.errors import UserError
from l2d.experts import Drawing, ExpertPanel, human, make_panel, mixed, simulate
from l2d.experts import simulator as simulator_module
from l2d.place import Place
from l2d.task import make_task

#                  labels: 0  0  0  0  1  1  1  1  2  2, answers of two annotators, -1 where there is none
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
A = np.array([0, 0, 0, 1, 1, 1, 2, 2, -1, -1])
B = np.array([2, 2, -1, -1, 1, 1, 1, 1, 2, 0])
# By hand. A: 5 of 8 right; nothing known about class 2, so 5/8 there and the rest spread. B: 5 of 8 right as well.
CONFUSION_A = [[3 / 4, 1 / 4, 0], [0, 1 / 2, 1 / 2], [3 / 16, 3 / 16, 5 / 8]]
CONFUSION_B = [[0, 0, 1], [0, 1, 0], [1 / 2, 0, 1 / 2]]


@pytest.fixture
def dataset():
    """Ten training images and their mirror as the test split; annotators 047 (A) and 966 (B)."""
    return Dataset(
        name="made",
        class_names=["a", "b", "c"],
        train=Split(torch.zeros(10, 3, 4, 4, dtype=torch.uint8), torch.from_numpy(LABELS)),
        test=Split(torch.zeros(10, 3, 4, 4, dtype=torch.uint8), torch.from_numpy(LABELS[::-1].copy())),
        annotators={"047": {"train": A, "test": A[::-1]}, "966": {"train": B, "test": B[::-1]}},
    )


def table(panel, dataset, split, epoch=0):
    return panel.answers(split, getattr(dataset, split).labels, epoch)


@pytest.mark.parametrize(("num", "answers"), [(1, [A]), (2, [A, B]), (None, [A, B])])
def test_human_tables_are_the_recorded_answers(dataset, num, answers):
    panel = human(dataset, num)
    assert panel.names == ["047", "966"][: len(answers)]
    assert panel.matrix is None
    for split, order in (("train", 1), ("test", -1)):
        assert table(panel, dataset, split).tolist() == np.stack(answers, axis=1)[::order].tolist()


@pytest.mark.parametrize("wanted", ["047", "47", 47, 0o47])
def test_annotator_ids_match_in_every_yaml_spelling(dataset, wanted):
    assert human(dataset, None, [966, wanted]).names == ["966", "047"]


def test_one_annotator_needs_no_brackets(dataset):
    assert human(dataset, 1, 966).names == human(dataset, 1, "966").names == ["966"]


def test_ids_survive_the_command_line(dataset, composed):
    cfg = composed("experts=human", "experts.annotators=[966,047]")
    panel = build(cfg, "experts", dataset=dataset)
    assert panel.names == ["966", "047"]
    assert table(panel, dataset, "train").tolist() == np.stack([B, A], axis=1).tolist()


@pytest.mark.parametrize(
    ("num", "annotators", "sentence"),
    [
        (3, None, "has 2 annotators, so choose 1 to 2, or let experts=mixed"),
        (0, None, "choose 1 to 2"),
        (2, ["047", "533"], "must name annotators of dataset=made, each once: 047, 966"),
        (2, ["047", 47], "each once"),
        (None, [], "must name annotators"),
        (1, ["047", "966"], "does not fit the 2 annotators"),
        (3, ["047", "966"], "does not fit the 2 annotators"),
        (1, 533, r"annotators=\[533\] must name"),
    ],
)
def test_human_rejects_invalid_numbers_and_names(dataset, num, annotators, sentence):
    with pytest.raises(UserError, match=sentence):
        human(dataset, num, annotators)


def test_extras_have_the_confusion_of_the_annotators_in_turn(dataset):
    panel = mixed(dataset, 5, None, "confusion")
    assert panel.names == ["047", "966", "047_simulated_1", "966_simulated_1", "047_simulated_2"]
    assert panel.matrix is None
    np.testing.assert_allclose(panel.confusion, [CONFUSION_A, CONFUSION_B, CONFUSION_A])


def test_extras_by_accuracy_spread_their_mistakes_evenly(dataset):
    panel = mixed(dataset, 3, None, "accuracy")
    np.testing.assert_allclose(panel.confusion[0], np.full((3, 3), 3 / 16) + np.eye(3) * (5 / 8 - 3 / 16))


def test_a_mixed_table_is_recorded_columns_then_drawn_ones(dataset):
    panel = make_panel(mixed(dataset, 4, None, "confusion"), dataset, Drawing(7))
    for split, order in (("train", 1), ("test", -1)):
        answers = table(panel, dataset, split).numpy()
        np.testing.assert_array_equal(answers[:, :2], np.stack([A, B], axis=1)[::order])
        labels = LABELS[::order]
        for column, confusion in ((2, CONFUSION_A), (3, CONFUSION_B)):  # only what the model has ever answered
            assert all(confusion[y][a] > 0 for y, a in zip(labels, answers[:, column], strict=True))
    more = make_panel(mixed(dataset, 6, None, "confusion"), dataset, Drawing(7))
    torch.testing.assert_close(table(more, dataset, "test")[:, :4], table(panel, dataset, "test"))
    other = make_panel(mixed(dataset, 4, None, "confusion"), dataset, Drawing(8))
    assert not torch.equal(table(other, dataset, "train"), table(panel, dataset, "train"))


def test_mixed_without_extras_equals_human(dataset):
    panel = mixed(dataset, 1, None, "confusion")
    assert panel.names == ["047"]
    assert table(panel, dataset, "train").tolist() == A[:, None].tolist()


def test_answers_follow_the_confusion_within_sampling_error():
    """60,000 draws: every frequency within five standard deviations, and never an answer of probability 0."""
    confusion = np.array([[[0.5, 0.3, 0.2], [0, 1, 0], [0.05, 0.95, 0]], np.full((3, 3), 1 / 3)])
    labels = np.repeat([0, 1, 2], 20_000)
    answers = simulate(confusion, labels, seed=1)
    for j in range(2):
        for y in range(3):
            counts = np.bincount(answers[labels == y, j], minlength=3) / 20_000
            for a, p in enumerate(confusion[j, y]):
                assert abs(counts[a] - p) <= 5 * np.sqrt(p * (1 - p) / 20_000), (j, y, a)


@pytest.mark.parametrize(("resample", "later"), [("once", []), ("per_epoch", [1, 2, 3])])
def test_a_task_draws_its_tables_once_and_anew_in_every_epoch_only_if_asked(
    dataset, composed, monkeypatch, resample, later
):
    drawn = []  # streams: 0 is the test split, 1 + e training epoch e
    monkeypatch.setattr(simulator_module, "simulate", lambda *a: drawn.append(a[3]) or simulate(*a))
    cfg = composed("experts=mixed", f"experts.resample={resample}")
    task = make_task(cfg, dataset)
    assert sorted(drawn) == [0, 1]
    train, test = (Loader(split, Place(), 5) for split in (task.train, task.test))
    drawn.clear()
    tables = []
    for epoch in range(3):
        tables.append(torch.cat([batch.answers for batch in train.epoch(epoch)]))
        assert torch.equal(torch.cat([batch.answers for batch in test.epoch(epoch)]), task.test.answers)
    assert drawn == later[1:]
    assert torch.equal(tables[0], task.train.answers)
    assert [torch.equal(table, tables[0]) for table in tables[1:]] == [not later] * 2


def test_recorded_answers_are_never_redrawn_but_extras_are(dataset):
    panel = make_panel(mixed(dataset, 6, None, "accuracy"), dataset, Drawing(0, "per_epoch"))
    first, second = (table(panel, dataset, "train", epoch) for epoch in (0, 1))
    assert torch.equal(first[:, :2], second[:, :2])
    assert not torch.equal(first[:, 2:], second[:, 2:])
    assert torch.equal(table(panel, dataset, "test", 0), table(panel, dataset, "test", 1))


def test_invalid_settings_are_rejected(dataset, composed):
    with pytest.raises(UserError, match="confusion or accuracy"):
        mixed(dataset, 4, None, "copy")
    with pytest.raises(UserError, match=r"^experts\.resample=always .*once or per_epoch"):
        check(composed("experts=mixed", "experts.resample=always"))


def test_no_expert_is_modelled_on_an_annotator_who_never_answered(dataset):
    dataset.annotators["966"]["train"] = np.full(10, -1)
    with pytest.raises(UserError, match="966 has no answer in the training split"):
        mixed(dataset, 4, None, "confusion")


def test_a_panel_of_recorded_answers_is_taken_as_it_is_and_must_fit_the_samples(dataset):
    recorded = {"train": np.stack([A, B], axis=1), "test": np.stack([A, B], axis=1)[::-1]}  # [N, J]
    panel = make_panel(ExpertPanel(["047", "966"], recorded=recorded), dataset, Drawing())
    assert table(panel, dataset, "train").tolist() == recorded["train"].tolist()
    for wrong in (recorded["test"][1:], recorded["test"][:, :1], recorded["test"] + 1, recorded["test"] - 1):
        with pytest.raises(UserError, match=r"on test have shape .*\[10 samples, 2 experts\] .*from 0 to 2"):
            make_panel(ExpertPanel(["047", "966"], recorded=recorded | {"test": wrong}), dataset, Drawing())
