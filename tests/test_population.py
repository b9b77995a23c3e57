"""system=population: experts described by a context; as many as one likes, and others than those trained with."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import finished
from torch import nn

from l2d.cli import main
from l2d.data import MISSING, Batch
from l2d.errors import UserError
from l2d.experts import Drawing, make_panel, mixed
from l2d.identity import fingerprint, settings
from l2d.systems import PooledPopulation, PosteriorPopulation, load_system
from l2d.task import load_task, make_task

SMALL = ("dataset.num_train=400", "dataset.num_test=300", "trainer.epochs=3", "backbone.hidden=16", "system.hidden=8")
K, J, N = 4, 3, 60


# Who is trained with, and who is asked


def test_the_population_is_the_same_however_many_are_asked(composed):
    """Of 5 + num experts the first 5 are trained with; the others answer as they do in a panel of all."""
    whole = load_task(composed("dataset.num_train=300", "dataset.num_test=200", "experts.num=8"))
    for num in (1, 3):
        task = load_task(
            composed("dataset.num_train=300", "dataset.num_test=200", f"experts.num={num}", "experts.population=5")
        )
        assert task.population is not None and task.context_answers is not None
        assert task.population.names == whole.expert_names[:5] and task.expert_names == whole.expert_names[5 : 5 + num]
        assert torch.equal(task.train.answers, whole.train.answers[:, :5])
        assert torch.equal(task.context_answers, whole.train.answers[:, 5 : 5 + num])
        assert torch.equal(task.test.answers, whole.test.answers[:, 5 : 5 + num])
        torch.testing.assert_close(task.truth.accuracy, whole.truth.accuracy[:, 5 : 5 + num])
        assert task.experts() == whole.experts()[5 : 5 + num]
        assert task.experts(task.population) == whole.experts()[:5]


def test_held_out_samples_have_the_answers_of_those_who_are_asked(composed):
    words = ("dataset.num_train=300", "dataset.num_test=200", "held_out=0.3", "experts.resample=per_epoch")
    whole, task = (
        load_task(composed(*words, "experts.num=5")),
        load_task(composed(*words, "experts.num=2", "experts.population=3")),
    )
    assert torch.equal(task.held_out.answers, whole.held_out.answers[:, 3:])
    assert task.held_out.redraw is None
    assert torch.equal(task.context_answers, whole.train.answers[:, 3:])
    assert torch.equal(task.train.redraw(2), whole.train.redraw(2)[:, :3])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_people_and_experts_modelled_on_them_are_divided_in_their_order(tiny_dataset, count):
    dataset = tiny_dataset(3, annotators=2)
    panel = make_panel(mixed(dataset, 4, None, "accuracy"), dataset, Drawing(1, "per_epoch"))
    for columns in (slice(count), slice(count, None)):
        part = panel.part(columns)
        assert part.names == panel.names[columns] and part.redraws
        for epoch in (0, 3):
            answers = part.answers("train", dataset.train.labels, epoch)
            assert torch.equal(answers, panel.answers("train", dataset.train.labels, epoch)[:, columns])


def test_classes_are_renumbered_for_both(composed):
    task = load_task(composed("dataset.num_train=100", "dataset.num_test=50", "experts.num=2", "experts.population=3"))
    names = task.class_names[::-1]
    other = task.reordered(names, task.expert_names[::-1])
    assert torch.equal(other.train.answers, 39 - task.train.answers)
    assert torch.equal(other.context_answers, 39 - task.context_answers.flip(1))
    assert torch.equal(other.test.answers, 39 - task.test.answers.flip(1))
    assert other.population is task.population


def test_a_population_that_leaves_nobody_to_ask_is_refused(composed, tiny_dataset):
    dataset = tiny_dataset(3, annotators=3)
    task = make_task(composed("experts=human", "experts.num=null", "experts.population=2"), dataset)
    assert task.expert_names == ["annotator_2"] and task.population.names == ["annotator_0", "annotator_1"]
    with pytest.raises(UserError, match=r"experts\.population=3"):
        make_task(composed("experts=human", "experts.num=null", "experts.population=3"), dataset)


def test_other_systems_cannot_ask_experts_they_are_not_trained_with(composed):
    cfg = composed("dataset.num_train=100", "dataset.num_test=50", "experts.population=3")
    with pytest.raises(UserError, match=r"experts\.population=3: system=score"):
        load_system(cfg, load_task(cfg))


def test_a_run_without_a_population_is_the_run_it_was(composed):
    cfg = composed()
    assert cfg.experts.population is None and "population" not in settings(cfg)["experts"]
    assert fingerprint(cfg) != fingerprint(composed("experts.population=3"))


# The context


def test_the_context_of_an_expert_are_samples_that_it_answered(composed):
    """Expert 0 answered everything, expert 1 ten samples, expert 2 none."""
    task = load_task(composed("dataset.num_train=200", "dataset.num_test=50", "experts.num=3"))
    task.train.answers[10:, 1] = MISSING
    task.train.answers[:, 2] = MISSING
    context = task.context(20, seed=0)
    assert (context.answers >= 0).sum(0).tolist() == [20, 10, 0]
    assert len(context) == (context.answers >= 0).any(1).sum()
    rows = [(task.train.inputs.pixels == pixels).flatten(1).all(1).nonzero().item() for pixels in context.inputs.pixels]
    given = context.answers >= 0
    assert torch.equal(context.answers[given], task.train.answers[rows][given])
    assert torch.equal(context.labels, task.train.labels[rows])
    assert not torch.equal(task.context(20, seed=1).labels, context.labels)


def test_experts_of_whom_nothing_is_known_are_refused_before_training(composed, tiny_dataset):
    dataset = tiny_dataset(3, annotators=2)
    for answers in dataset.annotators.values():
        answers["train"] = np.full(8, MISSING)
    cfg = composed("experts=human", "system=population")
    with pytest.raises(UserError, match=r"experts\.num=2: none of these"):
        load_system(cfg, make_task(cfg, dataset))


def system_of(form: str, num_experts: int = J):
    torch.manual_seed(0)
    sizes = (lambda count: nn.Linear(5, count), K, num_experts, 20)
    return (PosteriorPopulation(*sizes, 2.0) if form == "posterior" else PooledPopulation(*sizes, 8)).eval()


@pytest.fixture
def context():
    """What the backbone of either form gives for N samples, their labels, and answers of J experts with some missing."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(K, (N,), generator=rng)
    return torch.randn(N, K + 8, generator=rng), labels, torch.randint(-1, K, (N, J), generator=rng)


