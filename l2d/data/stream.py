"""Streamed data: worker processes decode and crop files to bytes; the device flips and normalises, a batch ahead."""

import logging
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from l2d.data.augment import centre_crop, flip, random_box, random_resized_crop_flip
from l2d.data.files import Box, ImageFiles, Size, or_skip, read_box, whole_image
from l2d.data.resident import ImageFeed
from l2d.data.seeds import mix
from l2d.errors import UserError
from l2d.place import Place

MAX_DEFAULT_WORKERS = 16

Job = tuple[int, np.ndarray]  # epoch, samples [B]
Decoded = tuple[Tensor, Tensor, dict[str, str]]  # bytes [B, H, W, 3], indices of the samples [B], path -> problem


class StreamFeed(ImageFeed):
    """Batches of images that stay on disk; they do not depend on the number of workers."""

    def __init__(self, files: ImageFiles, place: Place, seed: int, train: bool):
        super().__init__(files.preprocessing, place, seed, train)
        self.normalise_bytes()
        boxes = self.augment is random_resized_crop_flip
        if boxes:
            self.augment = flip  # the workers crop the boxes
        self.decoder = Decoder(files, self.size, self.seed, boxes, margin=self.augment not in (None, flip))
        self.files, self.reported = files, set[str]()
        self.jobs: list[Job] = []  # of the epoch; the loader's sampler
        self.loader: DataLoader[Decoded] | None = None
        self.copies = torch.cuda.Stream(place.device) if place.device.type == "cuda" else None

    def epoch(self, order: Sequence[Tensor], epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The prepared images [B, C, *size] of every step from `start` on, and which samples they are [B]."""
        if self.loader is None:
            wanted = default_workers() if self.files.workers is None else self.files.workers
            self.loader = start_workers(self.decoder, self.jobs, min(len(order), wanted), self.place)
        self.jobs[:] = [(epoch, index.numpy()) for index in order[start:]]
        pending = None  # the batch whose copy to the device was started last
        for step, decoded in enumerate(self.loader, start):
            copying = (*self._start_copy(*decoded), epoch, step)
            if pending:
                yield self._finish_copy(*pending)
            pending = copying if len(copying[0]) else None
        if pending:
            yield self._finish_copy(*pending)

    def _start_copy(self, images: Tensor, index: Tensor, damaged: dict[str, str]) -> tuple[Tensor, Tensor, Any]:
        """Report damaged files, then start the copy to the device, which runs during the computation."""
        for path, problem in damaged.items():
            if self.files.on_error == "error":
                raise UserError(or_skip(problem))
            if path not in self.reported:
                logging.getLogger("l2d").warning("%s It is left out.", problem)
            self.reported.add(path)
        with torch.cuda.stream(self.copies):  # None: the current stream
            copied = images.to(self.place.device, non_blocking=True), index.to(self.place.device, non_blocking=True)
            return (*copied, self.copies.record_event() if self.copies else None)

    def _finish_copy(self, images: Tensor, index: Tensor, done: Any, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        if self.copies:
            computation = torch.cuda.current_stream(self.place.device)
            computation.wait_event(done)  # of this copy alone: the next one is on its way
            for copied in (images, index):
                copied.record_stream(computation)
        return self.prepare(images.permute(0, 3, 1, 2), epoch, step), index


class Decoder(TorchDataset[Decoded]):
    """Runs in a worker: a job is a batch, whose files are read into one tensor of bytes.

    With `boxes`, sample i is cropped at random by (seed, epoch, i); otherwise at the centre. With `margin` the whole square
    that the shorter side is resized to is kept, for an augmentation that crops from it.
    """

    def __init__(self, files: ImageFiles, size: Size, seed: int, boxes: bool, margin: bool):
        self.root, self.seed, self.boxes = files.root, seed, boxes
        self.paths = np.array([os.fsencode(path) for path in files.paths])  # one array, cheap to share with workers
        self.resize = files.preprocessing.resize or min(size)
        self.size = (self.resize, self.resize) if margin else size
        self.stop = files.on_error == "error"

    def __getitem__(self, job: Job) -> Decoded:
        epoch, index = job
        images = torch.empty(len(index), *self.size, 3, dtype=torch.uint8)  # [B, H, W, 3]
        kept: list[int] = []
        damaged: dict[str, str] = {}
        for i in index.tolist():
            path = self.root / os.fsdecode(self.paths[i])
            try:
                box = partial(self._random_box, epoch, i) if self.boxes else partial(whole_image, self.resize)
                image = read_box(path, box)
            except UserError as error:
                # returned as a value, because an exception from a worker arrives wrapped in its traceback
                damaged[str(path)] = str(error)
                if self.stop:
                    break
                continue
            images[len(kept)] = centre_crop(image, self.size).permute(1, 2, 0)
            kept.append(i)
        return images[: len(kept)], torch.tensor(kept, dtype=torch.int64), damaged

    def _random_box(self, epoch: int, i: int, height: int, width: int) -> tuple[Box, Size]:
        return random_box(height, width, mix(self.seed, epoch, i, 1)), self.size


def start_workers(decoder: "TorchDataset[Any]", jobs: Iterable[Any], workers: int, place: Place) -> "DataLoader[Any]":
    """What `decoder` makes of one job after the other, by so many processes; 0: by this one."""
    return DataLoader(
        decoder,
        batch_size=None,  # a job is a batch
        sampler=jobs,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=place.device.type == "cuda",
        multiprocessing_context=_start_method() if workers else None,
        generator=torch.Generator(),  # otherwise DataLoader would consume the global RNG
    )


def _start_method() -> str | None:
    """Once CUDA has started, its threads and memory must not be forked: workers come from a server that never saw it."""
    if not torch.cuda.is_initialized() or "forkserver" not in multiprocessing.get_all_start_methods():
        return None  # the platform's own
    multiprocessing.set_forkserver_preload([__name__])
    return "forkserver"


def default_workers() -> int:
    """The number of processors that this process may use, at most MAX_DEFAULT_WORKERS."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, MAX_DEFAULT_WORKERS)
