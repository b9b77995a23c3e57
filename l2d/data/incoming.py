"""New inputs on their way to a trained system: files, images and arrays, stored a batch at a time as the run's own inputs were."""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from l2d.data.augment import centre_crop
from l2d.data.cache import decode
from l2d.data.dataset import Preprocessing
from l2d.data.files import Size, open_image, read_box, whole_image
from l2d.data.stream import default_workers, start_workers
from l2d.errors import UserError
from l2d.place import Place


class Incoming(NamedTuple):
    """A batch of inputs. Those that cannot be read are among the ids, and not among the values."""

    ids: list[str]
    values: Tensor  # [b, ...] in bytes (images [b, C, H, W]) or float32, on the CPU
    errors: dict[int, str]  # position among the ids -> why the input cannot be read


Job = list[tuple[str, str]]  # the id and the path of every file of a batch


class FileReader(TorchDataset[Incoming]):
    """Runs in a worker: the files of a batch, read into one tensor of bytes."""

    def __init__(self, preprocessing: Preprocessing):
        self.preprocessing = preprocessing

    def __getitem__(self, job: Job) -> Incoming:
        return read_batch([name for name, _ in job], [Path(path) for _, path in job], self.preprocessing)


def from_files(
    files: Iterable[tuple[str, str]], preprocessing: Preprocessing, batch_size: int, workers: int | None, place: Place
) -> Iterator[Incoming]:
    """Batches of image files, given as (id, path). They are listed as they are read, so their number does not matter."""
    files = iter(files)
    jobs = iter(lambda: list(islice(files, batch_size)), [])
    most = default_workers() if workers is None else workers
    first = list(islice(jobs, max(most, 2)))
    started = min(most, len(first)) if len(first) > 1 else 0  # one batch is read before a process has started
    yield from start_workers(FileReader(preprocessing), chain(first, jobs), started, place)


def from_images(images: Sequence[Any], preprocessing: Preprocessing, batch_size: int) -> Iterator[Incoming]:
    """Batches of images in memory: of Pillow, or arrays [H, W, 3] of bytes; each may have a size of its own."""
    opened = [_as_image(image, number) for number, image in enumerate(images)]
    for start in range(0, len(opened), batch_size):
        part = opened[start : start + batch_size]
        yield read_batch([str(start + i) for i in range(len(part))], part, preprocessing)


def from_array(
    array: np.ndarray | Tensor, ids: Sequence[str] | None, preprocessing: Preprocessing, batch_size: int
) -> Iterator[Incoming]:
    """Batches of one array: images [N, H, W, C] or [N, C, H, W] in bytes, or floats [N, ...] of the shape that the model sees."""
    values = checked_array(array, preprocessing)
    floats = preprocessing.stored == "floats"
    as_kept = preprocessing.stored == "bytes" and tuple(values.shape[2:]) == stored_size(preprocessing)
    for start in range(0, len(values), batch_size):
        part = values[start : start + batch_size]
        names = (
            [str(i) for i in range(start, start + len(part))] if ids is None else list(ids[start : start + batch_size])
        )
        if floats:
            yield _finite(names, part.float())
        elif as_kept:
            yield Incoming(names, part, {})
        else:
            pictures = [Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy())) for image in part]
            yield read_batch(names, pictures, preprocessing)


def read_batch(ids: list[str], images: Sequence[Path | Image.Image], preprocessing: Preprocessing) -> Incoming:
    """The pixels of images, and what is wrong with those that cannot be read."""
    pixels = torch.empty(len(images), *stored_size(preprocessing), 3, dtype=torch.uint8)  # [b, H, W, 3]
    errors: dict[int, str] = {}
    for i, image in enumerate(images):
        try:
            if isinstance(image, Path) and not os.path.isfile(image):  # opening a pipe would wait for ever
                raise UserError(f"{image} is not a file; check its name.")
            pixels[i - len(errors)] = stored_pixels(image, preprocessing)
        except UserError as error:  # a value: an exception from a worker arrives wrapped in its traceback
            errors[i] = str(error)
    return Incoming(ids, pixels[: len(images) - len(errors)].permute(0, 3, 1, 2), errors)


