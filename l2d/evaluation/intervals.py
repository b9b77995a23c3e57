"""How far a number would move on another test set of the same size: bootstrap over the test samples."""

from collections.abc import Iterator

import torch
from torch import Tensor

RESAMPLES, AT_ONCE = 1000, 50
LEVEL = 95  # percent


def resampled_means(values: Tensor, seed: int = 0) -> Tensor:
    """The means [R, M] of values [N, M] over R resamples of the N rows, drawn with replacement; all columns share the rows,
    so that differences between columns are paired."""
    return torch.cat([values[rows].mean(dim=1) for rows in _resamples(len(values), seed)])


def interval(means: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and upper end [M] that LEVEL percent of the resampled means [R, M] lie between."""
    tail = (1 - LEVEL / 100) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=means.dtype), dim=0)
    return low, high


def _resamples(count: int, seed: int) -> Iterator[Tensor]:
    """Rows [AT_ONCE, N]."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(RESAMPLES // AT_ONCE):
        yield torch.randint(count, (AT_ONCE, count), generator=generator)
