"""Data: inputs and labels, from disk or generated, and their transfer to the device. Importing this does not import torch."""

from typing import TYPE_CHECKING

from l2d.data.chaoyang import chaoyang
from l2d.data.cifar import cifar10, cifar100
from l2d.data.cifar_people import cifar10h, cifar10n, cifar100n
from l2d.data.dataset import MISSING, Batch, Dataset, Preprocessing, Split, listed_by
from l2d.data.features import features
from l2d.data.folder import folder
from l2d.data.imagenet import imagenet_dogs
from l2d.data.micebone import micebone
from l2d.data.synthetic import synthetic
from l2d.lazy import lazy

if TYPE_CHECKING:
    from l2d.data.files import ImageFiles
    from l2d.data.loader import Loader
    from l2d.data.resident import Images
    from l2d.data.vectors import Vectors
else:  # these need torch
    __getattr__ = lazy(
        __name__,
        {
            "l2d.data.files": ["ImageFiles"],
            "l2d.data.loader": ["Loader"],
            "l2d.data.resident": ["Images"],
            "l2d.data.vectors": ["Vectors"],
        },
    )

__all__ = [
    "MISSING",
    "Batch",
    "Dataset",
    "ImageFiles",
    "Images",
    "Loader",
    "Preprocessing",
    "Split",
    "Vectors",
    "chaoyang",
    "cifar10",
    "cifar10h",
    "cifar10n",
    "cifar100",
    "cifar100n",
    "features",
    "folder",
    "imagenet_dogs",
    "listed_by",
    "micebone",
    "synthetic",
]