def panel_of(system) -> torch.Tensor:
    (name,) = system.about_panel
    return system.get_buffer(name).clone()


@pytest.mark.parametrize("form", ["posterior", "pooled"])
def test_the_order_of_the_context_does_not_matter(form, context):
    system = system_of(form)
    system.meet(*context)
    before, order = panel_of(system), torch.randperm(N)
    system.meet(*(part[order] for part in context))
    assert before.abs().sum() > 0
    torch.testing.assert_close(panel_of(system), before)


@pytest.mark.parametrize("form", ["posterior", "pooled"])
def test_an_expert_is_described_by_its_own_answers_alone(form, context):
    """Bit for bit, whoever else is there and however many."""
    system, alone = system_of(form), system_of(form, num_experts=1)
    seen, labels, answers = context
    system.meet(seen, labels, answers)
    before = panel_of(system)
    alone.meet(seen, labels, answers[:, 1:2])
    assert torch.equal(panel_of(alone)[0], before[1])
    answers[:, 0], answers[:, 2] = labels, MISSING
    system.meet(seen, labels, answers)
    assert torch.equal(panel_of(system)[1], before[1])
    inputs = torch.randn(7, 5)
    torch.testing.assert_close(system.beliefs(system(inputs))[:, K + 1], alone.beliefs(alone(inputs))[:, K])


