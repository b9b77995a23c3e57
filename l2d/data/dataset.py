"""What every dataset is, once it is loaded."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from l2d.data.files import ImageFiles


@dataclass
class Split:
    images: Tensor | ImageFiles  # [N, C, H, W], uint8 or float32 that is used as it is; or files to decode on the way
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Split":
        """These samples alone."""
        if isinstance(self.images, Tensor):
            return Split(self.images[rows], self.labels[rows])
        return Split(replace(self.images, paths=[self.images.paths[i] for i in rows.tolist()]), self.labels[rows])


@dataclass
class Dataset:
    """Two splits, and what is known about their classes."""

    name: str
    class_names: list[str]
    train: Split
    test: Split
    image_shape: tuple[int, int, int]  # C, H, W of what the model sees; evaluation takes the centre of larger images
    groups: dict[str, list[int]] = field(default_factory=dict)  # group -> its classes, in order
    annotators: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # name -> split -> answers [N]
    augment: str = "none"  # see l2d.data.augment
    mean: tuple[float, ...] = ()  # of pixels in [0, 1]; uint8 images are normalised on the device
    std: tuple[float, ...] = ()
    posterior: Callable[[Tensor], Tensor] | None = None  # images [B, C, H, W] -> eta [B, K], where it is known

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def hold_out(count: int, share: float, seed: int) -> tuple[Tensor | None, Tensor | None]:
    """Rows to train on and rows kept back, in order, of `count`; (None, None): nothing is kept back."""
    kept_back = round(share * count)
    if not kept_back:
        return None, None
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[kept_back:].sort().values, order[:kept_back].sort().values
