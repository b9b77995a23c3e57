"""Augmentation of a whole batch on its device, with randomness of its own for every sample."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

PADDING = 4


def crop_flip(images: Tensor, generator: Generator) -> Tensor:
    """Pad by 4 (reflected), crop back to size at a random place, flip half of them: the CIFAR recipe."""
    return flip(crop(images, generator), generator)


def crop(images: Tensor, generator: Generator) -> Tensor:
    height, width = images.shape[-2:]
    padded = F.pad(images, [PADDING] * 4, mode="reflect")  # [B, C, H+8, W+8]
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [B, C, 9, 9, H, W], a view
    top, left = _integers(2 * PADDING + 1, images, generator), _integers(2 * PADDING + 1, images, generator)
    rows = torch.arange(len(images), device=images.device)
    return windows[rows, :, top, left]  # [B, C, H, W]


def flip(images: Tensor, generator: Generator) -> Tensor:
    chosen = _integers(2, images, generator).bool()  # [B]
    return torch.where(chosen[:, None, None, None], images.flip(-1), images)


def _integers(high: int, images: Tensor, generator: Generator) -> Tensor:
    return torch.randint(high, (len(images),), generator=generator, device=images.device)  # [B]


AUGMENTATIONS: dict[str, Callable[[Tensor, Generator], Tensor] | None] = {
    "none": None,
    "flip": flip,
    "crop_flip": crop_flip,
}
