"""Resident data: the whole split lives on the device; a batch is an index, an augmentation and a normalisation there."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from l2d.data.augment import AUGMENTATIONS
from l2d.data.dataset import Dataset, Split


class Batch(NamedTuple):
    images: Tensor  # [B, C, H, W] float32, normalised
    labels: Tensor  # [B]
    expert_predictions: Tensor  # [B, J]


class Loader(Protocol):
    """Batches of one split: what the training loop needs to know of it."""

    batch_size: int

    def __len__(self) -> int: ...
    def epoch(self, epoch: int = 0) -> Iterator[Batch]: ...


def make_loader(
    dataset: Dataset,
    split: str,
    expert_table: Callable[[int], Tensor],
    batch_size: int,
    device: torch.device,
    seed: int,
    memory_format: torch.memory_format,
) -> Loader:
    """The way to feed the device that fits the split: `expert_table(epoch)` gives the experts' predictions [N, J]."""
    data = getattr(dataset, split)
    return ResidentLoader(dataset, data, expert_table, batch_size, device, seed, split == "train", memory_format)


class ResidentLoader:
    """Batches of one split. Order and augmentation of epoch e, step s follow from (seed, e, s) alone."""

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
    ):
        self.images = split.images.to(device)
        self.labels = split.labels.to(device)
        self.expert_table = expert_table
        self.expert_predictions = expert_table(0).to(device)
        self.batch_size = min(batch_size, len(split))
        self.augment = AUGMENTATIONS[dataset.augment] if train else None
        self.generator = torch.Generator(device)
        self.device, self.seed, self.train = device, seed, train
        self.memory_format = memory_format
        if self.images.dtype == torch.uint8:
            mean = torch.tensor(dataset.mean, device=device).view(-1, 1, 1)
            std = torch.tensor(dataset.std, device=device).view(-1, 1, 1)
            self.scale, self.shift = 1 / (255 * std), -mean / std

    def __len__(self) -> int:
        """Training drops the incomplete last batch, so that every step has the same shapes; evaluation drops nothing."""
        whole, rest = divmod(len(self.labels), self.batch_size)
        return whole if self.train else whole + bool(rest)

    def epoch(self, epoch: int = 0) -> Iterator[Batch]:
        order = self._order(epoch)  # [N]
        if epoch:
            self.expert_predictions = self.expert_table(epoch).to(self.device)
        for step in range(len(self)):
            index = order[step * self.batch_size : (step + 1) * self.batch_size]  # [B]
            images = self.images[index]
            if self.augment:
                self.generator.manual_seed(mix(self.seed, epoch, step))
                images = self.augment(images, self.generator)
            if images.dtype == torch.uint8:
                images = torch.addcmul(self.shift, images.float(), self.scale)
            images = images.contiguous(memory_format=self.memory_format)
            yield Batch(images, self.labels[index], self.expert_predictions[index])

    def _order(self, epoch: int) -> Tensor:
        if not self.train:
            return torch.arange(len(self.labels), device=self.device)
        shuffle = torch.Generator().manual_seed(mix(self.seed, epoch, -1))  # on the CPU: the same on every device
        return torch.randperm(len(self.labels), generator=shuffle).to(self.device)


def mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several numbers."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:  # splitmix64's finaliser
        state = (state + (number & 0xFFFFFFFFFFFFFFFF)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
