"""Resident images: decoded once, in parallel, into a file that later runs map into memory."""

import hashlib
import json
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from l2d.atomic import atomic_write
from l2d.data.files import ImageFiles, open_image, or_skip, refuse_too_large
from l2d.data.manifest import cache_folder
from l2d.data.resident import Images
from l2d.errors import UserError, notify
from l2d.place.memory import available_memory

_FORMAT = "l2d images 4"
_TAIL = struct.Struct("<QI")  # bytes of the footer, checksum of everything before this tail
_CHUNK = 256  # images decoded ahead of the writer


def load_images(files: dict[str, ImageFiles], feed: str) -> dict[str, tuple[Images | ImageFiles, list[int]]]:
    """split -> its images, in memory (uint8 [N, 3, resize, resize], channels last, mapped) or left on disk, and the indices
    of those that are kept."""
    size = _kept_size(files["train"])
    needed = sum(map(len, files.values())) * 3 * size * size
    if feed == "auto":
        free = available_memory() // 2  # the other half is for the model and the rest of the machine
        feed = "resident" if needed <= free else "stream"
        if feed == "stream":
            notify(
                f"The decoded images need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free for them, "
                "so they are streamed from disk (dataset.feed=resident keeps them in memory anyway)."
            )
    if feed == "stream":
        return {split: (listed, list(range(len(listed)))) for split, listed in files.items()}
    return {split: _resident(listed) for split, listed in files.items()}


def decode(path: Path | Image.Image, size: int) -> np.ndarray:
    """[size, size, 3] uint8: the shorter side resized to `size`, then the centre."""
    image = open_image(path)
    width, height = (int(size * side / min(image.size)) for side in image.size)
    refuse_too_large(path, height, width)
    left, top = round((width - size) / 2), round((height - size) / 2)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def _resident(files: ImageFiles) -> tuple[Images, list[int]]:
    """Map the cache of exactly these files into memory; write it first if it is missing, outdated or damaged."""
    size = _kept_size(files)
    key = files.digest()
    name = hashlib.sha256(json.dumps([_FORMAT, str(files.root.resolve()), size, files.paths]).encode()).hexdigest()
    path = cache_folder(files.cache) / f"{name[:24]}.images"
    found = _map(path, key, size)
    if found is None:
        _write(path, key, files, size)
        found = _map(path, key, size)
    if found is None:
        raise UserError(f"{path} does not read back as it was written; choose another folder with dataset.cache.")
    images, damaged = found
    if damaged:
        names = ", ".join(list(damaged)[:5]) + (", ..." if len(damaged) > 5 else "")
        if files.on_error == "error":
            raise UserError(
                f"{len(damaged)} of {len(files)} images cannot be read: {names}; the first of them: "
                + or_skip(next(iter(damaged.values())))
            )
        notify(f"{len(damaged)} of {len(files)} images cannot be read and are left out: {names}.")
    kept = [i for i, name in enumerate(files.paths) if name not in damaged]
    return Images(images, files.preprocessing, [files.paths[i] for i in kept]), kept


def _kept_size(files: ImageFiles) -> int:
    return files.preprocessing.resize or files.preprocessing.shape[-1]


def _map(path: Path, key: str, size: int) -> tuple[Tensor, dict[str, str]] | None:
    """Pixels and damaged files, each with its problem, from the cache; None if it is missing, fails its checksum or has another key."""
    try:
        content = np.memmap(path, dtype=np.uint8, mode="c")
    except (OSError, ValueError):  # not there, not readable, empty
        return None
    end = len(content) - _TAIL.size
    length, checksum = _TAIL.unpack(content[end:].tobytes()) if end >= 0 else (0, 0)
    if not 0 < length <= end or zlib.crc32(content[:end].data) != checksum:
        return None
    footer = json.loads(content[end - length : end].tobytes())
    if footer["key"] != key:
        return None
    pixels = torch.from_numpy(content[: end - length].reshape(-1, size, size, 3))
    return pixels.permute(0, 3, 1, 2), footer["damaged"]


def _write(path: Path, key: str, files: ImageFiles, size: int) -> None:
    """Write pixels, footer and tail atomically, so that no reader sees half a file."""

    def pixels(name: str) -> bytes | str:
        try:
            return decode(files.root / name, size).tobytes()
        except UserError as error:
            return str(error)

    def write(out: BinaryIO) -> None:
        checksum, damaged = 0, dict[str, str]()
        with ThreadPoolExecutor(files.workers or os.cpu_count()) as pool, _progress() as bar:
            text = f"decoding {len(files):,} images, once ({len(files) * 3 * size * size / 1e9:.1f} GB)"
            task = bar.add_task(text, total=len(files))
            for start in range(0, len(files), _CHUNK):
                names = files.paths[start : start + _CHUNK]
                for name, data in zip(names, pool.map(pixels, names), strict=True):
                    if isinstance(data, str):
                        damaged[name] = data
                        continue
                    checksum = zlib.crc32(data, checksum)
                    out.write(data)
                bar.advance(task, len(names))
        footer = json.dumps({"key": key, "damaged": damaged}).encode()
        out.write(footer + _TAIL.pack(len(footer), zlib.crc32(footer, checksum)))

    hint = "choose another folder for images with dataset.cache, or do without it with dataset.feed=stream"
    atomic_write(path, write, make_parents=True, hint=hint)


def _progress() -> Progress:
    terminal = Console(stderr=True)
    return Progress(console=terminal, transient=True, disable=not terminal.is_terminal)
