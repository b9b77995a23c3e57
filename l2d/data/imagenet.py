"""ImageNet (ILSVRC2012) as distributed: <root>/{train,val}/<wnid>/*.JPEG, streamed; the index of its files is cached."""

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from l2d.data.contents import SETTLED, in_parallel, recall, remember
from l2d.data.dataset import Dataset, Split, listed_by
from l2d.data.manifest import SUFFIXES, AtLeast1, cache_folder, existing_root
from l2d.errors import UserError

# The 120 dog classes, in order: 151..268 without 251 and 273..275 of the thousand.
_DOGS = """
    n02085620 n02085782 n02085936 n02086079 n02086240 n02086646 n02086910 n02087046 n02087394 n02088094
    n02088238 n02088364 n02088466 n02088632 n02089078 n02089867 n02089973 n02090379 n02090622 n02090721
    n02091032 n02091134 n02091244 n02091467 n02091635 n02091831 n02092002 n02092339 n02093256 n02093428
    n02093647 n02093754 n02093859 n02093991 n02094114 n02094258 n02094433 n02095314 n02095570 n02095889
    n02096051 n02096177 n02096294 n02096437 n02096585 n02097047 n02097130 n02097209 n02097298 n02097474
    n02097658 n02098105 n02098286 n02098413 n02099267 n02099429 n02099601 n02099712 n02099849 n02100236
    n02100583 n02100735 n02100877 n02101006 n02101388 n02101556 n02102040 n02102177 n02102318 n02102480
    n02102973 n02104029 n02104365 n02105056 n02105162 n02105251 n02105412 n02105505 n02105641 n02105855
    n02106030 n02106166 n02106382 n02106550 n02106662 n02107142 n02107312 n02107574 n02107683 n02107908
    n02108000 n02108089 n02108422 n02108551 n02108915 n02109047 n02109525 n02109961 n02110063 n02110185
    n02110627 n02110806 n02110958 n02111129 n02111277 n02111500 n02111889 n02112018 n02112137 n02112350
    n02112706 n02113023 n02113186 n02113624 n02113712 n02113799 n02113978 n02115641 n02115913 n02116738
"""
DOGS = _DOGS.split()

# <split>/<wnid> -> inode and mtime of the folder ('' if modified too recently), its images, their sizes
Index = dict[str, tuple[str, list[str], list[int]]]


@dataclass(frozen=True)
class Listed:
    """The class folders of both splits, and the images in them."""

    root: Path
    wnids: list[str]  # sorted: a class is the rank of its wnid
    index: Index

    def digest(self) -> str:
        """Identifies the data by the names and sizes of the images in every class folder."""
        digest = hashlib.sha256()
        for folder, (_, names, sizes) in self.index.items():
            digest.update(json.dumps([folder, names, sizes]).encode())
        return digest.hexdigest()


def list_imagenet(root: str, subset: Literal["dogs"] | None, cache: str | None, follow_links: bool = False) -> Listed:
    """All class folders, or those of dogs; from the cached index where a folder has not changed since."""
    base = existing_root(root, "train", "val").resolve()
    wnids = _classes(base, subset == "dogs")
    folders = [f"{split}/{wnid}" for split in ("train", "val") for wnid in wnids]
    return Listed(base, wnids, file_index(base, folders, cache_folder(cache), follow_links))


