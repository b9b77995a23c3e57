"""From a manifest to a dataset of images: decoded into memory or left on disk."""

import numpy as np
import torch

from l2d.data.augment import augmentation
from l2d.data.cache import load_images
from l2d.data.dataset import Dataset, Preprocessing, Split
from l2d.data.files import ImageFiles
from l2d.data.manifest import ImageSettings, Manifest, check_files
from l2d.errors import UserError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels


def image_dataset(name: str, manifest: Manifest, settings: ImageSettings) -> Dataset:
    """The dataset of a checked manifest; images that `on_error: skip` leaves out lose their labels and answers too."""
    preprocessing = image_preprocessing(settings["size"], settings["resize"], settings["augment"])
    check_files(manifest.root, manifest.splits, settings.get("follow_links", False))
    files = {
        split: ImageFiles(
            manifest.root, listed.paths, preprocessing, settings["workers"], settings["on_error"], settings["cache"]
        )
        for split, listed in manifest.splits.items()
    }
    splits: dict[str, Split] = {}
    annotators: dict[str, dict[str, np.ndarray]] = {}
    for split, (images, kept) in load_images(files, settings["feed"]).items():
        if not kept:
            raise UserError(f"No image of the {split} split in {manifest.root} can be read; replace them.")
        splits[split] = Split(images, torch.tensor(manifest.splits[split].labels)[kept])
        for annotator, answers in manifest.splits[split].answers.items():
            annotators.setdefault(annotator, {})[split] = np.asarray(answers)[kept]  # [N]
    train, test, held_out = (splits.get(split) for split in ("train", "test", "held_out"))
    assert train is not None and test is not None  # checked before
    return Dataset(name, manifest.class_names, train, test, manifest.groups, annotators, held_out=held_out)


def image_preprocessing(size: int, resize: int, augment: str) -> Preprocessing:
    """RGB images of size x size, normalised with ImageNet's statistics."""
    augmentation(augment)  # rejects an unknown name before anything is decoded
    if size > resize:
        raise UserError(f"dataset.size={size} must be at most dataset.resize={resize}.")
    return Preprocessing((3, size, size), MEAN, STD, resize, augment)
