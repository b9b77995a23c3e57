"""Experts who fail together, who leave samples unanswered, and crowds of people with a few answers each."""

import hashlib
import tracemalloc
from math import sqrt

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from scipy.special import ndtri
from scipy.stats import multivariate_normal

from l2d.config import build, check, plain
from l2d.data import Dataset, Split
from l2d.decisions import decide
from l2d.errors import UserError
from l2d.evaluation import bayes_optimum
from l2d.evaluation.calibration import belief_errors
from l2d.evaluation.outcome import Outcome
from l2d.evaluation.regret import regret
from l2d.experts import Drawing, disjoint, grouped, human, make_panel, mixed, overlapped, simulate
from l2d.experts import simulator as simulator_module
from l2d.experts.simulator import accuracy_given, draw
from l2d.identity import fingerprint
from l2d.task import load_task, make_task

SIMULATED = [f"{name}{kind}" for name in ("animal", "dog", "specialist") for kind in ("", "_overlapped", "_varying")]
CONFUSION = np.array([[0.6, 0.3, 0.1, 0], [0, 1, 0, 0], [0.05, 0.95, 0, 0], [0.2, 0.2, 0.2, 0.4]])


def within(share: float, p: float, count: int) -> bool:
    """Five standard deviations of a binomial."""
    return abs(share - p) <= 5 * sqrt(p * (1 - p) / count)


def both_right(p: float, q: float, correlation: float) -> float:
    """Pr(Z1 < Phi^-1(p), Z2 < Phi^-1(q)) of two normal numbers with this correlation."""
    return float(multivariate_normal([0, 0], [[1, correlation], [correlation, 1]]).cdf([ndtri(p), ndtri(q)]))


# correlation