@listed_by(list_imagenet)
def imagenet_dogs(
    name: str,
    root: str,
    subset: Literal["dogs"] | None,
    size: AtLeast1,
    resize: AtLeast1,
    augment: str,
    cache: str | None,
    workers: Annotated[int, Ge(0)] | None,
    on_error: Literal["error", "skip"],
    follow_links: bool = False,
) -> Dataset:
    """The task over the classes found (all thousand, or `subset: dogs`), class = rank of the wnid; group: `dog`."""
    import torch

    from l2d.data.files import ImageFiles
    from l2d.data.images import image_preprocessing

    preprocessing = image_preprocessing(size, resize, augment)
    listed = list_imagenet(root, subset, cache, follow_links)
    splits = {}
    for role, split in (("train", "train"), ("test", "val")):
        files = [listed.index[f"{split}/{wnid}"][1] for wnid in listed.wnids]
        paths = [f"{split}/{wnid}/{file}" for wnid, names in zip(listed.wnids, files, strict=True) for file in names]
        if not paths:
            raise UserError(f"The class folders of {listed.root / split} hold no images.")
        counts = torch.tensor([len(names) for names in files])
        labels = torch.repeat_interleave(torch.arange(len(listed.wnids)), counts)
        splits[role] = Split(ImageFiles(listed.root, paths, preprocessing, workers, on_error), labels)
    dogs = set(DOGS)
    groups = {"dog": [k for k, wnid in enumerate(listed.wnids) if wnid in dogs]}
    return Dataset(name, listed.wnids, splits["train"], splits["test"], groups)


def _classes(root: Path, only_dogs: bool) -> list[str]:
    """The wnids that both splits have a folder of, sorted."""
    found = {
        split: {f.name for f in (root / split).glob("n*") if re.fullmatch(r"n\d{8}", f.name) and f.is_dir()}
        for split in ("train", "val")
    }
    for split, other in (("train", "val"), ("val", "train")):
        if not found[split]:
            raise UserError(
                f"{root / split} has no class folders (n01440764, n01443537, ...); ImageNet is read from "
                "<root>/train/<wnid>/*.JPEG and <root>/val/<wnid>/*.JPEG."
            )
        if lacking := sorted(found[other] - found[split]):
            raise UserError(
                f"{root / split} lacks {len(lacking)} class folders that {other} has, the first being {lacking[0]}; "
                "both splits need the same classes."
            )
    wnids = sorted(found["train"] & set(DOGS) if only_dogs else found["train"])
    if not wnids:
        raise UserError(f"dataset.subset=dogs: none of the class folders in {root / 'train'} is a dog class.")
    return wnids


def file_index(root: Path, folders: list[str], cache: Path, follow_links: bool = False) -> Index:
    """The images of every folder; from the cache where the folder has not changed since."""
    path = cache / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:24]}.{'links' if follow_links else 'index2'}"
    known: Index = recall(path)
    for folder in () if follow_links else folders:
        _refuse_outside(root, root / folder)
    stats = {folder: os.stat(root / folder) for folder in folders}
    stamps = {folder: f"{stat.st_ino} {stat.st_mtime_ns}" for folder, stat in stats.items()}
    stale = [folder for folder in folders if folder not in known or known[folder][0] != stamps[folder]]
    if stale:
        listed = in_parallel(lambda folder: _images(root, folder, follow_links), stale, "listing folders, once")
        for folder, (names, sizes) in zip(stale, listed, strict=True):
            settled = time.time_ns() - stats[folder].st_mtime_ns > SETTLED
            known[folder] = (stamps[folder] if settled else "", names, sizes)
        remember(path, known)
    return {folder: known[folder] for folder in folders}


def _images(root: Path, folder: str, follow_links: bool) -> tuple[list[str], list[int]]:
    """Names and sizes of the images in a folder, by name."""
    try:
        with os.scandir(root / folder) as entries:
            images = sorted(
                (
                    entry
                    for entry in entries
                    if os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.name[0] != "."
                ),
                key=lambda entry: entry.name,
            )
        for entry in images:
            if entry.is_symlink() and not follow_links:
                _refuse_outside(root, Path(entry.path))
        return [entry.name for entry in images], [entry.stat().st_size for entry in images]
    except OSError as error:
        raise UserError(f"{error.filename or root / folder} cannot be listed ({error.strerror}).") from error


def _refuse_outside(root: Path, path: Path) -> None:
    if not path.resolve().is_relative_to(root):
        raise UserError(f"{path} leads out of {root} through a link; dataset.follow_links=true allows it.")
