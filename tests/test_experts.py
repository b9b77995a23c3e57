"""Experts: accuracy matrices entry by entry, and what the simulator draws from them."""

from collections import Counter
from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
import torch

from l2d.config import build, check
from l2d.errors import UserError
from l2d.experts import (
    Drawing,
    ExpertPanel,
    accuracy_matrix,
    disjoint_domains,
    human,
    make_panel,
    overlapped_domains,
    simulate,
)
from l2d.experts import simulator as simulator_module

# pattern: K, the group's size, classes per expert or overlap, in domain (first, last expert), rest of the group
PAPER = {
    "animal": (100, 50, ("disjoint", 2), (0.94, 0.94), 0.75),
    "animal_overlapped": (100, 50, ("overlap", 5), (0.94, 0.94), 0.75),
    "animal_varying": (100, 50, ("disjoint", 2), (0.88, 0.94), 0.75),
    "dog": (1000, 120, ("disjoint", 5), (0.88, 0.88), 0.75),
    "dog_overlapped": (1000, 120, ("overlap", 50), (0.88, 0.88), 0.75),
    "dog_varying": (1000, 120, ("disjoint", 5), (0.75, 0.88), 0.75),
}
# Where windows begin and end in the ordered group, by hand from the lengths: n + (J - 1) o shared out over J windows.
# n=50, o=5: (50 + 5 (J - 1)) / J; n=120, o=50: (120 + 50 (J - 1)) / J.
WINDOW_LENGTHS = {
    (50, 4): [17, 16, 16, 16],  # 65
    (50, 8): [11] * 5 + [10] * 3,  # 85
    (50, 12): [9] * 9 + [8] * 3,  # 105
    (50, 16): [8] * 13 + [7] * 3,  # 125
    (50, 20): [8] * 5 + [7] * 15,  # 145
    (120, 4): [68, 68, 67, 67],  # 270
    (120, 8): [59] * 6 + [58] * 2,  # 470
    (120, 12): [56] * 10 + [55] * 2,  # 670
    (120, 16): [55] * 6 + [54] * 10,  # 870
    (120, 20): [54] * 10 + [53] * 10,  # 1070
}


def scattered_group(size: int, num_classes: int) -> list[int]:
    """An ordered group that is neither sorted nor contiguous, so that an index is not mistaken for a class."""
    return [(7 * i + 3) % num_classes for i in range(size)]


@pytest.mark.parametrize("num", [4, 8, 12, 16, 20])
@pytest.mark.parametrize("pattern", PAPER)
def test_every_pattern_and_count_of_the_paper_entry_by_entry(composed, pattern, num):
    num_classes, size, (kind, width), (first, last), rest = PAPER[pattern]
    group = scattered_group(size, num_classes)
    name = pattern.partition("_")[0]
    cfg = composed(f"experts={pattern}")
    cfg.experts.num = num
    matrix = build(cfg, "experts", num_classes=num_classes, groups={name: group})
    assert matrix.shape == (num, num_classes)
    members, start = set(group), 0
    for j in range(num):
        if kind == "disjoint":
            domain = {group[j * width + i] for i in range(width)}
        else:
            length = WINDOW_LENGTHS[size, num][j]
            domain, start = set(group[start : start + length]), start + length - width
        for k in range(num_classes):
            if k in domain:
                expected = first + (last - first) * j / (num - 1)
            else:
                expected = rest if k in members else 1 / num_classes
            assert abs(matrix[j, k] - expected) < 1e-12, (j, k)


@pytest.mark.parametrize(("size", "overlap", "num"), [(50, 5, n) for n in (2, 3, 4, 20, 45)] + [(120, 50, 70)])
def test_overlapped_windows_share_exactly_the_overlap_and_cover_the_group(size, overlap, num):
    group = scattered_group(size, 1000)
    domains = overlapped_domains(group, num, overlap)
    lengths = [len(d) for d in domains]
    assert len(domains) == num
    assert sorted(lengths, reverse=True) == lengths
    assert lengths[0] - lengths[-1] <= 1
    assert lengths[-1] > overlap
    assert all(len(set(a) & set(b)) == overlap for a, b in pairwise(domains))
    assert set().union(*domains) == set(group)
    assert domains[0][0] == group[0]
    assert domains[-1][-1] == group[-1]


