"""Images in memory: the whole split is on the device; a batch is indexed, augmented and normalised there."""

import ctypes
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from l2d import kernels
from l2d.data.augment import (
    PADDING,
    augmentation,
    centre_crop,
    centre_windows,
    crop_flip,
    flip,
    random_boxes_and_flips,
    random_resized_crop_flip,
    random_windows,
    resample_bytes,
)
from l2d.data.batch_memory import empty_floats
from l2d.data.dataset import Preprocessing
from l2d.data.files import Box, Size
from l2d.data.gather import divide, rows_at_once, several, stepwise
from l2d.data.seeds import mix
from l2d.errors import UserError
from l2d.place import Place

MAX_DRAWN = 4096  # samples for which windows are drawn at once; the kernel gathers no image before it is cut


@dataclass
class Images:
    """pixels [N, C, H, W]: uint8, normalised on the device, or float32 that is used as it is."""

    pixels: Tensor
    preprocessing: Preprocessing = field(default=None)  # type: ignore[assignment]  # None: the model sees them as they are
    names: Sequence[str] | None = None  # of the samples, where they have names

    def __post_init__(self) -> None:
        if self.preprocessing is None:
            channels = self.pixels.shape[1]
            self.preprocessing = Preprocessing(tuple(self.pixels.shape[1:]), (0.0,) * channels, (1.0,) * channels)
        stored = "bytes" if self.pixels.dtype == torch.uint8 else "floats"
        self.preprocessing = replace(self.preprocessing, stored=stored)

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: Tensor) -> "Images":
        names = None if self.names is None else [self.names[i] for i in rows.tolist()]
        return Images(self.pixels[rows], self.preprocessing, names)

    def ids(self) -> Sequence[str] | None:
        return self.names

    def digest(self) -> str:
        return hashlib.sha256(self.pixels.contiguous().numpy().data).hexdigest()

    def feed(self, place: Place, seed: int, train: bool) -> "ResidentFeed":
        return ResidentFeed(self, place, seed, train)


class ImageFeed:
    """What all feeds of images share: augmentation and normalisation of a batch on the device."""

    def __init__(self, preprocessing: Preprocessing, place: Place, seed: int, train: bool):
        self.preprocessing, self.place, self.seed, self.train = preprocessing, place, seed, train
        height, width = preprocessing.shape[1:]
        self.size: Size = (height, width)
        self.augment = augmentation(preprocessing.augment) if train else None
        self.generators = [torch.Generator(place.device)]  # one for each step that is augmented at the same time
        self.scale: Tensor | None = None

    def normalise_bytes(self) -> None:
        """From here on a pixel x becomes (x / 255 - mean) / std."""
        mean, std = (
            torch.tensor(v, device=self.place.device).view(1, -1, 1, 1)
            for v in (self.preprocessing.mean, self.preprocessing.std)
        )
        row = (-1, -1, -1, self.size[1])  # whole rows in the layout of the images, because long runs vectorise
        self.scale = (1 / (255 * std)).expand(row).contiguous(memory_format=self.place.layout)  # [1, C, 1, W]
        self.shift = (-mean / std).expand(row).contiguous(memory_format=self.place.layout)

    def prepare(self, images: Tensor, epoch: int, step: int) -> Tensor:
        """Augmented or cropped, normalised, float32 in the place's layout: [B, C, *size]."""
        return self.normalised(self.cropped(images, epoch, [step]))

    def cropped(self, images: Tensor, epoch: int, steps: Sequence[int]) -> Tensor:
        """The images of these steps, augmented or cropped, [N, C, *size]."""
        if self.augment is None:
            return centre_crop(images, self.size)
        return self.augment(images, self.size, *self.generators_of(epoch, steps))

    def generators_of(self, epoch: int, steps: Sequence[int]) -> list[torch.Generator]:
        """What the augmentation of each of these steps is drawn from."""
        while len(self.generators) < len(steps):
            self.generators.append(torch.Generator(self.place.device))
        return [self.seeded(generator, epoch, step) for generator, step in zip(self.generators, steps, strict=False)]

    def normalised(self, images: Tensor) -> Tensor:
        """Float32 in the place's layout."""
        images = as_float(images, self.place.layout)
        if self.scale is not None:
            images = torch.addcmul(self.shift, images, self.scale, out=images)
        return images

    def seeded(self, generator: torch.Generator, epoch: int, step: int) -> torch.Generator:
        return generator.manual_seed(mix(self.seed, epoch, step, self.place.ranks.rank))


