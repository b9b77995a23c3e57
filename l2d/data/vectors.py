"""Inputs that are vectors, such as embeddings: mapped from their file, gathered and converted a batch at a time."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from l2d.data.dataset import Preprocessing
from l2d.data.gather import divide, rows_at_once, several
from l2d.place import Place
from l2d.place.memory import available_memory

CHUNK = 1 << 13  # rows that are converted at a time where all are read


@dataclass
class Vectors:
    """values [M, D] in float16 or float32, perhaps mapped from a file; the samples are its `rows` [N], all by default."""

    values: np.ndarray
    preprocessing: Preprocessing
    rows: Tensor | None = None
    names: Sequence[str] | None = None  # of the samples, where they have names

    def __post_init__(self) -> None:
        if self.rows is None:
            self.rows = torch.arange(len(self.values))
        self.preprocessing = replace(self.preprocessing, stored="floats")

    def __len__(self) -> int:
        assert self.rows is not None
        return len(self.rows)

    def take(self, rows: Tensor) -> "Vectors":
        assert self.rows is not None
        names = None if self.names is None else [self.names[i] for i in rows.tolist()]
        return replace(self, rows=self.rows[rows], names=names)

    def ids(self) -> Sequence[str] | None:
        return self.names

    def digest(self) -> str:
        digest = hashlib.sha256(str(self.values.dtype).encode())
        for part in self.parts():
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def parts(self) -> Iterator[np.ndarray]:
        """The values of the samples, a part [n, D] at a time."""
        assert self.rows is not None
        for part in self.rows.split(CHUNK):
            yield self.values[part.numpy()]

    def feed(self, place: Place, seed: int, train: bool) -> "VectorFeed":
        return VectorFeed(self, place)


class VectorFeed:
    """Batches of vectors in float32. On a GPU all values are there, in the type of the file, if they fit."""

    leaves_none_out = True

    def __init__(self, vectors: Vectors, place: Place):
        assert vectors.rows is not None
        self.place, self.rows = place, vectors.rows
        values = torch.from_numpy(vectors.values)  # [M, D]
        self.on_device = place.device.type == "cpu" or values.nbytes < available_memory() // 2
        self.values = values.to(place.device) if self.on_device else values
        if self.on_device:
            self.rows = self.rows.to(place.device)

    def epoch(self, order: Sequence[Tensor], epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The vectors [B, D] of every step from `start` on, and which samples they are [B]."""
        del epoch  # nothing is drawn
        device = self.place.device
        for index, sizes in several(order[start:], rows_at_once(self.values)):
            here = index.to(device, non_blocking=True)
            if self.on_device:
                rows = self.values.index_select(0, self.rows.index_select(0, here))
            else:  # gathered by the host, in the small type of the file
                rows = self.values.index_select(0, self.rows.index_select(0, index)).pin_memory()
                rows = rows.to(device, non_blocking=True)
            for batch, samples in zip(divide(rows, sizes), divide(here, sizes), strict=True):
                yield batch.float(), samples