def test_without_a_context_the_accuracy_is_the_average_in_training(context):
    system = system_of("posterior")
    seen, labels, answers = context
    trained = torch.tensor([[0, -1], [1, 0], [1, -1]])
    system.train_with(torch.tensor([0, 1, 2]), trained)  # two of four answers are right
    answers[:, 1] = MISSING
    system.meet(seen, labels, answers)
    assert system.accuracy[1].tolist() == [0.5] * K
    assert system.beliefs(torch.randn(9, K))[:, K + 1].tolist() == pytest.approx([0.5] * 9)


def test_the_posterior_mean_by_hand():
    """Average 1/2, two answers are added: overall (2 + 1) / (3 + 2), class 0 with one right of two, class 1 with one of one."""
    system = PosteriorPopulation(lambda _: nn.Identity(), 3, 1, 10, 2.0)
    system.average.fill_(0.5)
    system.meet(torch.zeros(3, 3), torch.tensor([0, 0, 1]), torch.tensor([[0], [2], [1]]))
    overall = 3 / 5
    expected = [(1 + 2 * overall) / 4, (1 + 2 * overall) / 3, overall]
    torch.testing.assert_close(system.accuracy, torch.tensor([expected]))


def test_with_the_true_accuracies_it_is_the_true_accuracy(composed):
    """Acc_j(x) = sum_k eta_k(x) A[j, k], as the truth of the task has it."""
    task = load_task(composed("dataset.num_train=10", "dataset.num_test=50"))
    system = PosteriorPopulation(lambda _: nn.Identity(), 40, 4, 10, 2.0)
    system.accuracy.copy_(torch.from_numpy(task.panel.matrix))
    beliefs = system.beliefs(task.truth.eta.log())
    torch.testing.assert_close(beliefs, torch.cat(list(task.truth), dim=1), atol=1e-7, rtol=0)


# The pooled form


def test_an_expert_without_a_context_has_the_learnt_description(context):
    system = system_of("pooled")
    nn.init.normal_(system.psi_0)
    seen, labels, answers = context
    answers[:, 1] = MISSING
    system.meet(seen, labels, answers)
    assert torch.equal(system.psi[1], system.psi_0) and not torch.equal(system.psi[0], system.psi_0)


def batch_of(context, experts: int = 5) -> Batch:
    rng = torch.Generator().manual_seed(1)
    seen, labels, _ = context
    return Batch(seen, labels, torch.randint(-1, K, (N, experts), generator=rng), torch.arange(N))


def test_experts_do_not_change_what_the_class_scores_are_taught(context):
    """Their gradient is that of cross-entropy, with any number of experts; the embedding's comes from the experts."""
    system, outputs = system_of("pooled"), context[0].requires_grad_()
    for experts in (1, 5):
        (gradient,) = torch.autograd.grad(system.taught(outputs, batch_of(context, experts)), outputs)
        (alone,) = torch.autograd.grad(nn.functional.cross_entropy(outputs[:, :K], context[1]), outputs)
        torch.testing.assert_close(gradient[:, :K], alone[:, :K])
        assert gradient[:, K:].abs().sum() > 0