class ResidentFeed(ImageFeed):
    """Batches of images that are in one tensor on the device."""

    leaves_none_out = True

    def __init__(self, images: Images, place: Place, seed: int, train: bool):
        super().__init__(images.preprocessing, place, seed, train)
        if place.device.type == "cpu":
            keep_freed_memory()
        self.images = images.pixels.to(place.device)
        self.in_bytes = self.images.dtype == torch.uint8
        if self.in_bytes:
            self.normalise_bytes()
        if any(have < want for have, want in zip(self.images.shape[-2:], self.size, strict=True)):
            raise UserError(
                f"The images are kept at {self.images.shape[2]} x {self.images.shape[3]}, smaller than the "
                f"{self.size[0]} x {self.size[1]} that the model sees; use a dataset.resize of at least dataset.size."
            )

    def epoch(self, order: Sequence[Tensor], epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The prepared images [B, C, *size] of every step from `start` on, and which samples they are [B]."""
        on_device = torch.cat(list(order)).to(self.place.device).split([len(index) for index in order])
        ranks = self.place.ranks
        if self.augment is random_resized_crop_flip and self.in_bytes and self.place.device.type == "cpu":
            for step, index in enumerate(on_device[start:], start):
                yield self._one_by_one(index, epoch, step), index
        elif self.in_bytes and not self.train and not self._kernel_serves:
            # consecutive samples: a view, copied by the conversion to float
            for step, index in enumerate(on_device[start:], start):
                first = ranks.rank + step * len(order[0]) * ranks.count
                yield self.prepare(self.images[first :: ranks.count][: len(index)], epoch, step), index
        else:
            step, prepared = start, self._by_kernel if self._kernel_serves else self._by_torch
            samples = MAX_DRAWN if self._kernel_serves else rows_at_once(self.images)
            for index, sizes in several(on_device[start:], samples):
                batches = prepared(index, sizes, epoch, range(step, step + len(sizes)))
                yield from stepwise(batches, divide(index, sizes))
                step += len(sizes)

    def _by_torch(self, index: Tensor, sizes: list[int], epoch: int, steps: Sequence[int]) -> Iterator[Tensor]:
        """The prepared images of several steps, whose samples are `index` [n]: cropped all at once."""
        for part in divide(self.cropped(self.stored(index), epoch, steps), sizes):
            yield self.normalised(part)

    def _by_kernel(self, index: Tensor, sizes: list[int], epoch: int, steps: Sequence[int]) -> Iterator[Tensor]:
        """The same: the images of each step are cropped and normalised in one pass."""
        windows_of = random_windows if self.augment is crop_flip else centre_windows
        generators = self.generators_of(epoch, steps) if self.augment else []
        drawn = torch.stack([index, *windows_of(self.images, len(index), self.size, *generators)])  # [4, n]
        for windows in drawn.split(sizes, dim=1):
            yield self._cut_as_before(windows)

    def _cut_as_before(self, windows: Tensor) -> Tensor:
        floats, made = self._cut(self.images, windows)
        assert made, "the kernel has served these images before"
        return floats

    def _cut(self, images: Tensor, windows: Tensor) -> tuple[Tensor, bool]:
        """Windows of the padded images, normalised, [B, C, *size]; and whether the kernel could cut them. `windows` [4, B] are the image,
        top and left, and whether it is mirrored."""
        floats = empty_floats((windows.shape[1], images.shape[1], *self.size), torch.contiguous_format)
        return floats, kernels.cut_windows(images, windows, self._affine, floats, self._padding)

    @cached_property
    def _affine(self) -> Tensor:
        """Scale and shift of each channel, [2, C]."""
        assert self.scale is not None  # bytes always have one
        return torch.stack([self.scale[0, :, 0, 0], self.shift[0, :, 0, 0]])

    @property
    def _padding(self) -> int:
        return PADDING if self.augment is crop_flip else 0

    @cached_property
    def _kernel_serves(self) -> bool:
        """Whether the kernel gives these batches, with the very numbers that torch gives for every byte on this CPU."""
        here = self.place.device.type == "cpu" and self.place.layout == torch.contiguous_format
        cuts = self.augment in (None, flip, crop_flip)
        if not (here and self.in_bytes and cuts and self.images.is_contiguous()):
            return False
        (height, width), (channels, *sides) = self.size, self.images.shape[1:]
        count = -(-256 // width)  # images that have every byte in their first columns
        values = width * torch.arange(count)[:, None, None, None] + torch.arange(sides[1])  # [count, 1, 1, W]
        every = values.expand(-1, channels, *sides).to(torch.uint8).contiguous()  # [count, C, H, W]
        windows = torch.full((4, count), self._padding)  # they begin inside
        windows[0], windows[3] = torch.arange(count), 0
        floats, made = self._cut(every, windows)
        return made and torch.equal(floats, self.normalised(every[:, :, :height, :width]))

    def stored(self, index: Tensor) -> Tensor:
        """The images [n, C, H, W] of these samples, in their memory layout, which index_select alone would not keep."""
        if not self.images.is_contiguous(memory_format=torch.channels_last):
            return self.images.index_select(0, index)
        return self.images.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)

    def _one_by_one(self, index: Tensor, epoch: int, step: int) -> Tensor:
        """Like `prepare`, but one image at a time in threads, so that large images stay in the CPU caches."""
        draws = random_boxes_and_flips(self.images, len(index), self.seeded(self.generators[0], epoch, step))
        floats = empty_floats((len(index), self.images.shape[1], *self.size), self.place.layout)
        rows = self._rows(floats).numpy()  # [B, H, W * C] or [B, C, H, W]
        jobs = list(zip(rows, index.tolist(), *(draw.tolist() for draw in draws), strict=True))
        assert self.scale is not None  # bytes always have one
        scale, shift = (self._rows(affine[0]).numpy() for affine in (self.scale, self.shift))  # [1, W * C] or [C, 1, W]

        def fill(part: Sequence[tuple[np.ndarray, int, Box, bool]]) -> None:
            for out, i, box, mirrored in part:
                pixels = resample_bytes(self.images[i : i + 1], box, mirrored, self.size)  # [C, *size]
                np.add(np.multiply(self._rows(pixels).numpy(), scale, out=out), shift, out=out)

        pool, threads = thread_pool()
        deque(pool.map(fill, (jobs[k::threads] for k in range(threads))), maxlen=0)
        return floats

    def _rows(self, images: Tensor) -> Tensor:
        """Images [..., C, H, W] with whole rows in the order of their memory, which numpy does not see through other axes: [..., H, W * C]
        where channels are last."""
        return images.movedim(-3, -1).flatten(-2) if self.place.layout == torch.channels_last else images


@cache
def thread_pool() -> tuple[ThreadPoolExecutor, int]:
    """One pool for all feeds, and its number of threads, which is torch's."""
    threads = torch.get_num_threads()
    return ThreadPoolExecutor(threads), threads


def as_float(images: Tensor, memory_format: torch.memory_format) -> Tensor:
    """The images as float32 in this layout."""
    if images.device.type != "cpu" or images.dtype == torch.float32:
        return images.to(torch.float32, memory_format=memory_format)
    return empty_floats(images.shape, memory_format).copy_(images)


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks: page faults on fresh memory would take a quarter of the time of a batch."""
    mmap_max, trim_threshold, never = -4, -1, -1  # M_MMAP_MAX, M_TRIM_THRESHOLD and no trimming
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, never)
