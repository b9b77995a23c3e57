"""What every dataset is, once it is loaded."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from l2d.data.files import ImageFiles


@dataclass
class Split:
    images: Tensor | ImageFiles  # [N, C, H, W], uint8 or float32 that is used as it is; or files to decode on the way
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)


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
