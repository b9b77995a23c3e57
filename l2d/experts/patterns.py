"""Synthetic expert patterns: the accuracy of every expert on every class, as a matrix A [J, K].

Expert j is right on class k with probability A[j, k]: `in_domain` on the classes it specialises in, `in_group` on the
rest of its group, and at random (1/K) everywhere else.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, Interval

from l2d.errors import UserError

Groups = dict[str, list[int]]
Accuracy = Annotated[float, Interval(ge=0, le=1)]


def disjoint(
    num: Annotated[int, Ge(1)],
    num_classes: int,
    groups: Groups,
    group: str,
    classes_per_expert: Annotated[int, Ge(1)],
    in_domain: Accuracy | tuple[Accuracy, Accuracy],
    in_group: Accuracy,
    wrap: bool = False,
) -> np.ndarray:
    """Expert j owns its own `classes_per_expert` classes of the group. `in_domain: [first, last]` varies linearly.

    With `wrap`, experts for whom no classes are left own those of the first ones again.
    """
    members = _members(groups, group)
    domains = disjoint_domains(members, num, classes_per_expert, wrap)
    return accuracy_matrix(domains, members, num_classes, in_domain, in_group)


def overlapped(
    num: Annotated[int, Ge(1)],
    num_classes: int,
    groups: Groups,
    group: str,
    overlap: Annotated[int, Ge(0)],
    in_domain: Accuracy | tuple[Accuracy, Accuracy],
    in_group: Accuracy,
) -> np.ndarray:
    """The experts' windows cover the whole group; neighbours share exactly `overlap` classes."""
    members = _members(groups, group)
    return accuracy_matrix(overlapped_domains(members, num, overlap), members, num_classes, in_domain, in_group)


def with_generalist(
    num: Annotated[int, Ge(1)],
    num_classes: int,
    groups: Groups,
    group: str,
    overlap: Annotated[int, Ge(0)],
    in_domain: Accuracy | tuple[Accuracy, Accuracy],
    in_group: Accuracy,
    generalist: Accuracy,
) -> np.ndarray:
    """The first expert has the accuracy `generalist` on the whole group; the others are overlapped specialists."""
    members = _members(groups, group)
    first = accuracy_matrix([members], members, num_classes, generalist, in_group)
    if num == 1:
        return first
    return np.vstack([first, overlapped(num - 1, num_classes, groups, group, overlap, in_domain, in_group)])


def graded(
    num: Annotated[int, Ge(1)],
    num_classes: int,
    groups: Groups,
    group: str | None,
    best: Accuracy,
    others: Accuracy | tuple[Accuracy, Accuracy],
) -> np.ndarray:
    """Nobody specialises: the first expert has the accuracy `best` on every class of the group (null: of the dataset), the
    others have `others`, or from [second, last]."""
    members = list(range(num_classes)) if group is None else _members(groups, group)
    first, rest = (
        accuracy_matrix([members] * count, members, num_classes, accuracy, in_group=0)
        for count, accuracy in ((1, best), (num - 1, others))
    )
    return np.vstack([first, rest])


def disjoint_domains(group: Sequence[int], num: int, size: int, wrap: bool = False) -> list[list[int]]:
    """Expert j gets classes [j * size, (j + 1) * size) of the ordered group; with `wrap`, those of expert j modulo the number
    of experts that fit."""
    room = len(group) // size
    if num > room and not (wrap and room):
        again = ", or let domains repeat (experts.wrap=true)" if room else ""
        raise UserError(
            f"{num} experts x {size} classes need {num * size} classes, but the group has {len(group)}; "
            f"at most {room} experts fit (experts.num), or fewer classes each (experts.classes_per_expert){again}."
        )
    return [list(group[j % room * size : (j % room + 1) * size]) for j in range(num)]


def overlapped_domains(group: Sequence[int], num: int, overlap: int) -> list[list[int]]:
    """A chain of windows over the ordered group: lengths differ by at most one, the longer ones first."""
    if num == 1:
        return [list(group)]
    max_experts = len(group) - overlap
    if num > max_experts:
        raise UserError(
            f"No chain of {num} windows that share {overlap} classes covers a group of {len(group)}; "
            f"at most {max(max_experts, 1)} experts fit (experts.num), or choose a smaller experts.overlap."
        )
    length, longer = divmod(len(group) + (num - 1) * overlap, num)
    domains, start = [], 0
    for j in range(num):
        stop = start + length + (j < longer)
        domains.append(list(group[start:stop]))
        start = stop - overlap
    return domains


def accuracy_matrix(
    domains: Sequence[Sequence[int]],
    group: Sequence[int],
    num_classes: int,
    in_domain: Accuracy | tuple[Accuracy, Accuracy],
    in_group: Accuracy,
) -> np.ndarray:
    """A [J, K]; `in_domain` is one accuracy for all, or [first expert's, last expert's] with the others between."""
    ends = np.atleast_1d(np.asarray(in_domain, dtype=float))  # [1] or [2]
    matrix = np.full((len(domains), num_classes), 1 / num_classes)  # [J, K]
    matrix[:, list(group)] = in_group
    for row, domain, accuracy in zip(matrix, domains, np.linspace(ends[0], ends[-1], len(domains)), strict=True):
        row[list(domain)] = accuracy
    return matrix


def _members(groups: Groups, group: str) -> list[int]:
    if group not in groups:
        known = ", ".join(sorted(groups)) or "none"
        raise UserError(
            f"These experts know the class group '{group}', which this dataset does not have (its groups: {known}); "
            "choose experts=... that fit the dataset, or set experts.group."
        )
    return groups[group]
