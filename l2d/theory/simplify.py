"""A missed joint made small enough to be checked by hand: fewer experts, classes and cells, smaller masses."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from l2d.theory.families import Case
from l2d.theory.judge import Finding

ROUNDS = 20


def simplify(findings: list[Finding], judge: Callable[[list[Case]], list[Finding]]) -> Finding | None:
    """The worst of the findings, made smaller while at least half of its regret stays; None if nothing was missed.

    `judge` minimises the risk on smaller joints; one counts only if all minima found there miss the Bayes decision.
    """
    missed = [finding for finding in findings if finding.missed and finding.minima.settled]
    if not missed:
        return None
    enough = max(finding.regret for finding in missed) / 2
    best = min((finding for finding in missed if finding.regret >= enough), key=_size)
    for _ in range(ROUNDS):
        smaller = [case for case in _smaller(best.case) if _size_of(case) < _size_of(best.case)]
        kept = [f for f in judge(smaller) if f.always >= best.always and f.regret >= enough and f.minima.settled]
        if not kept:
            break
        best = min(kept, key=_size)
    return best


def _size(finding: Finding) -> tuple[Any, ...]:
    return (not finding.always, *_size_of(finding.case))


def _size_of(case: Case) -> tuple[Any, ...]:
    missing = bool((case.rates < 1).any())
    return missing, case.num_experts, len(case.cells), case.num_classes, float(case.mass.sum())


def _smaller(case: Case) -> Iterator[Case]:
    """Each one step away: without an expert, a class or a cell, with smaller masses, with every answer given."""
    count, experts = len(case.cells), case.num_experts
    yield case._replace(rates=torch.ones_like(case.rates))
    if experts > 1:
        for expert in range(experts):
            kept = [column for column in range(1 + experts) if column != 1 + expert]
            rates = case.rates[[column - 1 for column in kept[1:]]]
            yield case._replace(cells=case.cells[:, kept], rates=rates).merged()
    if case.num_classes > 2:
        for label in range(case.num_classes):
            if (case.cells[:, 0] != label).any():
                yield _without_class(case, label)
    order = case.mass.argsort()
    for size in {1, count // 4, count // 2} - {0, count}:
        for start in range(0, count - size + 1, size):
            kept = order.tolist()[:start] + order.tolist()[start + size :]
            yield case._replace(cells=case.cells[kept], mass=case.mass[kept])
    for total in (4, 6, 10, 20, 50):
        mass = (case.mass / case.mass.sum() * total).round()
        yield case._replace(cells=case.cells[mass > 0], mass=mass[mass > 0])


def _without_class(case: Case, label: int) -> Case:
    """Without the samples of a class; those who gave it as an answer are wrong in another way."""
    kept = case.cells[:, 0] != label
    cells = case.cells[kept]  # [N, 1 + J]
    renamed = cells - (cells > label).long()
    wrong = (renamed[:, :1] + 1) % (case.num_classes - 1)
    fewer = case._replace(num_classes=case.num_classes - 1, cells=torch.where(cells == label, wrong, renamed))
    return fewer._replace(mass=case.mass[kept]).merged()
