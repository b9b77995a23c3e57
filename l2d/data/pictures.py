"""Inputs as small images for people to look at."""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from l2d.data.files import Box, Size, read_box


def file_picture(path: Path, side: int) -> Image.Image:
    """An image file in RGB, at most `side` pixels wide and high; UserError if it cannot be read."""

    def within(height: int, width: int) -> tuple[Box, Size]:
        scale = min(1, side / max(height, width))
        return (0, 0, height, width), (max(round(scale * height), 1), max(round(scale * width), 1))

    return Image.fromarray(read_box(path, within).permute(1, 2, 0).contiguous().numpy())


def pixel_pictures(pixels: Tensor) -> list[Image.Image]:
    """Pixels [B, C, H, W] as grey or RGB images of their size; floats are rescaled to the range of all of them."""
    values = pixels.numpy()
    if values.dtype != np.uint8:
        low, high = np.percentile(values, (1, 99)) if values.size else (0, 1)
        values = (255 * ((values - low) / max(high - low, 1e-12)).clip(0, 1)).astype(np.uint8)
    return [Image.fromarray(np.ascontiguousarray(p[:3].transpose(1, 2, 0)) if len(p) >= 3 else p[0]) for p in values]
