"""Batches of a split: the inputs of each step with their labels and answers."""

from collections.abc import Iterator

import torch
from torch import Tensor

from l2d.data.dataset import Batch, Split
from l2d.data.gather import rows_of
from l2d.data.seeds import mix
from l2d.errors import UserError
from l2d.place import Place


class Loader:
    """The batches of one split on one device. Order and augmentation of epoch e, step s follow from (seed, e, s) alone.

    Of several ranks each takes every `count`-th sample of a global batch; `batch_size` is the part of this rank.
    """

    def __init__(self, split: Split, place: Place, batch_size: int, seed: int = 0, train: bool = False):
        ranks = place.ranks
        if len(split) < ranks.count:
            raise UserError(
                f"A split has {len(split)} samples for {ranks.count} processes; use at most {len(split)} of them."
            )
        self.split, self.place, self.seed, self.train, self.whole_batch = split, place, seed, train, batch_size
        self.batch_size = min(ranks.per_rank_batch_size(batch_size), max(len(split) // ranks.count, 1))
        self.labels = split.labels.to(place.device)
        self.answers, self.answers_epoch = (split.redraw(0) if split.redraw else split.answers).to(place.device), 0
        self.feed = split.inputs.feed(place, seed, train)

    def __len__(self) -> int:
        """Steps of an epoch. Training drops the incomplete last batch, so that all steps have the same shapes."""
        if self.train:
            return len(self.split) // (self.batch_size * self.place.ranks.count)
        return -(-self.num_samples // self.batch_size)

    @property
    def num_samples(self) -> int:
        """The samples of this rank."""
        return len(range(self.place.ranks.rank, len(self.split), self.place.ranks.count))

    def take(self, rows: Tensor) -> "Loader":
        """The same for these rows [n] of the split alone."""
        return Loader(self.split.take(rows), self.place, self.whole_batch, self.seed, self.train)

    def order(self, epoch: int) -> tuple[Tensor, ...]:
        """The samples [B] of every step, drawn on the CPU, so that they are the same on every device."""
        order = torch.arange(len(self.split))
        if self.train:
            shuffle = torch.Generator().manual_seed(mix(self.seed, epoch, -1))
            order = torch.randperm(len(self.split), generator=shuffle)
        steps: tuple[Tensor, ...] = order[self.place.ranks.rank :: self.place.ranks.count].split(self.batch_size)
        return steps[: len(self)]

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches from step `start` on."""
        if self.split.redraw and epoch != self.answers_epoch:
            self.answers, self.answers_epoch = self.split.redraw(epoch).to(self.place.device), epoch
        order = self.order(epoch)
        fed, steps = self.feed.epoch(order, epoch, start), order[start:]
        if getattr(self.feed, "leaves_none_out", False):
            targets = rows_of(self.labels, steps), rows_of(self.answers, steps)
            yield from map(_batch, fed, *targets)  # which keeps none of them: `stepwise` says why
        else:
            for inputs, index in fed:
                yield Batch(inputs, self.labels.index_select(0, index), self.answers.index_select(0, index), index)


def _batch(fed: tuple[Tensor, Tensor], labels: Tensor, answers: Tensor) -> Batch:
    """Of the inputs and samples that a feed gave, and what is known about them."""
    inputs, samples = fed
    return Batch(inputs, labels, answers, samples)
