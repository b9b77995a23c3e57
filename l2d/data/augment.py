"""Augmentation of whole batches on their device; every sample has its own random draw.

An augmentation takes the images of one step and its generator, or of several steps of the same size with one generator each.
"""

import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from l2d.data.files import Box, Size
from l2d.errors import UserError

PADDING = 4
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of a random resized crop, as in torchvision

Augmentation = Callable[..., Tensor]  # (images [B, C, H, W], size, *generators) -> [B, C, *size]


def crop_flip(images: Tensor, size: Size, *generators: Generator) -> Tensor:
    """Pad by 4 (reflected), crop to size at a random position, flip half of them: the CIFAR recipe.

    Whole rows are gathered first, then the pixels of each row: less to index than every pixel of an image.
    """
    batch, channels, height, width = images.shape
    rows, columns = _crops((height, width), size, images.device)
    lefts = len(columns) // 2
    top, left, mirrored = random_windows(images, len(images), size, *generators)
    first = torch.arange(0, batch * channels * height, height, device=images.device)  # [B * C] rows of all images
    row = rows.index_select(0, top)[:, None] + first.view(batch, channels, 1)  # [B, C, new height]
    whole = images.reshape(-1, width).index_select(0, row.flatten()).view(batch, -1, width)  # [B, C * new height, W]
    column = columns.index_select(0, left + lefts * mirrored)  # [B, new width]
    return whole.gather(2, column[:, None].expand(-1, whole.shape[1], -1)).view(batch, channels, *size)


def random_windows(images: Tensor, count: int, size: Size, *generators: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """For `count` of these images: top and left of a window of this size in the padded image, and whether it is mirrored, [count] each."""
    starts = (length + 2 * PADDING - window + 1 for length, window in zip(images.shape[-2:], size, strict=True))
    top, left, mirrored = (_integers(high, count, images.device, generators) for high in (*starts, 2))
    return top, left, mirrored


def flip(images: Tensor, size: Size, *generators: Generator) -> Tensor:
    """The centre of every image; half of them flipped."""
    *_, mirrored = centre_windows(images, len(images), size, *generators)
    return mirror(centre_crop(images, size), mirrored.bool())


def centre_windows(images: Tensor, count: int, size: Size, *generators: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The same for windows in the centre of `count` of these images, without padding; mirrored only where generators say so."""
    top, left = (torch.full((count,), start, device=images.device) for start in _centre(images, size))
    return top, left, _integers(2, count, images.device, generators) if generators else torch.zeros_like(top)


def random_resized_crop_flip(images: Tensor, size: Size, *generators: Generator) -> Tensor:
    """A box of random area, shape and position, resampled to size, and half of them flipped: the ImageNet recipe."""
    count = len(images) // len(generators)
    boxes, mirrored = zip(*(random_boxes_and_flips(images, count, each) for each in generators), strict=True)
    return resample(images, torch.cat(boxes), torch.cat(mirrored), size)


def random_boxes_and_flips(images: Tensor, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Random boxes [B, 4] for `count` of these images, and whether each is flipped [B]."""
    height, width = (torch.full((count,), side, device=images.device) for side in images.shape[-2:])
    return random_boxes(height, width, generator), _integers(2, count, images.device, [generator]).bool()


def random_boxes(height: Tensor, width: Tensor, generator: Generator) -> Tensor:
    """Boxes [B, 4] (top, left, height, width) for images of these sizes [B], with torchvision's distribution.

    Area uniform in 0.08..1 of the image, log(width / height) uniform in +-log(4/3), rounded; the first of ten tries that
    fits, else the largest centred box of an allowed shape; its position is uniform.
    """
    u = torch.rand(len(height), 2, TRIES + 1, generator=generator, device=height.device)
    area = (AREA[0] + (AREA[1] - AREA[0]) * u[:, 0, :TRIES]) * (height * width)[:, None]  # [B, tries]
    ratio = torch.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * u[:, 1, :TRIES])
    h, w = torch.sqrt(area / ratio).round(), torch.sqrt(area * ratio).round()
    fits = (w > 0) & (w <= width[:, None]) & (h > 0) & (h <= height[:, None])
    first = fits.byte().argmax(1, keepdim=True)
    found = fits.any(1)
    h = torch.where(found, h.gather(1, first)[:, 0], torch.minimum(height, (width / RATIO[0]).round()))
    w = torch.where(found, w.gather(1, first)[:, 0], torch.minimum(width, (height * RATIO[1]).round()))
    top = torch.where(found, u[:, 0, -1] * (height - h + 1), (height - h) / 2).floor()
    left = torch.where(found, u[:, 1, -1] * (width - w + 1), (width - w) / 2).floor()
    return torch.stack((top, left, h, w), dim=1).long()


def random_box(height: int, width: int, seed: int) -> Box:
    """One box as `random_boxes` draws it, in plain Python: faster when images are decoded one by one."""
    rng = random.Random(seed)
    for _ in range(TRIES):
        area = height * width * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(*map(math.log, RATIO)))
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    h, w = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    return (height - h) // 2, (width - w) // 2, h, w