def test_four_windows_over_fifty_classes_and_one():
    assert [len(d) for d in overlapped_domains(range(50), 4, 5)] == [17, 16, 16, 16]
    assert overlapped_domains(range(50), 1, 5) == [list(range(50))]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: overlapped_domains(range(50), 46, 5), "at most 45 experts"),
        (lambda: overlapped_domains(range(10), 2, 10), "at most 1 experts"),
        (lambda: disjoint_domains(range(50), 30, 2), "need 60 classes, but the group has 50; at most 25"),
    ],
)
def test_more_experts_than_the_group_has_room_for_are_rejected(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


def test_disjoint_domains_fit_exactly_and_need_not_cover():
    assert disjoint_domains([9, 4, 6, 1], 2, 2) == [[9, 4], [6, 1]]
    assert disjoint_domains([9, 4, 6, 1, 0], 2, 2) == [[9, 4], [6, 1]]


def test_one_varying_expert_has_the_first_accuracy():
    assert accuracy_matrix([[1]], [1, 2], 4, [0.8, 0.9], 0.5).tolist() == [[0.25, 0.8, 0.5, 0.25]]


def test_realised_accuracies_lie_within_binomial_bounds():
    """Per expert and class group: domain, rest of the group, elsewhere; five standard deviations."""
    num_classes, group = 20, list(range(5, 15))
    domains = disjoint_domains(group, 4, 2)
    matrix = accuracy_matrix(domains, group, num_classes, [0.6, 0.94], 0.75)
    labels = np.random.default_rng(0).integers(0, num_classes, 40_000)
    right = simulate(matrix, labels, seed=3) == labels[:, None]
    for j, domain in enumerate(domains):
        elsewhere = [k for k in range(num_classes) if k not in group]
        rest = [k for k in group if k not in domain]
        for classes, p in ((domain, 0.6 + 0.34 * j / 3), (rest, 0.75), (elsewhere, 0.05)):
            chosen = right[np.isin(labels, classes), j]
            assert abs(chosen.mean() - p) < 5 * sqrt(p * (1 - p) / len(chosen)), (j, classes)


def test_wrong_answers_are_uniform_over_the_other_classes():
    """Chi-square with 6 degrees of freedom for every label: 33 is exceeded with probability 1e-5."""
    num_classes = 8
    labels = np.repeat(np.arange(num_classes), 8000)
    answers = simulate(np.full((1, num_classes), 0.3), labels, seed=0)[:, 0]
    for y in range(num_classes):
        wrong = Counter(answers[(labels == y) & (answers != y)].tolist())
        assert set(wrong) == set(range(num_classes)) - {y}
        expected = sum(wrong.values()) / (num_classes - 1)
        assert sum((n - expected) ** 2 / expected for n in wrong.values()) < 33


@pytest.mark.parametrize("num_classes", [2, 3, 128, 129])
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
def test_answers_are_classes_at_every_accuracy(num_classes, accuracy):
    labels = np.arange(2000) % num_classes
    table = simulate(np.full((2, num_classes), accuracy), labels, seed=1)
    assert table.min() >= 0
    assert table.max() < num_classes
    if accuracy in (0.0, 1.0):
        assert ((table == labels[:, None]) == bool(accuracy)).all()


@pytest.mark.parametrize(
    ("num_classes", "dtype"), [(2, np.int8), (128, np.int8), (129, np.int16), (1000, np.int16), (32769, np.int32)]
)
def test_the_table_is_as_small_as_the_classes_allow(num_classes, dtype):
    """The largest class and -1 both fit."""
    labels = np.array([0, num_classes - 1])
    table = simulate(np.ones((1, num_classes)), labels, seed=0)
    assert table.dtype == dtype
    assert table[:, 0].tolist() == labels.tolist()


def test_an_expert_answers_the_same_whoever_else_is_asked():
    matrix = np.random.default_rng(0).uniform(0.2, 0.9, (6, 10))
    labels = np.random.default_rng(1).integers(0, 10, 500)
    table = simulate(matrix, labels, seed=5)
    for num in range(1, 6):
        assert np.array_equal(simulate(matrix[:num], labels, seed=5), table[:, :num])
    assert len({tuple(column) for column in simulate(np.full((4, 10), 0.5), labels, seed=5).T}) == 4


def test_answers_do_not_depend_on_how_much_is_drawn_at_a_time(monkeypatch):
    matrix = np.random.default_rng(0).uniform(0.2, 0.9, (3, 10))
    labels = np.random.default_rng(1).integers(0, 10, 1000)
    whole = simulate(matrix, labels, seed=5)
    assert np.array_equal(simulate(matrix, labels[:137], seed=5), whole[:137])
    monkeypatch.setattr(simulator_module, "_CHUNK", 64)
    assert np.array_equal(simulate(matrix, labels, seed=5), whole)


def test_an_answer_depends_on_its_own_label_only():
    """Another label at one place changes that row and no other."""
    matrix = np.random.default_rng(0).uniform(0.2, 0.9, (3, 10))
    labels = np.random.default_rng(1).integers(0, 10, 200)
    before = simulate(matrix, labels, seed=5)
    labels[77] = (labels[77] + 1) % 10
    after = simulate(matrix, labels, seed=5)
    assert np.array_equal(np.delete(before, 77, 0), np.delete(after, 77, 0))


def agreement(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a == b).double().mean().item()


@pytest.fixture
def panel(tiny_dataset):
    def make(resample: str, seed: int = 0) -> ExpertPanel:
        return make_panel(np.full((2, 10), 0.5), tiny_dataset(10), Drawing(seed, resample))

    return make


def test_train_and_test_are_drawn_independently_and_from_the_seed(panel):
    """Two independent draws agree with probability 1/2 * 1/2 + 9 * (1/18)^2 = 0.278 at accuracy 1/2 of 10 classes."""
    labels = torch.arange(4000) % 10
    train, test = (panel("once").answers(split, labels) for split in ("train", "test"))
    other_seed = panel("once", seed=1).answers("train", labels)
    for pair in ((train, test), (train, other_seed), (train[:, :1], train[:, 1:])):
        assert agreement(*pair) == pytest.approx(0.278, abs=0.03)
    assert torch.equal(train, panel("once").answers("train", labels))


def test_per_epoch_redraws_training_answers_and_nothing_else(panel):
    labels = torch.arange(4000) % 10
    once, again = panel("once"), panel("per_epoch")
    assert torch.equal(once.answers("train", labels, 0), once.answers("train", labels, 7))
    assert torch.equal(again.answers("test", labels, 0), again.answers("test", labels, 7))
    draws = [again.answers("train", labels, epoch) for epoch in range(3)] + [again.answers("test", labels)]
    for i in range(4):
        for j in range(i):
            assert agreement(draws[i], draws[j]) == pytest.approx(0.278, abs=0.03)
    assert torch.equal(draws[1], again.answers("train", labels, 1))


def test_a_matrix_that_does_not_fit_is_refused(tiny_dataset):
    dataset = tiny_dataset(4)
    for wrong in (np.full((2, 5), 0.5), np.full(4, 0.5), np.full((2, 4), 1.5), np.full((2, 4), np.nan)):
        with pytest.raises(UserError, match="4 classes"):
            make_panel(wrong, dataset, Drawing())


def test_answers_are_drawn_once_or_per_epoch_and_nothing_else(composed):
    with pytest.raises(UserError, match=r"^experts\.resample=sometimes .*once or per_epoch"):
        check(composed("experts.resample=sometimes"))


def test_human_experts_are_the_first_annotators(tiny_dataset):
    dataset = tiny_dataset(4, annotators=3)
    experts = make_panel(human(dataset, 2, None), dataset, Drawing())
    assert experts.names == ["annotator_0", "annotator_1"]
    assert experts.num == 2
    for split in ("train", "test"):
        table = experts.answers(split, getattr(dataset, split).labels, epoch=3)
        for j in range(2):
            assert table[:, j].tolist() == dataset.annotators[f"annotator_{j}"][split].tolist()


def test_too_many_annotators_are_refused(tiny_dataset):
    with pytest.raises(UserError, match="3 annotators, so choose 1 to 3"):
        human(tiny_dataset(4, annotators=3), 4, None)


def test_human_experts_need_annotators(tiny_dataset):
    with pytest.raises(UserError, match="has none"):
        human(tiny_dataset(4), 2, None)
