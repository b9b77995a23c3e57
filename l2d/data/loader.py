"""Resident data: the whole split lives on the device; a batch is an index, an augmentation and a normalisation there."""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from l2d.data.augment import augmentation, boxes_and_coins, centre_crop, random_resized_crop_flip, resample_bytes
from l2d.data.dataset import Dataset, Split
from l2d.data.files import Box
from l2d.errors import UserError


class Batch(NamedTuple):
    images: Tensor  # [B, C, H, W] float32, normalised
    labels: Tensor  # [B]
    expert_predictions: Tensor  # [B, J]


class Loader(Protocol):
    """Batches of one split: what the training loop needs to know of it."""

    batch_size: int

    def __len__(self) -> int: ...
    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]: ...


def make_loader(
    dataset: Dataset,
    split: str,
    expert_table: Callable[[int], Tensor],
    batch_size: int,
    device: torch.device,
    seed: int,
    memory_format: torch.memory_format,
    rank: int = 0,
    ranks: int = 1,
) -> Loader:
    """The way to feed the device that fits the split: `expert_table(epoch)` gives the experts' predictions [N, J]."""
    from l2d.data.stream import StreamLoader  # here, because it builds on this module

    data = getattr(dataset, split)
    kind = ResidentLoader if isinstance(data.images, Tensor) else StreamLoader
    return kind(dataset, data, expert_table, batch_size, device, seed, split == "train", memory_format, rank, ranks)


class SplitLoader:
    """What both ways of feeding share. Order and augmentation of epoch e, step s follow from (seed, e, s) alone.

    Of `ranks` processes each is dealt every `ranks`-th sample of a global batch; `batch_size` is its own part of that.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        expert_table: Callable[[int], Tensor],  # epoch -> [N, J]
        batch_size: int,
        device: torch.device,
        seed: int = 0,
        train: bool = False,
        memory_format: torch.memory_format = torch.contiguous_format,
        rank: int = 0,
        ranks: int = 1,
    ):
        self.labels = split.labels.to(device)
        self.expert_table = expert_table
        self.expert_predictions, self.table_epoch = expert_table(0).to(device), 0
        self.rank, self.ranks = rank, ranks
        self.batch_size = min(batch_size, max(len(split) // ranks, 1))
        self.size = dataset.image_shape[1:]
        self.augment = augmentation(dataset.augment) if train else None
        self.generator = torch.Generator(device)
        self.device, self.seed, self.train = device, seed, train
        self.memory_format = memory_format
        self.scale: Tensor | None = None

    def __len__(self) -> int:
        """Training drops the incomplete last batch, so that every step has the same shapes; evaluation drops nothing."""
        if self.train:
            return len(self.labels) // (self.batch_size * self.ranks)
        return -(-len(range(self.rank, len(self.labels), self.ranks)) // self.batch_size)

    def normalise_bytes(self, dataset: Dataset) -> None:
        """From here on a pixel x becomes (x / 255 - mean) / std."""
        mean, std = (torch.tensor(v, device=self.device).view(1, -1, 1, 1) for v in (dataset.mean, dataset.std))
        row = (-1, -1, -1, self.size[1])  # a whole row in the images' own layout: long runs, which vectorise
        self.scale = (1 / (255 * std)).expand(row).contiguous(memory_format=self.memory_format)  # [1, C, 1, W]
        self.shift = (-mean / std).expand(row).contiguous(memory_format=self.memory_format)

    def indices(self, epoch: int) -> tuple[Tensor, ...]:
        """The samples of every step, on the CPU, so that they are the same on every device; and the epoch's experts."""
        if epoch != self.table_epoch:
            self.expert_predictions, self.table_epoch = self.expert_table(epoch).to(self.device), epoch
        order = torch.arange(len(self.labels))
        if self.train:
            shuffle = torch.Generator().manual_seed(mix(self.seed, epoch, -1))
            order = torch.randperm(len(self.labels), generator=shuffle)
        return order[self.rank :: self.ranks].split(self.batch_size)[: len(self)]

    def batch(self, images: Tensor, index: Tensor, epoch: int, step: int) -> Batch:
        """Augment and normalise on the device; `index` [B] says which samples these are."""
        if self.augment:
            images = self.augment(images, self.size, self.seeded(epoch, step))
        else:
            images = centre_crop(images, self.size)
        images = as_float(images, self.memory_format)
        if self.scale is not None:
            images = torch.addcmul(self.shift, images, self.scale, out=images)
        return self.labelled(images, index)

    def seeded(self, epoch: int, step: int) -> torch.Generator:
        return self.generator.manual_seed(mix(self.seed, epoch, step, self.rank))

    def labelled(self, images: Tensor, index: Tensor) -> Batch:
        return Batch(images, self.labels.index_select(0, index), self.expert_predictions.index_select(0, index))


