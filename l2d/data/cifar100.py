"""CIFAR-100 as distributed: pickled batches, read only after their checksum, or by an unpickler that runs nothing."""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l2d.data.dataset import Dataset, Split
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
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def cifar100(name: str, root: str, download: bool, verify: bool) -> Dataset:
    """The 100-class task; groups: `animal` (the 50 biological classes) and every superclass by its name."""
    if download:
        from torchvision.datasets import CIFAR100

        CIFAR100(root, download=True)
    folder = Path(root) / "cifar-100-python"
    if not folder.is_dir():
        raise UserError(
            f"dataset.root={root} has no folder cifar-100-python; point dataset.root at the folder that holds it, "
            "or let dataset.download=true fetch it."
        )
    raw = {part: _read(folder / part, MD5[part] if verify else None) for part in MD5}
    fine, coarse = raw["meta"]["fine_label_names"], raw["meta"]["coarse_label_names"]
    groups: dict[str, list[int]] = {superclass: [] for superclass in coarse}
    superclass_of = dict(zip(raw["train"]["fine_labels"], raw["train"]["coarse_labels"], strict=True))
    for label in sorted(superclass_of):
        groups[coarse[superclass_of[label]]].append(label)
    groups["animal"] = [label for superclass in BIOLOGICAL for label in groups.get(superclass, [])]
    return Dataset(
        name=name,
        class_names=list(fine),
        train=_split(folder / "train", raw["train"], len(fine)),
        test=_split(folder / "test", raw["test"], len(fine)),
        image_shape=(3, 32, 32),
        groups=groups,
        augment="crop_flip",
        mean=MEAN,
        std=STD,
    )


def _split(path: Path, raw: dict[str, Any], num_classes: int) -> Split:
    labels = torch.tensor(raw["fine_labels"], dtype=torch.int64)
    images = np.asarray(raw["data"])
    if (
        images.dtype != np.uint8
        or images.shape != (len(labels), 3072)
        or not 0 <= labels.min() <= labels.max() < num_classes
    ):
        raise UserError(
            f"{path} does not hold N x 3072 bytes with a label below {num_classes} each; fetch CIFAR-100 again."
        )
    return Split(torch.from_numpy(images.reshape(-1, 3, 32, 32)), labels)


def _read(path: Path, md5: str | None) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); CIFAR-100 needs its files train, test and meta."
        ) from error
    if md5 and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(
            f"{path} is not the file that CIFAR-100 distributes (its checksum differs); fetch it again, "
            "or read it all the same, without running code from it, with dataset.verify=false."
        )
    try:
        loaded = PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else key: _text(value) for key, value in loaded.items()}
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path} is damaged ({error}); fetch CIFAR-100 again.") from error


def _text(value: Any) -> Any:
    return [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value


class PlainUnpickler(pickle.Unpickler):
    """Admits numpy arrays and plain containers, and nothing that could run code."""

    ALLOWED = {
        (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
    } | {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")} | {
        ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise UserError(
                f"The file asks to load {module}.{name}, which CIFAR-100 never does: refused, nothing was run."
            )
        return super().find_class(module, name)
