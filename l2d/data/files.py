"""Images that stay on disk until they are needed."""

import hashlib
import json
import math
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import ExifTags, Image, UnidentifiedImageError
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

# EXIF orientation -> what makes the image upright
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip
KEEP_SIDES = {None, Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM}
BITS_PER_SAMPLE, PHOTOMETRIC = 258, 262  # tags of TIFF
QUIET = ("ignore", None, Warning, re.compile(r"PIL\."), 0)  # a filter of warnings

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

    def __post_init__(self) -> None:
        self.preprocessing = replace(self.preprocessing, stored="files")

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


class Header(NamedTuple):
    """What a file says about its pixels, known before they are decoded."""

    size: Size  # upright
    turn: Image.Transpose | None  # that makes the decoded image upright
    rotated: bool  # not stored upright
    alpha: bool
    bits: int  # of a grey level, where it has more than 8; otherwise 8
    inverted: bool  # a grey level of more than 8 bits is darkness
    unknown: str  # what the pixels are, where their range is not known; otherwise ''


def open_image(path: Path | Image.Image) -> Image.Image:
    """An upright 8-bit RGB image from a file of any format and mode; UserError if it is damaged, too large, or of unknown range."""
    with opened(path) as (image, header):
        return _rgb(_upright(image, header), header)


def read_box(path: Path | Image.Image, choose: Callable[[int, int], tuple[Box, Size]]) -> Tensor:
    """RGB bytes [3, *size] of the box and at the size that `choose(height, width)` returns.

    A large JPEG is decoded at a half, a quarter or an eighth of its size where that is no smaller than what is asked for.
    """
    with opened(path) as (image, header):
        height, width = header.size
        (top, left, h, w), size = choose(height, width)
        refuse_too_large(path, *size)
        wanted = (math.ceil(width * size[1] / w), math.ceil(height * size[0] / h))
        image.draft("RGB", wanted if header.turn in KEEP_SIDES else wanted[::-1])
        image = _upright(image, header)
        across, down = image.size[0] / width, image.size[1] / height  # the scale that draft() chose: 1, 1/2, 1/4 or 1/8
        right, bottom = round((left + w) * across), round((top + h) * down)
        inside = image.crop((round(left * across), round(top * down), right, bottom))
        pixels = np.array(_rgb(inside, header))  # [h, w, 3]
    box = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)  # [None] first, so that torch sees channels-last
    return F.interpolate(box, size, mode="bilinear", antialias=True)[0]


def whole_image(resize: int, height: int, width: int) -> tuple[Box, Size]:
    """For `read_box`: all of an image, its shorter side resized to `resize`."""
    shorter = min(height, width)
    return (0, 0, height, width), (int(resize * height / shorter), int(resize * width / shorter))


def or_skip(problem: str) -> str:
    """A sentence about a file that cannot be read, with the other way out."""
    return f"{problem.removesuffix('.')}, or leave such files out with dataset.on_error=skip."


def refuse_too_large(path: Path | Image.Image, height: int, width: int) -> None:
    """UserError if an image would take too much memory after it is resized."""
    if height * width > MOST_PIXELS:
        raise UserError(
            f"{_called(path)} is so long that resizing its shorter side makes it {width:,} x {height:,} pixels; cut it, or remove it."
        )


@contextmanager
def opened(path: Path | Image.Image, pixels: bool = True) -> Iterator[tuple[Image.Image, Header]]:
    """The file, or an image that is open already, and its header. Without `pixels` nothing is decoded, nor refused because the range of its pixels is not known."""
    damage = (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error, zlib.error)
    if QUIET not in warnings.filters:
        # Pillow warns of images that are large but not too large, and of EXIF data that it cannot parse.
        warnings.filterwarnings("ignore", module=QUIET[3].pattern)
    try:
        with nullcontext(path) if isinstance(path, Image.Image) else Image.open(path) as image:
            if pixels and image.format == "PNG":
                image.load()  # its EXIF data may stand behind the pixels
            header = _header(image)
            if pixels and header.unknown:
                raise UserError(
                    f"{_called(path)} holds {header.unknown}, whose range is not known; scale them and save them with 8 or 16 bits."
                )
            yield image, header
    except Image.DecompressionBombError as error:
        raise UserError(
            f"{_called(path)} has more pixels than the {2 * (Image.MAX_IMAGE_PIXELS or 0):,} that are decoded; make it smaller, or remove it."
        ) from error
    except damage as error:
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "no image format is recognised" if unknown else getattr(error, "strerror", None) or error
        raise UserError(f"{_called(path)} is not a readable image ({reason}); replace or remove it.") from error


def _called(path: Path | Image.Image) -> str:
    return "The image" if isinstance(path, Image.Image) else str(path)


def _header(image: Image.Image) -> Header:
    try:
        turn = TURNS.get(Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data say nothing, and the pixels may be whole
        turn = None
    tiff = getattr(image, "tag_v2", {})
    bits, unknown = 8, ""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        bits = tiff.get(BITS_PER_SAMPLE, (16,))[0]
    elif image.mode in ("I", "F"):
        unknown = "floating-point numbers" if image.mode == "F" else "signed or 32-bit integers"
    alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    rotated = turn is not None
    if image.format == "TIFF":
        turn = None  # Pillow turns these itself, and its size is that of the upright image
    width, height = image.size
    size = (height, width) if turn in KEEP_SIDES else (width, height)
    return Header(size, turn, rotated, alpha, bits, tiff.get(PHOTOMETRIC) == 0, unknown)


def _upright(image: Image.Image, header: Header) -> Image.Image:
    return image if header.turn is None else image.transpose(header.turn)


def _rgb(image: Image.Image, header: Header) -> Image.Image:
    """8-bit RGB: more bits are scaled by the range of the format, transparent pixels are seen on white."""
    image.load()
    if header.bits > 8:
        levels = np.asarray(image)  # [H, W]
        grey = (levels >> (header.bits - 8)).astype(np.uint8)
        if header.inverted:
            grey = ~grey
        if "transparency" in image.info:
            grey[levels == image.info["transparency"]] = 255
        return Image.fromarray(grey).convert("RGB")
    if header.alpha:
        colours = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(colours, mask=colours)
        return white
    return image if image.mode == "RGB" else image.convert("RGB")