class ResidentLoader(SplitLoader):
    """Batches of a split whose images are in one tensor on the device."""

    def __init__(self, dataset: Dataset, split: Split, *args: Any, **kwargs: Any):
        super().__init__(dataset, split, *args, **kwargs)
        assert isinstance(split.images, Tensor)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.images = split.images.to(self.device)
        if self.images.dtype == torch.uint8:
            self.normalise_bytes(dataset)
        if any(have < want for have, want in zip(self.images.shape[-2:], self.size, strict=True)):
            raise UserError(
                f"The images are kept at {self.images.shape[2]} x {self.images.shape[3]}, smaller than the "
                f"{self.size[0]} x {self.size[1]} that the model sees; use a dataset.resize of at least dataset.size."
            )

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches from step `start` on."""
        order = torch.cat(self.indices(epoch)).to(self.device)
        in_bytes = self.images.dtype == torch.uint8
        for step, index in enumerate(order.split(self.batch_size)[start:], start):
            if self.augment is random_resized_crop_flip and in_bytes and self.device.type == "cpu":
                yield self.labelled(self._one_by_one(index, epoch, step), index)
            elif in_bytes and not self.train:  # in order: a view, which the conversion to floats copies
                first = self.rank + self.ranks * self.batch_size * step
                yield self.batch(self.images[first :: self.ranks][: len(index)], index, epoch, step)
            else:
                yield self.batch(gather(self.images, index), index, epoch, step)

    def _one_by_one(self, index: Tensor, epoch: int, step: int) -> Tensor:
        """As `batch` does it, but from pixels to floats image by image in threads: large images stay in the caches."""
        drawn = boxes_and_coins(self.images, len(index), self.seeded(epoch, step))
        floats = empty_floats((len(index), self.images.shape[1], *self.size), self.memory_format)
        jobs = list(zip(floats.numpy(), index.tolist(), *(drew.tolist() for drew in drawn), strict=True))
        assert self.scale is not None  # bytes always have one
        scale, shift = self.scale[0].numpy(), self.shift[0].numpy()  # [C, 1, W]

        def work(part: Sequence[tuple[np.ndarray, int, Box, bool]]) -> None:
            for out, i, box, mirrored in part:
                pixels = resample_bytes(self.images[i : i + 1], box, mirrored, self.size)  # [C, *size]
                np.add(np.multiply(pixels.numpy(), scale, out=out), shift, out=out)  # numpy stays in this thread

        deque(_threads.map(work, (jobs[k::THREADS] for k in range(THREADS))), maxlen=0)
        return floats


THREADS = torch.get_num_threads()
_threads = ThreadPoolExecutor(THREADS)


def gather(images: Tensor, index: Tensor) -> Tensor:
    """The images at `index` [B] in the layout they are kept in, which index_select alone would not keep."""
    if not images.is_contiguous(memory_format=torch.channels_last):
        return images.index_select(0, index)
    return images.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)


def as_float(images: Tensor, memory_format: torch.memory_format) -> Tensor:
    """float32 in this layout."""
    if images.device.type != "cpu" or images.dtype == torch.float32:
        return images.to(torch.float32, memory_format=memory_format)
    return empty_floats(images.shape, memory_format).copy_(images)


def empty_floats(shape: Sequence[int], memory_format: torch.memory_format) -> Tensor:
    """float32 on the CPU, in memory from numpy, which asks for huge pages: half the time for large images."""
    batch, channels, height, width = shape
    if memory_format == torch.channels_last:
        return torch.from_numpy(np.empty((batch, height, width, channels), dtype=np.float32)).permute(0, 3, 1, 2)
    return torch.from_numpy(np.empty(shape, dtype=np.float32))


def keep_freed_memory() -> None:
    """Tell glibc not to return large blocks to the system: fresh pages for every batch cost a quarter of its time."""
    mmap_max, trim_threshold, never = -4, -1, -1  # of malloc.h
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, never)


def mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several numbers."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:  # splitmix64's finaliser
        state = (state + (number & 0xFFFFFFFFFFFFFFFF)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
