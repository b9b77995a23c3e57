"""Streamed data: worker processes decode and crop files to bytes; the device flips and normalises, a batch ahead."""

import logging
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from l2d.data.augment import centre_crop, flip, random_box, random_resized_crop_flip
from l2d.data.dataset import Dataset, Split
from l2d.data.files import Box, ImageFiles, Size, read_box
from l2d.data.loader import Batch, SplitLoader, mix
from l2d.errors import UserError

MOST_WORKERS = 16  # of those that nobody asked for

Job = tuple[int, np.ndarray]  # epoch, samples [B]
Decoded = tuple[Tensor, Tensor, dict[str, str]]  # bytes [B, H, W, 3], the samples they are, path -> what is wrong


class StreamLoader(SplitLoader):
    """Batches of a split that stays on disk, the same whatever the number of workers."""

    def __init__(self, dataset: Dataset, split: Split, *args: Any, **kwargs: Any):
        super().__init__(dataset, split, *args, **kwargs)
        files = split.images
        assert isinstance(files, ImageFiles)
        self.normalise_bytes(dataset)
        boxes = self.augment is random_resized_crop_flip
        if boxes:
            self.augment = flip  # the workers cut the boxes
        decoder = Decoder(files, self.size, self.seed, boxes, margin=self.augment not in (None, flip))
        self.on_error, self.reported = files.on_error, set[str]()
        self.jobs: list[Job] = []  # of the epoch; the loader's sampler
        workers = min(len(self), default_workers() if files.workers is None else files.workers)
        self.loader: DataLoader[Decoded] = DataLoader(
            decoder,
            batch_size=None,  # a job is a batch
            sampler=self.jobs,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # or it would draw from the run's own
        )
        self.copies = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches from step `start` on."""
        self.jobs[:] = [(epoch, index.numpy()) for index in self.indices(epoch)[start:]]
        waiting = None
        for step, decoded in enumerate(self.loader, start):
            coming = (*self._send(*decoded), epoch, step)
            if waiting:
                yield self._receive(*waiting)
            waiting = coming if len(coming[0]) else None
        if waiting:
            yield self._receive(*waiting)

    def _send(self, images: Tensor, index: Tensor, damaged: dict[str, str]) -> tuple[Tensor, Tensor]:
        """Start the copy to the device, beside the computation; speak of damaged files first."""
        for path, problem in damaged.items():
            if self.on_error == "error":
                raise UserError(f"{problem.removesuffix('.')}, or leave such files out with dataset.on_error=skip.")
            if path not in self.reported:
                logging.getLogger("l2d").warning("%s It is left out.", problem)
            self.reported.add(path)
        with torch.cuda.stream(self.copies):  # None: nowhere else
            return images.to(self.device, non_blocking=True), index.to(self.device, non_blocking=True)

    def _receive(self, images: Tensor, index: Tensor, epoch: int, step: int) -> Batch:
        if self.copies:
            computation = torch.cuda.current_stream(self.device)
            computation.wait_stream(self.copies)
            for copied in (images, index):
                copied.record_stream(computation)
        return self.batch(images.permute(0, 3, 1, 2), index, epoch, step)


class Decoder(TorchDataset[Decoded]):
    """What a worker does with a job: read every file of a batch into one array of bytes.

    `boxes`: random ones, that of sample i following from (seed, epoch, i); else the centre, and with `margin` all of the
    square that the shorter side is resized to, for an augmentation that crops from it.
    """

    def __init__(self, files: ImageFiles, size: Size, seed: int, boxes: bool, margin: bool):
        self.root, self.seed, self.boxes = files.root, seed, boxes
        self.paths = np.array([os.fsencode(path) for path in files.paths])  # one object, cheap to share with workers
        self.resize = files.resize or min(size)
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
                image = read_box(path, partial(self._random if self.boxes else self._whole, epoch, i))
            except UserError as error:  # as a value: an exception would not reach the main process as one sentence
                damaged[str(path)] = str(error)
                if self.stop:
                    break
                continue
            images[len(kept)] = centre_crop(image, self.size).permute(1, 2, 0)
            kept.append(i)
        return images[: len(kept)], torch.tensor(kept, dtype=torch.int64), damaged

    def _random(self, epoch: int, i: int, height: int, width: int) -> tuple[Box, Size]:
        return random_box(height, width, mix(self.seed, epoch, i, 1)), self.size

    def _whole(self, epoch: int, i: int, height: int, width: int) -> tuple[Box, Size]:
        shorter = min(height, width)
        return (0, 0, height, width), (int(self.resize * height / shorter), int(self.resize * width / shorter))


def default_workers() -> int:
    """As many as there are processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, MOST_WORKERS)