def test_without_correlation_and_with_all_answers_the_tables_are_those_of_version_0_1():
    """Digests of tables that were drawn before either setting existed."""
    rng, groups = np.random.default_rng(0), {"g": list(range(2, 9))}
    labels = rng.integers(0, 10, 70_000)
    experts = {
        "729854f98eec7fbf": (disjoint(3, 10, groups, "g", 2, (0.6, 0.94), 0.75), 0),
        "6b88c93e66f8d05b": (overlapped(3, 10, groups, "g", 2, 0.9, 0.7), 1),
        "f116f52fd9fbf233": (rng.dirichlet(np.ones(10), (3, 10)), 1 << 40),
    }
    for digest, (matrix, stream) in experts.items():
        table = draw(matrix, labels, Drawing(seed=7), stream)
        assert hashlib.sha256(np.ascontiguousarray(table).tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("correlation", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("accuracy", [0.0, 0.01, 0.5, 0.94, 1.0])
def test_over_all_difficulties_the_accuracy_is_what_it_was(accuracy, correlation):
    """Integrated over a standard normal difficulty in equal steps, exact to rounding for a function as smooth as this."""
    difficulty = np.linspace(-12, 12, 20_001)
    density = np.exp(-(difficulty**2) / 2) / np.sqrt(2 * np.pi)
    given = accuracy_given(difficulty, np.full(len(difficulty), accuracy), correlation)
    assert (given * density).sum() * 24 / 20_000 == pytest.approx(accuracy, abs=1e-12)
    assert (np.diff(given) <= 0).all()


@pytest.mark.parametrize("correlation", [0.3, 0.9])
def test_realised_accuracies_are_those_of_the_matrix(correlation):
    """Samples are hard for all, so the deviation is that of independent samples: 20,000 of each class."""
    matrix = np.array([[0.05, 0.5, 0.75, 0.94], [0.75, 0.75, 0.25, 0.5]])
    labels = np.repeat(np.arange(4), 20_000)
    right = draw(matrix, labels, Drawing(1, correlation=correlation), 0) == labels[:, None]
    for j in range(2):
        for k in range(4):
            assert within(right[labels == k, j].mean(), matrix[j, k], 20_000), (j, k)


@pytest.mark.parametrize("correlation", [0.3, 0.9])
def test_realised_answers_are_those_of_the_confusion(correlation):
    labels = np.repeat(np.arange(4), 20_000)
    answers = draw(CONFUSION[None], labels, Drawing(2, correlation=correlation), 0)[:, 0]
    for y in range(4):
        shares = np.bincount(answers[labels == y], minlength=4) / 20_000
        assert all(within(share, p, 20_000) for share, p in zip(shares, CONFUSION[y], strict=True)), y


@pytest.mark.parametrize("correlation", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("kind", ["accuracy", "confusion"])
def test_two_experts_are_right_together_as_often_as_correlated_normal_numbers(kind, correlation):
    p, q, count = 0.8, 0.6, 100_000
    matrix = np.array([[p, 0.5, 0.5], [q, 0.5, 0.5]])
    if kind == "confusion":
        matrix = np.stack([[[p, 1 - p, 0], [0, 1, 0], [0, 0, 1]], [[q, 0, 1 - q], [0, 1, 0], [0, 0, 1]]])
    labels = np.zeros(count, dtype=np.int64)
    right = draw(matrix, labels, Drawing(0, correlation=correlation), 0) == 0
    expected = both_right(p, q, correlation)
    assert within(right.all(axis=1).mean(), expected, count)
    assert expected > p * q + 0.02


@pytest.mark.parametrize("correlation", [0.5, 1 - 1e-15])
@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_an_expert_who_is_always_right_or_never_stays_so(accuracy, correlation):
    labels = np.arange(50_000) % 3
    confusion = np.eye(3) if accuracy else np.roll(np.eye(3), 1, axis=1)
    for matrix in (np.full((1, 3), accuracy), confusion[None]):
        table = draw(matrix, labels, Drawing(0, correlation=correlation), 0)
        assert ((table[:, 0] == labels) == bool(accuracy)).all()
        assert table.min() >= 0
        assert table.max() <= 2


@pytest.mark.parametrize("u", [0.0, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("difficulty", [-40.0, 0.0, 40.0])
def test_the_ends_of_the_interval_give_possible_answers(monkeypatch, u, difficulty):
    """u = 0 and the largest u below 1, on samples easier and harder than any that will be drawn."""

    class Ends:
        def random(self, n):
            return np.full(n, u)

    monkeypatch.setattr(simulator_module, "random_stream", lambda *_, **__: Ends())
    labels, hard = np.arange(4), np.full(4, difficulty)
    answers = simulate(CONFUSION[None], labels, 0, 0, 0.5, hard)[:, 0]
    assert all(CONFUSION[y, a] > 0 for y, a in zip(labels, answers, strict=True))
    answers = simulate(np.array([[0.0, 0.3, 0.9, 1.0]]), labels, 0, 0, 0.5, hard)[:, 0]
    assert answers[0] != 0
    assert answers[3] == 3
    assert answers.min() >= 0
    assert answers.max() <= 3


def test_who_fails_together_does_not_say_the_same():
    """Two experts who are both wrong agree in one of nine cases, however hard the sample."""
    labels = np.zeros(60_000, dtype=np.int64)
    table = draw(np.full((2, 10), 0.5), labels, Drawing(0, correlation=0.9), 0)
    wrong = table[(table != 0).all(axis=1)]
    assert within((wrong[:, 0] == wrong[:, 1]).mean(), 1 / 9, len(wrong))
    for column in wrong.T:
        shares = np.bincount(column, minlength=10)[1:] / len(wrong)
        assert all(within(share, 1 / 9, len(wrong)) for share in shares)


@pytest.mark.parametrize("kind", ["accuracy", "confusion"])
def test_an_expert_answers_the_same_whoever_else_is_there_and_however_much_is_drawn_at_a_time(monkeypatch, kind):
    rng = np.random.default_rng(0)
    matrix = rng.uniform(0.2, 0.9, (5, 4)) if kind == "accuracy" else rng.dirichlet(np.ones(4), (5, 4))
    labels, drawing = rng.integers(0, 4, 1000), Drawing(3, correlation=0.5, answer_rate=0.7)
    table = draw(matrix, labels, drawing, 1)
    for num in range(1, 5):
        assert np.array_equal(draw(matrix[:num], labels, drawing, 1), table[:, :num])
    assert np.array_equal(draw(matrix, labels[:137], drawing, 1), table[:137])
    monkeypatch.setattr(simulator_module, "_CHUNK", 64)
    assert np.array_equal(draw(matrix, labels, drawing, 1), table)


def test_a_sample_is_as_hard_in_every_epoch_and_in_no_other_split(tiny_dataset):
    """An expert's answers in two epochs are as dependent as those of two experts."""
    matrix, labels = np.full((2, 10), 0.7), torch.zeros(60_000, dtype=torch.int64)
    panel = make_panel(matrix, tiny_dataset(10), Drawing(0, "per_epoch", correlation=0.6))
    first, second = ((panel.answers("train", labels, epoch) == 0)[:, 0] for epoch in (0, 1))
    test = (panel.answers("test", labels) == 0)[:, 0]
    held_out = (panel.answers("held_out", labels) == 0)[:, 0]
    assert within((first & second).double().mean().item(), both_right(0.7, 0.7, 0.6), len(labels))
    for other in (test, held_out):
        assert within((first & other).double().mean().item(), 0.7 * 0.7, len(labels))
    assert within((test & held_out).double().mean().item(), 0.7 * 0.7, len(labels))


# answer_rate


def test_answers_are_missing_at_random_and_those_given_are_what_they_were():
    labels = np.random.default_rng(0).integers(0, 5, 40_000)
    matrix = np.full((3, 5), 0.6)
    whole, some, few = (draw(matrix, labels, Drawing(4, answer_rate=rate), 1) for rate in (1, 0.7, 0.2))
    for table, rate in ((some, 0.7), (few, 0.2)):
        given = table != -1
        assert np.array_equal(table[given], whole[given])
        for j in range(3):
            assert within(given[:, j].mean(), rate, len(labels))
            assert within((table[given[:, j], j] == labels[given[:, j]]).mean(), 0.6, int(given[:, j].sum()))
        assert within((given[:, 0] & given[:, 1]).mean(), rate**2, len(labels))
    assert ((few == -1) | (some != -1)).all()  # a lower rate takes away, and gives nothing


def test_the_same_answers_are_missing_in_every_epoch(tiny_dataset):
    labels = torch.zeros(2000, dtype=torch.int64)
    panel = make_panel(np.full((2, 4), 0.6), tiny_dataset(4), Drawing(0, "per_epoch", answer_rate=0.5))
    tables = [panel.answers("train", labels, epoch) for epoch in range(3)]
    assert all(torch.equal(table == -1, tables[0] == -1) for table in tables)
    assert not torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0] == -1, panel.answers("test", labels) == -1)


def test_the_best_possible_system_asks_those_who_answer(composed):
    """With the truth as beliefs there is no regret and no error of the beliefs, and the best system errs more than if
    everybody answered."""
    tasks = [load_task(composed("dataset.num_test=400", f"experts.answer_rate={rate}")) for rate in (1, 0.2)]
    everybody, truth = (task.truth for task in tasks)
    assert torch.equal(truth.eta, everybody.eta)
    answers, labels = tasks[1].test.answers, tasks[1].test.labels
    given = answers >= 0
    assert not given.any(dim=1).all()
    assert torch.equal(truth.accuracy[given], everybody.accuracy[given])
    beliefs = torch.cat([everybody.eta, everybody.accuracy], dim=1)
    decision = decide(beliefs, truth.eta.shape[1], available=given)
    outcome = Outcome(labels, answers, beliefs, beliefs, decision)
    parts, best = regret(outcome, truth), bayes_optimum(truth)
    assert [parts[name] for name in ("total", "classifier", "decision", "expert")] == pytest.approx([0] * 4, abs=1e-9)
    assert belief_errors(outcome, truth) == pytest.approx({"class_probability_mae": 0, "expert_accuracy_mae": 0})
    assert best["system_error"] == pytest.approx(parts["expected_system_error"])
    assert best["coverage"] == pytest.approx(100 * (~decision.deferred).double().mean().item())
    assert best["system_error"] > bayes_optimum(everybody)["system_error"]


def test_the_truth_does_not_depend_on_the_correlation(composed):
    plain, together = (load_task(composed("dataset.num_test=200", f"experts.correlation={rho}")) for rho in (0, 0.8))
    assert torch.equal(plain.truth.accuracy, together.truth.accuracy)
    assert not torch.equal(plain.test.answers, together.test.answers)


# both as settings


@pytest.mark.parametrize("experts", [*SIMULATED, "mixed"])
def test_all_simulated_experts_have_both_settings(composed, tiny_dataset, experts):
    cfg = composed(f"experts={experts}", "experts.correlation=0.5", "experts.answer_rate=0.5", "experts.num=2")
    check(cfg)
    group = "specialty" if "specialist" in experts else experts.partition("_")[0]
    groups = {group: list(range(60))} if "dog" in experts else {group: list(range(10))}
    task = make_task(cfg, tiny_dataset(60, groups, annotators=1))
    assert task.panel.drawing == Drawing(cfg.seed, "once", 0.5, 0.5)
    simulated = task.train.answers[:, int(experts == "mixed") :]
    assert (simulated == -1).any()


@pytest.mark.parametrize(
    ("key", "value", "range"),
    [
        ("correlation", 1, "of at least 0 and below 1"),
        ("correlation", -0.1, "of at least 0"),
        ("correlation", "high", "of at least 0"),
        ("answer_rate", 0, "of at most 1 and above 0"),
        ("answer_rate", 1.5, "of at most 1"),
    ],
)
def test_values_out_of_range_are_refused(composed, key, value, range):
    with pytest.raises(UserError, match=rf"^experts\.{key}={value} must be .*{range}"):
        check(composed(f"experts.{key}={value}"))


def test_settings_from_before_either_key_existed_still_work(composed, tiny_dataset):
    settings = plain(composed("experts=human"))
    cfg = DictConfig(settings | {"experts": {k: v for k, v in settings["experts"].items() if k != "min_answers"}})
    check(cfg)
    assert make_task(cfg, tiny_dataset(4, annotators=2)).panel.drawing == Drawing(cfg.seed)


def test_extras_fail_together_and_people_say_what_they_said(crowd):
    dataset = crowd([0.8, 0.6], 4000, each=4000)
    panel = make_panel(mixed(dataset, 4, None, "accuracy"), dataset, Drawing(0, correlation=0.7, answer_rate=0.9))
    labels = dataset.train.labels
    answers = panel.answers("train", labels)
    assert torch.equal(answers[:, :2], human(dataset, 2).answers("train", labels))
    drawn = answers[:, 2:]
    given = (drawn >= 0).all(dim=1)
    right = (drawn == labels[:, None])[given].double()
    assert within(right.prod(dim=1).mean().item(), both_right(0.8, 0.6, 0.7), len(right))


def test_settings_for_simulated_experts_are_pointed_out_where_there_are_none(crowd, capsys):
    dataset = crowd([0.8], 100, each=100)
    make_panel(human(dataset, 1), dataset, Drawing(correlation=0.5))
    assert "experts.correlation=0.5" in capsys.readouterr().err
    make_panel(human(dataset, 1), dataset, Drawing())
    assert not capsys.readouterr().err


# people


@pytest.fixture
def crowd():
    """crowd(accuracies, samples, each): annotators w0, w1, .. who answered `each` samples of either split, at random."""

    def make(accuracies: list[float], samples: int, each: int, num_classes: int = 4) -> Dataset:
        rng = np.random.default_rng(0)
        labels = {split: rng.integers(0, num_classes, samples) for split in ("train", "test")}
        annotators = {}
        for j, accuracy in enumerate(accuracies):
            annotators[f"w{j}"] = {}
            for split, y in labels.items():
                answers = np.where(rng.random(samples) < accuracy, y, (y + 1) % num_classes)
                answers[rng.permutation(samples)[each:]] = -1
                annotators[f"w{j}"][split] = answers
        splits = {split: Split(torch.zeros(samples, 1, 1, 1), torch.from_numpy(y)) for split, y in labels.items()}
        return Dataset("crowd", [f"class_{k}" for k in range(num_classes)], **splits, annotators=annotators)

    return make


def silence(dataset: Dataset, name: str, answers: int) -> None:
    """Keep this many training answers of an annotator."""
    train = dataset.annotators[name]["train"]
    train[np.flatnonzero(train != -1)[answers:]] = -1


def test_people_with_too_few_answers_are_left_out_and_counted(crowd, capsys):
    dataset = crowd([0.8, 0.8, 0.8, 0.8], 100, each=50)
    silence(dataset, "w0", 9)
    silence(dataset, "w2", 0)
    assert human(dataset, None, min_answers=0).names == ["w0", "w1", "w2", "w3"]
    assert not capsys.readouterr().err
    assert human(dataset, None, min_answers=9).names == ["w0", "w1", "w3"]
    assert "1 of 4 annotators" in capsys.readouterr().err
    assert human(dataset, 2, min_answers=10).names == ["w1", "w3"]
    assert "2 of 4 annotators" in capsys.readouterr().err
    assert mixed(dataset, 3, None, "confusion", 10).names == ["w1", "w3", "w1_simulated_1"]
    assert capsys.readouterr().err.count("2 of 4 annotators") == 1
    assert human(dataset, None, ["w3", "w0"], min_answers=10).names == ["w3"]


def test_too_high_a_number_of_answers_is_refused(crowd, composed):
    dataset = crowd([0.8, 0.8], 100, each=50)
    silence(dataset, "w0", 9)
    for make in (
        lambda: human(dataset, None, None, 51),
        lambda: mixed(dataset, 4, None, "accuracy", 51),
        lambda: grouped(dataset, 2, None, 51, None, 0),
    ):
        with pytest.raises(UserError, match=r"^experts\.min_answers=51 .* 50 answers"):
            make()
    with pytest.raises(UserError, match=r"^experts\.num=2.* has 1 annotators"):
        human(dataset, 2, min_answers=10)
    with pytest.raises(UserError, match=r"^experts\.num=2 does not fit the 1 annotators"):
        human(dataset, 2, ["w0", "w1"], min_answers=10)
    with pytest.raises(UserError, match=r"^experts\.min_answers=-1 "):
        build(composed("experts=human", "experts.min_answers=-1"), "experts", dataset=dataset)


def test_a_sparse_crowd_of_two_kinds_becomes_two_experts(crowd, capsys):
    """200 people with 40 answers each to 4,000 samples: every sample has one answer of either kind, on average."""
    dataset = crowd([0.9, 0.5] * 100, 4000, each=40)
    panel = make_panel(grouped(dataset, 2, None, 1, None, 0), dataset, Drawing())
    assert panel.names == ["group_0", "group_1"]
    assert "group_0 (100 people), group_1 (100 people)" in capsys.readouterr().err
    for split in ("train", "test"):
        labels = getattr(dataset, split).labels
        answers = panel.answers(split, labels)
        for j, accuracy in enumerate((0.9, 0.5)):
            given = answers[:, j] >= 0
            assert 0.5 < given.double().mean() < 0.75  # 1 - 1/e
            assert (answers[given, j] == labels[given]).double().mean().item() == pytest.approx(accuracy, abs=0.04)


def test_a_group_answers_what_a_member_said_each_as_often(crowd):
    dataset = crowd([1.0] * 3, 9000, each=9000, num_classes=5)
    for j in range(3):
        for split in ("train", "test"):
            dataset.annotators[f"w{j}"][split][:] = j
    dataset.annotators["w0"]["train"][:3000] = -1
    dataset.annotators["w1"]["train"][:1000] = -1
    dataset.annotators["w2"]["train"][:500] = -1
    answers = grouped(dataset, 1, None, 1, None, 0).recorded["train"][:, 0]
    assert (answers[:500] == -1).all()
    assert (answers[500:1000] == 2).all()
    assert set(answers[1000:3000]) == {1, 2}
    for said in range(3):
        assert within((answers[3000:] == said).mean(), 1 / 3, 6000)
    again, other = (grouped(dataset, 1, None, 1, None, seed).recorded["train"][:, 0] for seed in (0, 1))
    assert np.array_equal(answers, again)
    assert not np.array_equal(answers, other)


def test_groups_have_about_as_many_answers_and_nobody_is_in_two(crowd):
    accuracies = np.linspace(0.3, 0.95, 12).tolist()
    dataset = crowd(accuracies, 3000, each=3000)
    for name in ("w10", "w11"):
        silence(dataset, name, 1500)
    got = grouped(dataset, 3, None, 1, None, 0)
    by_accuracy = [f"w{j}" for j in range(11, -1, -1)]
    # A third of 33,000 answers is 11,000: nearest to it are the first five (1,500 * 2 + 3,000 * 3), to twice it the first eight.
    for g, members in enumerate((by_accuracy[:5], by_accuracy[5:8], by_accuracy[8:])):
        said = np.stack([dataset.annotators[name]["test"] for name in members])
        assert (said == got.recorded["test"][:, g]).any(axis=0).all()
    assert grouped(dataset, 12, None, 1, None, 0).num == 12


def test_one_person_with_nearly_all_answers_leaves_no_group_empty(crowd):
    dataset = crowd([0.9, 0.8, 0.7, 0.6], 400, each=400)
    for name in ("w1", "w2", "w3"):
        silence(dataset, name, 20)
    got = grouped(dataset, 4, None, 1, None, 0)
    assert got.num == 4
    assert ((got.recorded["train"] != -1).sum(axis=0) == [400, 20, 20, 20]).all()


def test_people_without_an_answer_in_training_belong_to_no_group_of_similar_accuracy(crowd, capsys):
    dataset = crowd([0.9, 0.8, 0.7], 100, each=50)
    silence(dataset, "w1", 0)
    assert grouped(dataset, 2, None, 0, None, 0).num == 2
    assert "1 of 3 annotators" in capsys.readouterr().err


@pytest.mark.parametrize("num", [None, 3])
def test_as_many_groups_as_there_are_people_at_most(crowd, num):
    with pytest.raises(UserError, match=r"^experts\.num=(null|3) .*from 1 to 2"):
        grouped(crowd([0.9, 0.8], 100, each=50), num, None, 1, None, 0)


def test_groups_by_a_table(crowd, composed, tmp_path, capsys):
    dataset = crowd([0.9, 0.5, 0.9, 0.5], 100, each=100)
    table = tmp_path / "people.csv"
    table.write_text("annotator,group,age\nw2,senior,50\nw1,junior,30\nw0,senior,60\nw3,,20\nw9,junior,20\n")
    cfg = composed("experts=grouped", "experts.num=null", f"experts.table={table}")
    panel = build(cfg, "experts", dataset=dataset, seed=0)
    assert panel.names == ["senior", "junior"]
    assert "1 of 4 annotators" in capsys.readouterr().err
    assert np.array_equal(panel.recorded["test"][:, 1], dataset.annotators["w1"]["test"])
    seniors = np.stack([dataset.annotators[name]["test"] for name in ("w0", "w2")])
    assert (panel.recorded["test"][:, 0] == seniors).any(axis=0).all()


@pytest.mark.parametrize(
    ("text", "num", "sentence"),
    [
        ("annotator,group\nw0,a\nw1,b\n", 3, r"^experts\.num=3 does not fit the 2 groups .*\(a, b\)"),
        ("annotator,group\nx,a\n", None, r"^experts\.table=.*people\.csv .* none of the annotators, such as w0"),
        ("annotator,group\nw0,a\nw0,b\n", None, r"people\.csv has annotator w0 in the groups a and b"),
        ("annotator,team\nw0,a\n", None, r"people\.csv.* no group"),
        (None, None, r"^experts\.table=.*people\.csv is no file"),
    ],
)
def test_tables_that_do_not_work_are_refused(crowd, tmp_path, text, num, sentence):
    table = tmp_path / "people.csv"
    if text:
        table.write_text(text)
    with pytest.raises(UserError, match=sentence):
        grouped(crowd([0.9, 0.8], 20, each=20), num, None, 0, str(table), 0)


def test_files_that_experts_name_are_part_of_what_identifies_a_run(composed, tmp_path):
    table = tmp_path / "people.csv"
    table.write_text("annotator,group\nw0,a\nw1,b\n")
    cfg = composed("experts=grouped", f"experts.table={table}")
    before = fingerprint(cfg)
    assert fingerprint(cfg) == before
    table.write_text("annotator,group\nw0,a\nw1,a\n")
    assert fingerprint(cfg) != before


def test_a_crowd_is_not_held_twice(crowd):
    dataset = crowd([0.8] * 60, 20_000, each=200)
    tracemalloc.start()
    panel = human(dataset, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tables = sum(table.nbytes for table in panel.recorded.values())
    assert tables == 2 * 60 * 20_000
    assert peak < 1.5 * tables


def test_people_are_asked_for_in_vain_where_the_data_have_none(tiny_dataset):
    for make in (
        lambda: human(tiny_dataset(4), 2),
        lambda: mixed(tiny_dataset(4), 2, None, "confusion"),
        lambda: grouped(tiny_dataset(4), 2, None, 1, None, 0),
    ):
        with pytest.raises(
            UserError, match=r"dataset=tiny has none.*dataset\.annotators=FILE.*manifest.*choose.*experts="
        ):
            make()


def test_a_wrong_name_in_a_crowd_does_not_list_everybody(crowd):
    with pytest.raises(UserError, match=r"^experts\.annotators=\['x'\] must name .*: w0, .* and 80 more") as refused:
        human(crowd([0.8] * 100, 10, each=5), None, "x")
    assert len(str(refused.value)) < 300
