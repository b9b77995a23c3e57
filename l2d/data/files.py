"""Images that stay on disk until they are needed."""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from l2d.errors import UserError


@dataclass(frozen=True)
class ImageFiles:
    """The images of a split, in order, as paths below `root`."""

    root: Path
    paths: list[str]

    def __len__(self) -> int:
        return len(self.paths)


def open_image(path: Path) -> Image.Image:
    """An RGB image, whatever mode (CMYK, grey, palette) or format hides behind the name; a sentence if it is damaged."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not a readable image ({error}); replace or remove it.") from error
