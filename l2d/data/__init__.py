"""Data: images and labels, from disk or made up, and how they reach the device."""

from l2d.data.chaoyang import chaoyang
from l2d.data.cifar100 import cifar100
from l2d.data.dataset import Dataset, Split
from l2d.data.folder import folder
from l2d.data.imagenet import imagenet_dogs
from l2d.data.loader import Batch, Loader, ResidentLoader, make_loader
from l2d.data.micebone import micebone
from l2d.data.synthetic import synthetic

__all__ = [
    "Batch",
    "Dataset",
    "Loader",
    "ResidentLoader",
    "Split",
    "chaoyang",
    "cifar100",
    "folder",
    "imagenet_dogs",
    "make_loader",
    "micebone",
    "synthetic",
]
