"""How far a number would move on another test set of the same size: bootstrap over the test samples."""

from collections.abc import Iterator

import torch
from torch import Tensor

RESAMPLES, AT_ONCE = 1000, 50
LEVEL = 95  # percent


def resampled_means(values: Tensor) -> Tensor:
    """The means [R, M] of values [N, M] over R resamples of the N rows, drawn with replacement; all columns share the rows,
    so that differences between columns are paired."""
    return torch.cat([counts @ values.double() / len(values) for counts in resampled_counts(len(values))])


def interval(means: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and upper end [M] that LEVEL percent of the resampled means [R, M] lie between."""
    tail = (1 - LEVEL / 100) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=means.dtype), dim=0)
    return low, high


def resampled_counts(count: int) -> Iterator[Tensor]:
    """How often each of `count` rows is drawn in each resample, [AT_ONCE, N] at a time; always the same resamples."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(RESAMPLES // AT_ONCE):
        rows = torch.randint(count, (AT_ONCE, count), generator=generator)
        yield torch.zeros(AT_ONCE, count, dtype=torch.float64).scatter_add_(
            1, rows, torch.ones((), dtype=torch.float64).expand_as(rows)
        )
