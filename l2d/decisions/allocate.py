"""Which case goes to which expert where room is limited, exactly, and what one more place would be worth."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2d.decisions.decide import Decision

Array = NDArray[np.float64]
Chosen = NDArray[np.intp]
ROUNDING = 1e-12  # of sums of gains up to 1: a smaller improvement is none


class Allocation(NamedTuple):
    """Who is asked, at most one expert per case, and the prices under which everybody would choose so."""

    asked: Tensor  # [N, J] bool
    prices: Tensor  # [J] >= 0; 0 for an expert with room left
    gap: float  # value of the dual problem minus that of the primal: 0 where both are optimal


def allocate(free: Decision, room: Tensor) -> Allocation:
    """The allocation with the largest sum of gains in which expert j is asked about at most room[j] cases (inf: no limit).

    maximise sum_ij gain_ij x_ij  with  sum_j x_ij <= 1,  sum_i x_ij <= room_j,  x >= 0:
    a transportation problem, whose vertices are integral. `free` is the decision without limits, and stays where it keeps them.

    >>> gain = torch.tensor([[0.3, 0.2], [0.2, 0.1]])  # both cases prefer expert 0, who has time for one
    >>> free = Decision(torch.zeros(2), torch.zeros(2).long(), gain, torch.tensor([[True, False]] * 2))
    >>> allocate(free, torch.tensor([1.0, torch.inf])).asked.int().tolist()
    [[1, 0], [0, 1]]
    """
    if (free.asked.sum(dim=0) <= room).all():
        return Allocation(free.asked, torch.zeros(len(room), dtype=torch.float64), 0.0)
    scale = max(1.0, free.gain.max().item())  # so that ROUNDING is one
    gain = (free.gain.double() / scale).masked_fill(free.gain <= 0, -torch.inf).numpy()  # [N, J]
    limit = room.double().numpy()  # [J]
    value = np.column_stack([gain, np.zeros(len(gain))])  # [N, J+1]: the last column is to ask nobody
    chosen = _assigned(value, limit)  # [N]
    prices = _prices(value, chosen, limit)  # [J]
    most = (value - np.append(prices, 0)).max(axis=1).sum() + prices @ np.where(np.isfinite(limit), limit, 0)
    gap = most - value[np.arange(len(gain)), chosen].sum()
    asked = chosen[:, None] == np.arange(len(limit))  # [N, J]
    return Allocation(torch.from_numpy(asked), torch.from_numpy(scale * prices), scale * float(gap))


def _assigned(value: Array, room: Array) -> Chosen:
    """The expert of each case in an optimal solution, [N]; J: nobody, for which a case is worth 0 in the last column of `value`.

    Cases come one at a time, and each takes the best chain of moves: it goes to expert j, who is full and passes a case on to
    expert k, .., until a place is left or a case is asked about no more. These are longest paths between J experts, however many
    cases there are, and after each the solution is optimal for the cases that have come.
    """
    nobody, gain = len(room), value[:, :-1]  # [N, J]
    chosen, left = np.full(len(gain), nobody), room.copy()  # [N], [J]
    move = np.full((nobody, nobody + 1), -np.inf)  # the most that a full expert gains by passing a case on to each
    passed = np.full((nobody, nobody + 1), -1)  # which case that is
    worth, following = _chains(move, left)  # [J], [J]
    for case in np.argsort(-gain.max(axis=1), kind="stable"):
        expert = int((gain[case] + worth).argmax())
        if gain[case, expert] + worth[expert] <= 0:
            continue
        came: dict[int, int] = {}  # expert -> the case that it gets
        while expert != nobody:
            assert expert not in came
            chosen[case], came[expert] = expert, case
            if left[expert] > 0:
                left[expert] -= 1
                break
            case, expert = passed[expert, following[expert]], int(following[expert])
        else:
            chosen[case] = nobody
        full = [expert for expert in came if left[expert] == 0]
        for expert in full:
            gone = np.flatnonzero((passed[expert] < 0) | (chosen[passed[expert]] != expert))
            own = np.flatnonzero(chosen == expert)
            changes = value[np.ix_(own, gone)] - gain[own, expert][:, None]  # [n, columns]
            first = changes.argmax(axis=0)
            move[expert, gone], passed[expert, gone] = changes[first, np.arange(len(gone))], own[first]
            change = value[came[expert]] - gain[came[expert], expert]  # [J+1]
            better = change > move[expert]
            move[expert][better], passed[expert][better] = change[better], came[expert]
            move[expert, expert] = -np.inf
        if full:
            worth, following = _chains(move, left)
    return chosen


def _chains(move: Array, left: Array) -> tuple[Array, Chosen]:
    """The worth [J] <= 0 of one more case at each expert, 0 where there is a place left, and to whom a case is passed on, [J]."""
    nobody = len(left)
    worth = np.where(left > 0, 0, move[:, nobody])
    following = np.full(nobody, nobody)
    for _ in range(nobody):
        through = move[:, :nobody] + worth  # [J, J]
        best = through.argmax(axis=1)
        reached = through[np.arange(nobody), best]
        better = reached > worth + ROUNDING
        if not better.any():
            break
        worth, following = np.where(better, reached, worth), np.where(better, best, following)
    return worth, following


def _prices(value: Array, chosen: Chosen, limit: Array) -> Array:
    """Prices [J] under which every case of an optimal assignment `chosen` [N] prefers its expert; 0 where there is room.

    They are not unique. Where moving a case from j to k would gain move[j, k], price_k >= price_j + move[j, k]: the longest paths
    from any one expert to all are such prices, minus that to nobody. In their mean no case is undecided, if that is possible.
    """
    nobody = len(limit)
    move = np.full((nobody + 1, nobody + 1), -np.inf)
    for j in range(nobody + 1):
        own = value[chosen == j]  # [n_j, J+1]
        if len(own):
            move[j] = (own - own[:, [j]]).max(axis=0)
    full = np.bincount(chosen, minlength=nobody + 1)[:nobody] >= limit  # [J]
    move[:nobody, nobody][~full] = move[:nobody, nobody][~full].clip(min=0)
    move[nobody] = move[nobody].clip(min=0)
    for k in range(nobody + 1):
        move = np.maximum(move, move[:, [k]] + move[[k]])
    paths = move[np.isfinite(move[:, nobody])]  # [S, J+1]
    return np.where(full, (paths - paths[:, [nobody]]).mean(axis=0)[:nobody], 0)
