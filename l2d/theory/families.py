"""Families of random joints p(y, m) that a loss is judged on: few cells, small integer masses, a clear best action."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from l2d.theory.joints import condition_holds, overlapping_specialists

TIE = 1e-6  # utilities closer than this are equal
CLEAR = (
    0.02  # what is not tied with the best action is behind it by at least this much, so that rounding decides nothing
)
SHAPES = list(product((2, 3, 4), (1, 2, 3, 4)))  # (K, J)


class Case(NamedTuple):
    """One x with a finite joint: the distinct (y, m) with their masses, and how often each expert answers."""

    family: str
    num_classes: int
    cells: Tensor  # [N, 1 + J]: a label and the experts' answers
    mass: Tensor  # [N], float64, on any scale
    rates: Tensor  # [J] answer rates, independent of all else; 1 where no answer is missing

    @property
    def num_experts(self) -> int:
        return self.cells.shape[1] - 1

    @property
    def utility(self) -> Tensor:
        """[eta_1..eta_K, Acc_1..Acc_J], [K+J]: how often each action is right."""
        labels = self.cells[:, :1]  # [N, 1]
        right = torch.cat([labels == torch.arange(self.num_classes), self.cells[:, 1:] == labels], dim=1)  # [N, K+J]
        return self.mass @ right.double() / self.mass.sum()

    @property
    def dense(self) -> Tensor:
        """The masses as a tensor [K, K, ..., K]."""
        joint = torch.zeros([self.num_classes] * self.cells.shape[1], dtype=torch.float64)
        return joint.index_put(self.cells.unbind(1), self.mass, accumulate=True)

    def merged(self) -> "Case":
        """Equal cells added up, those without mass left out."""
        cells, group = self.cells[self.mass > 0].unique(dim=0, return_inverse=True)
        mass = self.mass.new_zeros(len(cells)).index_add(0, group, self.mass[self.mass > 0])
        return self._replace(cells=cells, mass=mass)

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every (y, m) with missing answers: labels [R], answers [R, J] (-1: none) and probability [R]."""
        missing = torch.tensor(list(product((False, True), repeat=self.num_experts)))  # [2^J, J]
        share = torch.where(missing, 1 - self.rates, self.rates).prod(dim=1)  # [2^J]
        missing, share = missing[share > 0], share[share > 0]
        labels = self.cells[:, 0].repeat_interleave(len(share))
        answers = self.cells[:, None, 1:].masked_fill(missing, -1).flatten(0, 1)
        return labels, answers, (self.mass[:, None] * share / self.mass.sum()).flatten()


def draw_cases(count: int, seed: int) -> list[Case]:
    """Random joints of the families in turn, K = 2..4 and J = 1..4 in turn; in each the best action is clear."""
    generator = torch.Generator().manual_seed(seed)
    names = list(FAMILIES)
    cases = []
    for index in range(count):
        name, turn = names[index % len(names)], index // len(names)
        draw, least_experts = FAMILIES[name]
        shapes = [shape for shape in SHAPES if shape[1] >= least_experts]
        cases.append(next(case for case in draw(*shapes[turn % len(shapes)], turn, generator) if _clear(case)))
        cases[-1] = cases[-1]._replace(family=name)
    return cases


def _clear(case: Case) -> bool:
    behind = case.utility.max() - case.utility
    return bool(((behind < TIE) | (behind > CLEAR)).all())


def _case(num_classes: int, cells: Tensor, mass: Tensor) -> Case:
    everyone = torch.ones(cells.shape[1] - 1, dtype=torch.float64)
    return Case("", num_classes, cells, mass.double(), everyone).merged()


def _integers(low: int, high: int, size: tuple[int, ...], generator: Generator) -> Tensor:
    return torch.randint(low, high + 1, size, generator=generator)


def _arbitrary(num_classes: int, num_experts: int, turn: int, generator: Generator, most: int = 20) -> Iterator[Case]:
    """A few cells with uneven masses. Experts are right in random cells, some in more than others."""
    while True:
        number = int(_integers(num_classes, most, (1,), generator))
        labels = _integers(0, num_classes - 1, (number, 1), generator)
        right = torch.rand(number, num_experts, generator=generator) < 0.2 + 0.7 * torch.rand(
            num_experts, generator=generator
        )
        wrong = (labels + _integers(1, num_classes - 1, (number, num_experts), generator)) % num_classes
        mass = (1 + 12 * torch.rand(number, generator=generator) ** 3).floor()
        yield _case(num_classes, torch.cat([labels, torch.where(right, labels, wrong)], dim=1), mass)