def test_a_sample_does_not_describe_the_experts_for_itself(context, monkeypatch):
    """The score of a sample depends on answers of the other half alone."""
    system, batch = system_of("pooled"), batch_of(context)
    shown: list[torch.Tensor] = []
    monkeypatch.setattr(system.loss, "forward", lambda scores, labels, answers: shown.append(scores))
    changed = batch.answers.clone()
    changed[: N // 2] = batch.labels[: N // 2, None]
    for answers in (batch.answers, changed):
        torch.manual_seed(0)  # which answers are left out
        system.taught(batch.inputs, batch._replace(answers=answers))
    before, after = shown
    assert torch.equal(before[: N // 2], after[: N // 2]) and not torch.equal(before[N // 2 :], after[N // 2 :])


@pytest.mark.slow
def test_the_pooled_form_learns_who_knows_what():
    """Two classes that cannot be told apart, experts of accuracy .9 and .5: a new one of each kind is believed accordingly."""
    torch.manual_seed(0)
    system = PooledPopulation(lambda count: nn.Linear(5, count), 2, 2, 50, 16).train()
    optimizer = torch.optim.Adam(system.parameters(), 0.01)

    def drawn(count: int, accuracies: list[float]) -> Batch:
        labels = torch.randint(2, (count,))
        right = torch.rand(count, len(accuracies)) < torch.tensor(accuracies)
        return Batch(torch.randn(count, 5), labels, torch.where(right, labels[:, None], 1 - labels[:, None]), labels)

    for _ in range(300):
        batch = drawn(128, [0.9, 0.5, 0.9, 0.5])
        optimizer.zero_grad()
        system.taught(system(batch.inputs), batch).backward()
        optimizer.step()
    system.eval()
    new = drawn(200, [0.9, 0.5])
    with torch.no_grad():
        system.meet(system.backbone(new.inputs), new.labels, new.answers)
        believed = system.beliefs(system(torch.randn(300, 5)))[:, 2:].mean(0)
        system.meet(system.backbone(new.inputs), new.labels, torch.full_like(new.answers, MISSING))
        average = system.beliefs(system(torch.randn(300, 5)))[:, 2:].mean(0)
    assert believed.tolist() == pytest.approx([0.9, 0.5], abs=0.1)
    assert average.tolist() == pytest.approx([0.7, 0.7], abs=0.1)


# Whole runs


def evaluated(*words: object) -> dict:
    main(["evaluate", *map(str, words), "out=again.json"])
    return json.loads(Path("again.json").read_text())


@pytest.mark.parametrize("form", ["posterior", "pooled"])
def test_a_run_can_be_evaluated_and_continued_and_asks_others_than_it_was_trained_with(
    form, tmp_path, monkeypatch, cut_and_continued
):
    monkeypatch.chdir(tmp_path)
    words = ["train", "system=population", f"system.form={form}", *SMALL, "experts.num=3", "experts.population=4"]
    words += ["evaluation=full", "trainer.eval_every=1", "experts.costs=0.05"]
    main([*words, "output_dir=whole"])
    folder, result = finished("whole")
    assert [e["name"] for e in result["experts"]] == [f"expert_{j}" for j in (4, 5, 6)]
    assert [e["name"] for e in result["population"]] == [f"expert_{j}" for j in range(4)]
    assert result["choices"]["num_experts"] == 3 and result["vouches_for"] == "all"
    for source in (folder, folder / "model.safetensors"):
        again = evaluated(source)
        assert again["metrics"] == result["metrics"] and again["evaluation"] == result["evaluation"], source

    more = evaluated(folder, "experts.num=8")
    assert more["choices"]["num_experts"] == len(more["metrics"]["deferred_to"]) == 8
    assert more["metrics"]["expert_accuracy"][:3] == result["metrics"]["expert_accuracy"]
    assert more["metrics"]["classifier_accuracy"] == result["metrics"]["classifier_accuracy"]

    assert cut_and_continued(*words)["metrics"] == result["metrics"]


def test_experts_trained_with_may_be_those_who_are_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["train", "system=population", *SMALL, "experts.num=3", "experts.answer_rate=0.5"])
    folder, result = finished("outputs")
    assert "population" not in result
    assert evaluated(folder, "experts.num=5", "experts.population=3")["metrics"]["expert_accuracy"] != []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["posterior", "pooled"])
def test_new_experts_are_put_to_good_use(form, tmp_path, monkeypatch):
    """Trained with ten experts, asked are others, as few as in training or more: better than the classifier and than any of them."""
    monkeypatch.chdir(tmp_path)
    main(["train", "system=population", f"system.form={form}", "experts.population=10", "trainer.epochs=10"])
    folder, result = finished("outputs")
    for got in (result["metrics"], evaluated(folder, "experts.num=8")["metrics"]):
        accuracy = 100 - got["system_error"]
        assert accuracy > got["classifier_accuracy"] + 0.5
        assert accuracy > got["random_expert_accuracy"] + 10 and accuracy > got["best_expert_accuracy"] + 10


def test_the_data_check_names_the_population(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["data", "check", "system=population", *SMALL, "experts.num=3", "experts.population=4"])
    said = capsys.readouterr().out
    assert "a population of 4 other experts" in said and "expert_6" in said and "expert_3" not in said
