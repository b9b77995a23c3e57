"""Data: images and labels, from disk or made up, and how they reach the device."""

from l2d.data.cifar100 import cifar100
from l2d.data.dataset import Dataset, Split
from l2d.data.loader import Batch, Loader, ResidentLoader, make_loader
from l2d.data.synthetic import synthetic

__all__ = ["Batch", "Dataset", "Loader", "ResidentLoader", "Split", "cifar100", "make_loader", "synthetic"]
