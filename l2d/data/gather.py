"""What every step takes from a table or draws, for several steps in one call of torch, which takes longer than to copy a small batch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

MAX_BYTES = 1 << 21  # of the rows of several steps: they stay in the caches


def several(steps: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, list[int]]]:
    """The indices of as many consecutive steps as have this many rows, in one tensor [n], and how many of them each step has."""
    done = 0
    while done < len(steps):
        some = steps[done : done + max(rows // max(len(steps[done]), 1), 1)]
        yield torch.cat(list(some)), [len(index) for index in some]
        done += len(some)


def rows_at_once(table: Tensor) -> int:
    """How many rows of a table have MAX_BYTES."""
    return MAX_BYTES // max(table.nbytes // max(len(table), 1), 1)


def rows_of(table: Tensor, steps: Sequence[Tensor]) -> Iterator[Tensor]:
    """table[index] of the index [B] of every step.

    >>> [rows.tolist() for rows in rows_of(torch.tensor([5, 6, 7]), [torch.tensor([2, 0]), torch.tensor([1])])]
    [[7, 5], [6]]
    """
    for index, sizes in several(steps, rows_at_once(table)):
        yield from divide(table.index_select(0, index.to(table.device, non_blocking=True)), sizes)


def stepwise(*columns: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """zip(*columns), which keeps nothing that it has given out: the memory of a batch is free for the next one, while it is in the caches."""
    return map(lambda *row: row, *columns)


def divide(rows: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """The rows of each step: tensors of their own, because a compiled model is compiled again for a view of another size."""
    parts: Sequence[Tensor] = torch.unsafe_split_with_sizes(rows, sizes)
    return parts