def _independent(num_classes: int, num_experts: int, turn: int, generator: Generator) -> Iterator[Case]:
    """Experts independent given the label, eta and accuracies in tenths; an expert errs in one way on each class."""
    while True:
        eta = _tenths(num_classes, generator)
        accuracy = _integers(1, 9, (num_experts, num_classes), generator)  # in tenths
        yield _independent_experts(eta, accuracy, generator)


def _independent_experts(eta: Tensor, accuracy: Tensor, generator: Generator) -> Case:
    """Masses eta [K] and accuracies [J, K] in tenths, as a case."""
    num_experts, num_classes = accuracy.shape
    error = (
        torch.arange(num_classes) + _integers(1, num_classes - 1, (num_experts, num_classes), generator)
    ) % num_classes
    right = torch.tensor(list(product((True, False), repeat=num_experts)))  # [2^J, J]
    labels = torch.arange(num_classes)[:, None].expand(-1, len(right))  # [K, 2^J]
    answers = torch.where(right, labels[..., None], error.T[:, None])  # [K, 2^J, J]
    mass = eta[:, None] * torch.where(right, accuracy.T[:, None], 10 - accuracy.T[:, None]).prod(dim=2)  # [K, 2^J]
    return _case(num_classes, torch.cat([labels[..., None], answers], dim=2).flatten(0, 1), mass.flatten())


def _tenths(num_classes: int, generator: Generator) -> Tensor:
    """Positive integers [K] that add up to 10."""
    cuts = 1 + torch.randperm(9, generator=generator)[: num_classes - 1].sort().values
    return torch.cat([torch.tensor([0]), cuts, torch.tensor([10])]).diff()


def _deterministic(num_classes: int, num_experts: int, turn: int, generator: Generator) -> Iterator[Case]:
    """Each expert is a function of x, so has one answer here: Acc_j is the eta of that answer."""
    while True:
        answers = _integers(0, num_classes - 1, (1, num_experts), generator).expand(num_classes, -1)
        cells = torch.cat([torch.arange(num_classes)[:, None], answers], dim=1)
        yield _case(num_classes, cells, _tenths(num_classes, generator))


def _condition_holds(num_classes: int, num_experts: int, turn: int, generator: Generator) -> Iterator[Case]:
    draw = (_arbitrary, _independent)[turn % 2](num_classes, num_experts, turn, generator)
    return (case for case in draw if condition_holds(case.dense))


def _condition_fails(num_classes: int, num_experts: int, turn: int, generator: Generator) -> Iterator[Case]:
    """First the overlapping specialists of docs/theory.md, then in turn arbitrary joints and jittered specialists."""
    if turn == 0:
        joint = overlapping_specialists()
        yield _case(4, joint.nonzero(), joint[joint > 0])
    draw = _specialists(generator) if turn % 2 else _arbitrary(num_classes, num_experts, turn, generator)
    yield from (case for case in draw if not condition_holds(case.dense))


def _specialists(generator: Generator) -> Iterator[Case]:
    """Overlapping specialists with other masses; half of them are infallible, half err independently."""
    joint = overlapping_specialists()
    own = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    while True:
        if torch.rand(1, generator=generator) < 0.5:
            yield _case(4, joint.nonzero(), 6 * joint[joint > 0] + _integers(-2, 2, (4,), generator))
            continue
        accuracy = torch.where(own, _integers(8, 10, (3, 4), generator), _integers(0, 3, (3, 4), generator))
        yield _independent_experts(torch.tensor([2, 3, 3, 2]), accuracy, generator)


def _duplicated(num_classes: int, num_experts: int, turn: int, generator: Generator) -> Iterator[Case]:
    """The last expert always answers as the first."""
    for case in _arbitrary(num_classes, num_experts - 1, turn, generator):
        yield _case(num_classes, torch.cat([case.cells, case.cells[:, 1:2]], dim=1), case.mass)


def _missing(num_classes: int, num_experts: int, turn: int, generator: Generator) -> Iterator[Case]:
    """Every expert answers with a rate of its own, in tenths, whatever the label and the answer."""
    for case in _arbitrary(num_classes, num_experts, turn, generator, most=12):
        yield case._replace(rates=_integers(2, 9, (num_experts,), generator).double() / 10)


# name -> (the joints to choose from, given K, J, the turn and a generator; the least number of experts)
FAMILIES: dict[str, tuple[Callable[[int, int, int, Generator], Iterator[Case]], int]] = {
    "arbitrary": (_arbitrary, 1),
    "independent given y": (_independent, 1),
    "deterministic experts": (_deterministic, 1),
    "Condition 1 holds": (_condition_holds, 2),
    "Condition 1 fails": (_condition_fails, 3),
    "duplicated experts": (_duplicated, 2),
    "missing at random": (_missing, 1),
}