def resample(images: Tensor, boxes: Tensor, mirrored: Tensor, size: Size) -> Tensor:
    """Box b of image b at the new size, bilinear, flipped where `mirrored` [B] is true: one grid_sample."""
    top, left, h, w = boxes.T
    y = _positions(top, h, size[0]) * (2 / images.shape[2]) - 1  # [B, height], -1..1 over the image
    x = _positions(left, w, size[1]) * (2 / images.shape[3]) - 1  # [B, width]
    x = torch.where(mirrored[:, None], x.flip(1), x)
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=-1)  # [B, *size, 2]
    return F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


def resample_bytes(image: Tensor, box: Box, mirrored: bool, size: Size) -> Tensor:
    """`resample` for one uint8 image [1, C, H, W] -> [C, *size]: faster on the CPU, above all in channels-last layout."""
    top, left, height, width = box
    inside = image[:, :, top : top + height, left : left + width]
    resized = F.interpolate(inside, size, mode="bilinear", antialias=True)[0]
    return resized.flip(-1) if mirrored else resized


def mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """The images, with those `chosen` [B] flipped; on the CPU one by one, which avoids a flipped copy of the whole batch."""
    if images.device.type != "cpu":
        return torch.where(chosen[:, None, None, None], images.flip(-1), images)
    parts = zip(images.split(1), chosen.tolist(), strict=True)  # [1, C, H, W] each
    return torch.cat([part.flip(-1) if flipped else part for part, flipped in parts])


def centre_crop(images: Tensor, size: Size) -> Tensor:
    """The centre of the images, [..., *size]."""
    top, left = _centre(images, size)
    return images[..., top : top + size[0], left : left + size[1]]


def _centre(images: Tensor, size: Size) -> tuple[int, int]:
    """Top and left of the centre of this size."""
    height, width = (round((have - want) / 2) for have, want in zip(images.shape[-2:], size, strict=True))
    return height, width


def _positions(start: Tensor, length: Tensor, count: int) -> Tensor:
    """Coordinates at which `count` pixels sample [start, start + length], at least half a pixel inside it: [B, count]."""
    steps = (torch.arange(count, device=start.device) + 0.5) / count
    inside = torch.minimum((steps * length[:, None]).clamp_min(0.5), length[:, None] - 0.5)
    return start[:, None] + inside


@lru_cache(maxsize=8)
def _crops(shape: Size, size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows of an image in every crop [tops, height], and its columns [2 * lefts, width], first unflipped, then flipped."""
    rows, columns = (_windows(length, count).to(device) for length, count in zip(shape, size, strict=True))
    return rows, torch.cat([columns, columns.flip(1)])


def _windows(length: int, count: int) -> Tensor:
    """Every window of `count` pixels on an axis padded by reflection, as indices into 0..length-1: [starts, count]."""
    if length <= PADDING:
        raise UserError(
            f"dataset.augment=crop_flip mirrors {PADDING} pixels beyond every edge, and the images have a side of {length}; use flip or none."
        )
    starts = length + 2 * PADDING - count + 1
    index = torch.arange(starts)[:, None] + torch.arange(count) - PADDING
    return (length - 1) - ((length - 1) - index.abs()).abs()


def _integers(high: int, count: int, device: torch.device, generators: Sequence[Generator]) -> Tensor:
    """`count` numbers below `high`, as many from each generator, [count]."""
    each = count // len(generators)
    return torch.cat([torch.randint(high, (each,), generator=one, device=device) for one in generators])


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "flip": flip,
    "crop_flip": crop_flip,
    "random_resized_crop_flip": random_resized_crop_flip,
}


def augmentation(name: str) -> Augmentation | None:
    """The augmentation of this name; None for the centre crop alone."""
    if name not in AUGMENTATIONS:
        raise UserError(f"dataset.augment={name} is not one of {', '.join(AUGMENTATIONS)}.")
    return AUGMENTATIONS[name]
