"""Task: what is to be learnt. Splits of inputs, labels and answers, names of classes and experts, and the truth if known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from l2d.config import build, plain
from l2d.data import MISSING, Dataset, Preprocessing, Split
from l2d.data.load import load_dataset
from l2d.errors import UserError, notify
from l2d.experts import Drawing, ExpertPanel, make_panel

FEW_ANSWERS = 30  # in the training split: notify about experts with fewer


class Truth(NamedTuple):
    """The posterior and the experts' accuracies on the test inputs, where they are known."""

    eta: Tensor  # [N, K]
    accuracy: Tensor  # [N, J]


@dataclass
class Task:
    """`train` is trained on, `test` is reported, `held_out` is for what is fitted after training: the dataset's own validation
    split, or a part of the training data.

    The panel's experts are those who can be asked. They are also those to train with, except where there is a `population` of
    others: then `train` holds its answers, and `context_answers` those of the panel.
    """

    dataset: Dataset
    panel: ExpertPanel
    train: Split
    test: Split
    held_out: Split | None
    population: ExpertPanel | None = None
    context_answers: Tensor | None = None  # [N, J] of the panel to the samples of `train`

    def splits(self) -> dict[str, Split]:
        """By name; held_out only where there is one."""
        splits = {"train": self.train, "test": self.test, "held_out": self.held_out}
        return {name: split for name, split in splits.items() if split is not None}

    def ids(self) -> dict[str, Sequence[str] | None]:
        """split -> the names of its samples, where they have names."""
        return {name: split.inputs.ids() for name, split in self.splits().items()}

    @property
    def class_names(self) -> list[str]:
        return self.dataset.class_names

    @property
    def expert_names(self) -> list[str]:
        return self.panel.names

    @property
    def num_classes(self) -> int:
        return self.dataset.num_classes

    @property
    def num_experts(self) -> int:
        return self.panel.num

    @property
    def preprocessing(self) -> Preprocessing:
        return self.dataset.preprocessing

    def reordered(self, class_names: list[str], expert_names: list[str]) -> "Task":
        """The same task with its classes and experts numbered as in these lists, which hold the same names."""
        if (class_names, expert_names) == (self.class_names, self.expert_names):
            return self
        number = torch.tensor([class_names.index(name) for name in self.class_names] + [MISSING])  # [K+1]; -1 stays -1
        columns = torch.tensor([self.expert_names.index(name) for name in expert_names])  # [J]

        def renumbered(split: Split) -> Split:
            return Split(split.inputs, number[split.labels], answered(split.answers[:, columns]))

        def answered(answers: Tensor) -> Tensor:
            return number[answers.long()].to(answers.dtype)

        dataset = replace(self.dataset, class_names=class_names, posterior=None)  # the truth keeps the old numbers
        panel = replace(self.panel, names=expert_names)
        held_out = None if self.held_out is None else renumbered(self.held_out)
        train, context = self.train, None
        if self.context_answers is not None:
            context = answered(self.context_answers[:, columns])
            train = Split(train.inputs, number[train.labels], answered(train.answers))
        else:
            train = renumbered(train)
        return Task(dataset, panel, train, renumbered(self.test), held_out, self.population, context)

    @cached_property
    def complete(self) -> bool:
        """Whether every expert answered every sample."""
        return all(bool((split.answers >= 0).all()) for split in self.splits().values())

    @cached_property
    def truth(self) -> Truth | None:
        """The truth on the test split: eta from the dataset's posterior, Acc_j(x) = sum_y eta_y(x) A[j, y] from simulated
        experts, and 0 where expert j does not answer, so that it is no use to ask."""
        matrix, eta = self.panel.accuracies("test"), self.dataset.eta  # [J, K], [N, K]
        if matrix is None or eta is None:
            return None
        accuracy = eta @ torch.from_numpy(matrix).T.to(eta)  # [N, J]
        return Truth(eta, accuracy.masked_fill(self.test.answers == MISSING, 0))

    def context(self, size: int, seed: int) -> Split:
        """For every expert of the panel up to `size` of the training samples that it answered, its other answers left out. Where
        all answer everything the samples are the same for all."""
        answers = self.train.answers if self.context_answers is None else self.context_answers  # [N, J]
        order = torch.randperm(len(answers), generator=torch.Generator().manual_seed(seed))
        given = answers[order] >= 0  # [N, J]
        chosen = torch.empty_like(given)
        chosen[order] = given & (given.cumsum(dim=0, dtype=torch.int32) <= size)
        rows = chosen.any(dim=1).nonzero().squeeze(1)  # [n]
        if not len(rows):
            raise UserError(
                f"experts.num={self.num_experts}: none of these experts answered a training sample, so nothing is known about them; "
                "choose experts who did."
            )
        return Split(
            self.train.inputs.take(rows), self.train.labels[rows], answers[rows].masked_fill(~chosen[rows], MISSING)
        )

    def experts(self, panel: ExpertPanel | None = None) -> list[dict[str, Any]]:
        """Each expert's name, its accuracy over the answers it gave and the share of samples it answered, on both splits."""
        panel = panel or self.panel
        facts: list[dict[str, Any]] = [{"name": name} for name in panel.names]
        for name in ("train", "test"):
            labels = getattr(self.dataset, name).labels
            answers = panel.answers(name, labels)  # [N, J], those held out too
            right, given = (answers == labels[:, None]).sum(0).tolist(), (answers >= 0).sum(0).tolist()  # [J], [J]
            for fact, hits, count in zip(facts, right, given, strict=True):
                fact[f"{name}_accuracy"] = 100 * hits / count if count else None
                fact[f"{name}_answered"] = 100 * count / len(labels)
        return facts


