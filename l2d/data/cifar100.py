"""CIFAR-100 as distributed: pickled batches with known checksums, read by an unpickler that runs no code."""

import hashlib
import io
import pickle
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from l2d.data.dataset import Dataset, Preprocessing, Split, listed_by
from l2d.errors import UserError

MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
# The paper names 50 biological classes without listing them: the nine animal superclasses, and people.
BIOLOGICAL = (
    "aquatic_mammals", "fish", "insects", "large_carnivores", "large_omnivores_and_herbivores",
    "medium_mammals", "non-insect_invertebrates", "people", "reptiles", "small_mammals",
)  # fmt: skip
# The keys that are read from each file.
KEYS = {
    "train": ("data", "fine_labels", "coarse_labels"),
    "test": ("data", "fine_labels"),
    "meta": ("fine_label_names", "coarse_label_names"),
}
PREPROCESSING = Preprocessing((3, 32, 32), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), augment="crop_flip")


@dataclass(frozen=True)
class Files:
    """The folder that CIFAR-100 is distributed as."""

    folder: Path

    def digest(self) -> str:
        """The checksums of its three files."""
        return " ".join(hashlib.md5(_bytes(self.folder / part), usedforsecurity=False).hexdigest() for part in MD5)


def list_cifar100(root: str, download: bool) -> Files:
    """The files below root; downloaded first if `download` is true."""
    if download:
        _download(root)
    folder = Path(root) / "cifar-100-python"
    if not folder.is_dir():
        raise UserError(
            f"dataset.root={root} has no folder cifar-100-python; point dataset.root at the folder that holds it, "
            "or let dataset.download=true fetch it."
        )
    return Files(folder)


@listed_by(list_cifar100)
def cifar100(name: str, root: str, download: bool, verify: bool) -> Dataset:
    """The 100-class task; groups: `animal` (the 50 biological classes) and every superclass by its name."""
    import torch

    from l2d.data.resident import Images

    folder = list_cifar100(root, download).folder
    raw = {part: _read(folder / part, MD5[part] if verify else None, KEYS[part]) for part in MD5}
    fine, coarse = raw["meta"]["fine_label_names"], raw["meta"]["coarse_label_names"]
    splits = {}
    for part in ("train", "test"):
        pixels, labels = _images(folder / part, raw[part]), _labels(folder / part, raw[part], "fine_labels", len(fine))
        images = Images(torch.from_numpy(pixels), PREPROCESSING, _names(part, raw[part], len(labels)))
        splits[part] = Split(images, torch.from_numpy(labels))
    superclasses = _labels(folder / "train", raw["train"], "coarse_labels", len(coarse))
    groups: dict[str, list[int]] = {superclass: [] for superclass in coarse}
    for label, superclass in sorted(
        dict(zip(splits["train"].labels.tolist(), superclasses.tolist(), strict=True)).items()
    ):
        groups[coarse[superclass]].append(label)
    groups["animal"] = [label for superclass in BIOLOGICAL for label in groups.get(superclass, [])]
    return Dataset(name, list(fine), splits["train"], splits["test"], groups)


def _download(root: str) -> None:
    from torchvision.datasets import CIFAR100

    try:
        CIFAR100(root, download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"CIFAR-100 cannot be fetched ({error}); put its folder cifar-100-python into dataset.root={root} yourself."
        ) from error


def _images(path: Path, raw: dict[str, Any]) -> np.ndarray:
    """[N, 3, 32, 32] uint8."""
    images = np.require(raw["data"], requirements=["C", "W"])
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
        raise UserError(f"{path} does not hold 3072 bytes an image; fetch CIFAR-100 again.")
    return images.reshape(-1, 3, 32, 32)


def _names(part: str, raw: dict[str, Any], count: int) -> list[str]:
    """train/NAME by the names in the file (one of CIFAR-100's occurs twice: the second gets #2), else train/NUMBER."""
    names = raw.get("filenames")
    if not isinstance(names, list) or len(names) != count:
        return [f"{part}/{number}" for number in range(count)]
    seen: Counter[str] = Counter()
    unique = []
    for name in map(str, names):
        seen[name] += 1
        unique.append(f"{part}/{name}" + (f"#{seen[name]}" if seen[name] > 1 else ""))
    return unique


def _labels(path: Path, raw: dict[str, Any], key: str, count: int) -> np.ndarray:
    """One whole number below `count` for every image: [N]."""
    labels = np.asarray(raw[key])
    fits = labels.shape == (len(raw["data"]),) and labels.size and np.issubdtype(labels.dtype, np.integer)
    if not fits or labels.min() < 0 or labels.max() >= count:
        raise UserError(
            f"{path} does not hold one label from 0 to {count - 1} for each image in its {key}; fetch CIFAR-100 again."
        )
    return labels.astype(np.int64)


def _read(path: Path, md5: str | None, keys: tuple[str, ...]) -> dict[str, Any]:
    content = _bytes(path)
    if md5 and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(
            f"{path} is not the file that CIFAR-100 distributes (its checksum differs); fetch it again, "
            "or skip this check with dataset.verify=false (no code in the file is run either way)."
        )
    try:
        loaded = PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        found = {key: _text(loaded[key.encode()]) for key in keys}
        return found | ({"filenames": _text(loaded[b"filenames"])} if b"filenames" in loaded else {})
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path} is not CIFAR-100's ({error}); fetch it again.") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); CIFAR-100 needs its files train, test and meta."
        ) from error


def _text(value: Any) -> Any:
    return [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value


class PlainUnpickler(pickle.Unpickler):
    """Loads numpy arrays and plain containers only; nothing that could run code."""

    ALLOWED = {
        (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
    } | {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")} | {
        ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks to load {module}.{name}: refused, nothing was run")
        return super().find_class(module, name)
