"""Images that stay on disk until they are needed."""

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from l2d.data.contents import file_digests
from l2d.data.dataset import Preprocessing
from l2d.data.manifest import cache_folder
from l2d.errors import UserError
from l2d.place import Place

if TYPE_CHECKING:
    from l2d.data.stream import StreamFeed

Size = tuple[int, int]  # height, width
Box = tuple[int, int, int, int]  # top, left, height, width

MOST_PIXELS = 2**26  # of an image after resizing; a line of 8000 x 1 would become 2 million x 256


@dataclass
class ImageFiles:
    """The images of a split, in order, as paths below `root`, decoded on the way to the device."""

    root: Path
    paths: list[str]
    preprocessing: Preprocessing
    workers: int | None = None  # processes that decode; None: one per processor, up to a maximum
    on_error: str = "error"  # or skip: leave a damaged image out, with a warning
    cache: str | None = None  # the setting of this name, see `cache_folder`

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Tensor) -> "ImageFiles":
        return replace(self, paths=[self.paths[i] for i in rows.tolist()])

    def ids(self) -> list[str]:
        return self.paths

    def digest(self) -> str:
        """Of the names and contents of the files."""
        contents = file_digests(self.root, self.paths, cache_folder(self.cache))
        return hashlib.sha256(json.dumps([self.paths, contents]).encode()).hexdigest()

    def feed(self, place: Place, seed: int, train: bool) -> "StreamFeed":
        from l2d.data.stream import StreamFeed  # it builds on this module

        return StreamFeed(self, place, seed, train)


def open_image(path: Path) -> Image.Image:
    """An RGB image from a file of any format and mode (CMYK, grey, palette); UserError if it is damaged."""
    with _opened(path) as image:
        return image.convert("RGB")


def read_box(path: Path, choose: Callable[[int, int], tuple[Box, Size]]) -> Tensor:
    """RGB bytes [3, *size] of the box and at the size that `choose(height, width)` returns.

    A large JPEG is decoded at a half, a quarter or an eighth of its size where that is no smaller than what is asked for.
    """
    with _opened(path) as image:
        width, height = image.size
        (top, left, h, w), size = choose(height, width)
        refuse_too_large(path, *size)
        image.draft("RGB", (math.ceil(width * size[1] / w), math.ceil(height * size[0] / h)))
        across, down = image.size[0] / width, image.size[1] / height  # the scale that draft() chose: 1, 1/2, 1/4 or 1/8
        right, bottom = round((left + w) * across), round((top + h) * down)
        inside = image.crop((round(left * across), round(top * down), right, bottom))
        pixels = np.array(inside if inside.mode == "RGB" else inside.convert("RGB"))  # [h, w, 3]
    box = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)  # [None] first, so that torch sees channels-last
    return F.interpolate(box, size, mode="bilinear", antialias=True)[0]


def refuse_too_large(path: Path, height: int, width: int) -> None:
    """UserError if an image would take too much memory after it is resized."""
    if height * width > MOST_PIXELS:
        raise UserError(
            f"{path} is so long that resizing its shorter side makes it {width:,} x {height:,} pixels; cut it, or remove it."
        )


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    damage = (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error, zlib.error)
    try:
        with Image.open(path) as image:
            yield image
    except (*damage, Image.DecompressionBombError) as error:
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "no image format is recognised" if unknown else getattr(error, "strerror", None) or error
        raise UserError(f"{path} is not a readable image ({reason}); replace or remove it.") from error