def load_task(cfg: DictConfig) -> Task:
    """The dataset of a config with its experts' answers, and a share of the training data held out."""
    return make_task(cfg, load_dataset(cfg))


def make_task(cfg: DictConfig, dataset: Dataset) -> Task:
    """Let the experts of a config answer the samples of a dataset."""
    panel, population = load_panel(cfg, dataset)
    labels, teachers = dataset.train.labels, population or panel
    redraw = (lambda epoch: teachers.answers("train", labels, epoch)) if teachers.redraws else None
    train = Split(dataset.train.inputs, labels, teachers.answers("train", labels), redraw)
    test = Split(dataset.test.inputs, dataset.test.labels, panel.answers("test", dataset.test.labels))
    context = panel.answers("train", labels) if population else None  # [N, J]
    _notify_few_answers(teachers.names, train)
    if dataset.held_out is not None:
        if cfg.held_out:
            raise UserError(
                f"held_out={cfg.held_out:g}: dataset={dataset.name} has a validation split of its own; leave held_out=0."
            )
        held_out = replace(dataset.held_out, answers=panel.answers("held_out", dataset.held_out.labels))
        return Task(dataset, panel, train, test, held_out, population, context)
    trained, held_out_rows = hold_out(len(train), cfg.held_out, cfg.seed)
    if held_out_rows is None:
        return Task(dataset, panel, train, test, None, population, context)
    held_out = train.take(held_out_rows)
    if context is not None:
        held_out, context = replace(held_out, answers=context[held_out_rows], redraw=None), context[trained]
    return Task(dataset, panel, train.take(trained), test, held_out, population, context)


def load_panel(cfg: DictConfig, dataset: Dataset) -> tuple[ExpertPanel, ExpertPanel | None]:
    """The experts who can be asked and, with `experts.population`, others to train with: of the population + num experts that
    the config makes the first ones, whatever num is."""
    offered = {"dataset": dataset, "num_classes": dataset.num_classes, "groups": dataset.groups, "seed": cfg.seed}
    own = {key: plain(cfg.experts[key]) for key in Drawing._fields if key in cfg.experts}
    drawing = Drawing(**{**own, "seed": cfg.seed})
    count = cfg.experts.get("population")
    if count is None:
        return make_panel(build(cfg, "experts", **offered), dataset, drawing), None
    whole = cfg.copy()
    if cfg.experts.get("num") is not None:
        whole.experts.num = cfg.experts.num + count
    panel = make_panel(build(whole, "experts", **offered), dataset, drawing)
    if panel.num <= count:
        raise UserError(
            f"experts.population={count} leaves nobody to ask of {panel.num} experts; choose at most {panel.num - 1}."
        )
    return panel.part(slice(count, None)), panel.part(slice(count))


def hold_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor | None]:
    """Split `count` rows at random: those to train on and those held out, both sorted; None if no row is held out.

    >>> train, held_out = hold_out(10, 0.3, seed=0)
    >>> len(train), len(held_out)
    (7, 3)
    """
    num_held_out = round(share * count)
    if not num_held_out:
        return torch.arange(count), None
    if num_held_out == count:
        raise UserError(f"held_out={share:g} leaves none of {count} training samples to train on; hold out less.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[num_held_out:].sort().values, order[:num_held_out].sort().values


def _notify_few_answers(names: list[str], train: Split) -> None:
    given = (train.answers >= 0).sum(dim=0).tolist()  # [J]
    few = [
        f"{name} ({count})"
        for name, count in zip(names, given, strict=True)
        if count < min(FEW_ANSWERS, len(train) // 2)
    ]
    if few:
        shown = ", ".join(few[:5]) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
        notify(f"Too few answers in {len(train):,} training samples to learn from: {shown}.")