def stored_pixels(image: Path | Image.Image, preprocessing: Preprocessing) -> Tensor:
    """RGB bytes [H, W, 3] of an image, decoded and resized exactly as in the run: images that were kept in memory by Pillow,
    those that were streamed from disk by torch."""
    size, resize = stored_size(preprocessing), preprocessing.resize
    if preprocessing.stored == "files":
        return centre_crop(read_box(image, partial(whole_image, resize or min(size))), size).permute(1, 2, 0)
    if resize is not None:
        return torch.from_numpy(decode(image, resize).copy())
    whole = open_image(image)
    if whole.size != size[::-1]:
        raise UserError(
            f"{image if isinstance(image, Path) else 'The image'} has {whole.size[0]} x {whole.size[1]} pixels, and this run was "
            f"trained on {size[1]} x {size[0]}; resize it."
        )
    return torch.from_numpy(np.array(whole))


def stored_size(preprocessing: Preprocessing) -> Size:
    """Height and width of images before the model takes their centre."""
    if preprocessing.stored == "bytes" and preprocessing.resize is not None:
        return preprocessing.resize, preprocessing.resize
    height, width = preprocessing.shape[1:]
    return height, width


def checked_array(array: np.ndarray | Tensor, preprocessing: Preprocessing) -> Tensor:
    """The array as a tensor [N, D] or [N, C, H, W]; UserError where its shape or type is not what the run was trained on."""
    values = array.detach().cpu() if isinstance(array, Tensor) else _tensor(array)
    is_array, shape = not isinstance(array, Tensor), preprocessing.shape
    found = f"The inputs are {str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
    if preprocessing.stored == "floats":
        vectors = len(shape) == 1
        if not (
            values.is_floating_point()
            or (vectors and values.dtype not in (torch.bool, torch.complex64, torch.complex128))
        ):
            raise UserError(f"{found}; this run was trained on floating-point numbers {_batch_of(shape)}.")
        if tuple(values.shape[1:]) != shape:
            raise UserError(f"{found}; this run was trained on {_batch_of(shape)}.")
        return values
    channels = shape[0]
    if values.dim() == 4 and values.shape[3] == channels and (values.shape[1] != channels or is_array):
        values = values.permute(0, 3, 1, 2)
    resizable = preprocessing.resize is not None or preprocessing.stored == "files"
    fits = resizable or tuple(values.shape[2:]) == shape[1:]
    if values.dtype != torch.uint8 or values.dim() != 4 or values.shape[1] != channels or not fits or 0 in values.shape:
        sides = f"{shape[1]}, {shape[2]}" if not resizable else "H, W"
        raise UserError(
            f"{found}; this run was trained on images: uint8 arrays [N, {sides}, {channels}] or tensors [N, {channels}, {sides}]."
        )
    return values


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise UserError(f"The inputs are an array of {array.dtype} {list(array.shape)}; give numbers.")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "u" and native.dtype != np.uint8:
        native = native.astype(np.float64)  # torch has few operations on other unsigned numbers
    return torch.from_numpy(native if native.flags.writeable and min(native.strides, default=0) >= 0 else native.copy())


def _finite(ids: list[str], values: Tensor) -> Incoming:
    """Inputs with a number that is NaN or infinite are not shown to the model."""
    good = values.flatten(1).isfinite()  # [b, D]
    if good.all():
        return Incoming(ids, values, {})
    firsts = {i: int((~good[i]).nonzero()[0]) for i in (~good.all(dim=1)).nonzero().squeeze(1).tolist()}
    errors = {
        i: f"Its number {first + 1} is not finite in float32; fill it, scale it or leave it out."
        for i, first in firsts.items()
    }
    return Incoming(ids, values[good.all(dim=1)], errors)


def _as_image(image: Any, number: int) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise UserError(
            f"Input {number} is {type(image).__name__} {array.dtype} {list(array.shape)}; give paths, images of Pillow, or uint8 arrays "
            "[H, W, 3]."
        )
    return Image.fromarray(array)


def _batch_of(shape: tuple[int, ...]) -> str:
    return f"[N, {', '.join(map(str, shape))}]"
