"""Images that stay on disk until they are needed."""

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from l2d.errors import UserError

Box = tuple[float, float, float, float]  # top, left, height, width


@dataclass(frozen=True)
class ImageFiles:
    """The images of a split, in order, as paths below `root`; and how they are decoded on the way to the device."""

    root: Path
    paths: list[str]
    resize: int | None = None  # the shorter side of which evaluation takes the centre; None: the size the model sees
    workers: int | None = None  # processes that decode; None: as many as the machine has use for
    on_error: str = "error"  # or skip: leave a damaged image out, with a warning

    def __len__(self) -> int:
        return len(self.paths)


def open_image(path: Path) -> Image.Image:
    """An RGB image, whatever mode (CMYK, grey, palette) or format hides behind the name; a sentence if it is damaged."""
    with _opened(path) as image:
        return image.convert("RGB")


def read_box(path: Path, choose: Callable[[int, int], Box], size: tuple[int, int]) -> Image.Image:
    """The box that `choose(height, width)` picks, in RGB at `size`; a JPEG is decoded no larger than that needs."""
    with _opened(path) as image:
        width, height = image.size
        top, left, h, w = choose(height, width)
        image.draft("RGB", (math.ceil(width * size[1] / w), math.ceil(height * size[0] / h)))
        across, down = image.size[0] / width, image.size[1] / height  # 1, or what the draft reduced it to
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        right, bottom = min((left + w) * across, image.size[0]), min((top + h) * down, image.size[1])
        return rgb.resize(size[::-1], Image.Resampling.BILINEAR, (left * across, top * down, right, bottom))


def centre_box(height: int, width: int, resize: int, size: tuple[int, int]) -> Box:
    """Where the centre of `size` lies in the original when its shorter side becomes `resize`."""
    shorter = min(height, width)
    rows, columns = int(resize * height / shorter), int(resize * width / shorter)
    down, across = height / rows, width / columns
    return (
        round((rows - size[0]) / 2) * down,
        round((columns - size[1]) / 2) * across,
        size[0] * down,
        size[1] * across,
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
