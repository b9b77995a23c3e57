"""CIFAR-10 and CIFAR-100 as distributed: pickled batches with known checksums, read by an unpickler that runs no code."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from l2d.data.dataset import Dataset, Preprocessing, Split, listed_by
from l2d.data.pickles import load_pickle
from l2d.errors import UserError

Part = Literal["train", "test"]
Batches = list[tuple[Path, dict[str, Any]]]  # the files of a part, and what they hold
# The paper names 50 biological classes without listing them: the nine animal superclasses, and people.
BIOLOGICAL = (
    "aquatic_mammals", "fish", "insects", "large_carnivores", "large_omnivores_and_herbivores",
    "medium_mammals", "non-insect_invertebrates", "people", "reptiles", "small_mammals",
)  # fmt: skip
ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")  # of CIFAR-10; its other classes are vehicles


@dataclass(frozen=True)
class Release:
    """The folder that a dataset of 32 x 32 images is distributed as."""

    title: str
    folder: str
    files: dict[str, list[str]]  # train, test and meta -> files, in the order of the images
    md5: dict[str, str]  # file -> its checksum
    fine: str  # what the keys of labels and of their names begin with
    coarse: str | None  # the same of superclasses, where there are some
    preprocessing: Preprocessing


CIFAR10 = Release(
    "CIFAR-10",
    "cifar-10-batches-py",
    {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"], "meta": ["batches.meta"]},
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    fine="",
    coarse=None,
    preprocessing=Preprocessing((3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), augment="crop_flip"),
)
CIFAR100 = Release(
    "CIFAR-100",
    "cifar-100-python",
    {"train": ["train"], "test": ["test"], "meta": ["meta"]},
    {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
    fine="fine_",
    coarse="coarse_",
    preprocessing=Preprocessing((3, 32, 32), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), augment="crop_flip"),
)


@dataclass(frozen=True)
class Files:
    """The files that are read."""

    paths: list[Path]

    def digest(self) -> str:
        """Their checksums."""
        return " ".join(hashlib.md5(file_bytes(path), usedforsecurity=False).hexdigest() for path in self.paths)


def list_files(release: Release, parts: tuple[Part, ...], root: str, download: bool) -> Files:
    """The files of these parts below root; downloaded first if `download` is true."""
    if download:
        _download(release, root)
    folder = Path(root) / release.folder
    if not folder.is_dir():
        raise UserError(
            f"dataset.root={root} has no folder {release.folder}; point dataset.root at the folder that holds it, "
            "or let dataset.download=true fetch it."
        )
    return Files([folder / file for part in (*parts, "meta") for file in release.files[part]])


@dataclass
class Loaded:
    """The parts of a release that were read."""

    splits: dict[Part, Split]
    class_names: list[str]
    groups: dict[str, list[int]]


def load(release: Release, parts: tuple[Part, ...], root: str, download: bool, verify: bool) -> Loaded:
    """Read these parts; the superclasses are those of the images in the first."""
    import torch

    from l2d.data.resident import Images

    paths = {path.name: path for path in list_files(release, parts, root, download).paths}

    def read(part: str, keys: list[str]) -> Batches:
        return [(paths[file], _read(release, paths[file], verify, keys)) for file in release.files[part]]

    kinds = [release.fine, *([release.coarse] if release.coarse else [])]
    ((_, meta),) = read("meta", [f"{kind}label_names" for kind in kinds])
    class_names, *coarse_names = (list(meta[f"{kind}label_names"]) for kind in kinds)
    groups = {"animal": [k for k, name in enumerate(class_names) if name in ANIMALS]}
    groups["vehicle"] = [k for k in range(len(class_names)) if k not in groups["animal"]]
    splits: dict[Part, Split] = {}
    for part in parts:
        batches = read(part, ["data", *(f"{kind}labels" for kind in (kinds if part == parts[0] else kinds[:1]))])
        pixels = _images(release, batches)
        labels = _labels(release, batches, release.fine, len(class_names))
        if release.coarse and part == parts[0]:
            superclasses = _labels(release, batches, release.coarse, len(coarse_names[0]))
            groups = _superclass_groups(labels, superclasses, coarse_names[0])
        images = Images(torch.from_numpy(pixels), release.preprocessing, _names(part, batches, len(labels)))
        splits[part] = Split(images, torch.from_numpy(labels))
    return Loaded(splits, class_names, groups)


@listed_by(partial(list_files, CIFAR10, ("train", "test")))
def cifar10(name: str, root: str, download: bool, verify: bool) -> Dataset:
    """The 10-class task; groups: `animal` and `vehicle`."""
    loaded = load(CIFAR10, ("train", "test"), root, download, verify)
    return Dataset(name, loaded.class_names, loaded.splits["train"], loaded.splits["test"], loaded.groups)


@listed_by(partial(list_files, CIFAR100, ("train", "test")))
def cifar100(name: str, root: str, download: bool, verify: bool) -> Dataset:
    """The 100-class task; groups: `animal` (the 50 biological classes) and every superclass by its name."""
    loaded = load(CIFAR100, ("train", "test"), root, download, verify)
    return Dataset(name, loaded.class_names, loaded.splits["train"], loaded.splits["test"], loaded.groups)


def _superclass_groups(labels: np.ndarray, coarse: np.ndarray, names: list[str]) -> dict[str, list[int]]:
    """Superclass -> its classes, and the biological ones together; from the label [N] and superclass [N] of every image."""
    groups: dict[str, list[int]] = {name: [] for name in names}
    for label, superclass in sorted(dict(zip(labels.tolist(), coarse.tolist(), strict=True)).items()):
        groups[names[superclass]].append(label)
    groups["animal"] = [label for superclass in BIOLOGICAL for label in groups.get(superclass, [])]
    return groups


def _download(release: Release, root: str) -> None:
    import torchvision.datasets

    try:
        getattr(torchvision.datasets, release.title.replace("-", ""))(root, download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{release.title} cannot be fetched ({error}); put its folder {release.folder} into dataset.root={root} yourself."
        ) from error


def _images(release: Release, batches: Batches) -> np.ndarray:
    """[N, 3, 32, 32] uint8."""
    parts = []
    for path, raw in batches:
        images = np.require(raw["data"], requirements=["C", "W"])
        if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
            raise UserError(f"{path} does not hold 3072 bytes an image; fetch {release.title} again.")
        parts.append(images.reshape(-1, 3, 32, 32))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _names(part: str, batches: Batches, count: int) -> list[str]:
    """train/NAME by the names in the files (one of CIFAR-100's occurs twice: the second gets #2), else train/NUMBER."""
    listed = (raw.get("filenames") for _, raw in batches)
    names = [name for names in listed if isinstance(names, list) for name in names]
    if len(names) != count:
        return [f"{part}/{number}" for number in range(count)]
    seen: Counter[str] = Counter()
    unique = []
    for name in map(str, names):
        seen[name] += 1
        unique.append(f"{part}/{name}" + (f"#{seen[name]}" if seen[name] > 1 else ""))
    return unique


def _labels(release: Release, batches: Batches, kind: str, count: int) -> np.ndarray:
    """One whole number below `count` for every image: [N]."""
    parts = []
    for path, raw in batches:
        labels = np.asarray(raw[f"{kind}labels"])
        fits = labels.shape == (len(raw["data"]),) and labels.size and np.issubdtype(labels.dtype, np.integer)
        if not fits or labels.min() < 0 or labels.max() >= count:
            raise UserError(
                f"{path} does not hold one label from 0 to {count - 1} for each image in its {kind}labels; "
                f"fetch {release.title} again."
            )
        parts.append(labels.astype(np.int64))
    return np.concatenate(parts)


def _read(release: Release, path: Path, verify: bool, keys: list[str]) -> dict[str, Any]:
    content = file_bytes(path)
    if verify and hashlib.md5(content, usedforsecurity=False).hexdigest() != release.md5[path.name]:
        raise UserError(
            f"{path} is not the file that {release.title} distributes (its checksum differs); fetch it again, "
            "or skip this check with dataset.verify=false (no code in the file is run either way)."
        )
    try:
        loaded = load_pickle(content)
        found = {key: _text(loaded[key.encode()]) for key in keys}
        return found | ({"filenames": _text(loaded[b"filenames"])} if b"filenames" in loaded else {})
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path} is not {release.title}'s ({error}); fetch it again.") from error


def file_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}), and is needed; put the files as they are distributed into dataset.root."
        ) from error


def _text(value: Any) -> Any:
    return [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value
