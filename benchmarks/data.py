"""How fast data reaches the device: l2d's loaders against torchvision's per-image pipelines, as ratios in one run.

Both sides end in normalised float32 batches in memory, from the same images, with the same number of worker processes where they
have any: torchvision's in its own layout, l2d's in the one that networks with convolutions have on a CPU, channels last, unless a row
says otherwise. Epochs of the two sides alternate; the ratio is the median over the repeats.
"""

import statistics
import tempfile
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from measure import Row, alternated, main, seconds
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from l2d.data import ImageFiles, Images, Loader, Preprocessing, Split
from l2d.experts.simulator import simulate
from l2d.place import Place

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WORKERS = 2
CIFAR = Preprocessing((3, 32, 32), MEAN, STD, augment="crop_flip")
IMAGENET = Preprocessing((3, 224, 224), MEAN, STD, 256, "random_resized_crop_flip")
FINISH = (transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(MEAN, STD))
CIFAR_RECIPE = transforms.Compose([transforms.RandomCrop(32, padding=4, padding_mode="reflect"), *FINISH])
IMAGENET_RECIPE = transforms.Compose([transforms.RandomResizedCrop(224), *FINISH])


class PerImage(TorchDataset):
    """Decoded images in memory, each through its transforms by itself, as torchvision's CIFAR100 does it."""

    def __init__(self, images: torch.Tensor, transform: Callable):
        self.images = images.permute(0, 2, 3, 1).contiguous().numpy()  # [N, H, W, C]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.images[i])), i % 10


def photographs(count: int, height: int, width: int) -> list[Image.Image]:
    """Noise whose power falls with frequency as in natural images, so that JPEG has as much to do as with a photograph."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)) + 1 / width
    spectrum = np.fft.rfft2(rng.standard_normal((count, 3, height, width))) / frequency**1.1
    values = np.fft.irfft2(spectrum, (height, width))  # [N, C, H, W]
    values = 128 + 55 * (values - values.mean((2, 3), keepdims=True)) / values.std((2, 3), keepdims=True)
    return [Image.fromarray(v.transpose(1, 2, 0)) for v in values.clip(0, 255).astype(np.uint8)]


def save(images: list[Image.Image], copies: int, folder: Path) -> list[str]:
    """An ImageFolder of ten classes; the copies are files of their own."""
    paths = [f"{i % 10}/{i}.JPEG" for i in range(copies * len(images))]
    for k in range(10):
        (folder / str(k)).mkdir(parents=True)
    for i, path in enumerate(paths):
        images[i % len(images)].save(folder / path, quality=90)
    return paths


def ours(images: Images | ImageFiles, batch: int, layout: torch.memory_format = torch.channels_last) -> Callable:
    count = len(images)
    split = Split(images, torch.arange(count) % 10, torch.zeros(count, 20, dtype=torch.int8))
    return Loader(split, Place(layout=layout), batch, train=True).epoch


def theirs(dataset: TorchDataset, batch: int) -> Callable[[int], Iterable]:
    loader = DataLoader(dataset, batch, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True)
    return lambda epoch: loader


def compare(name: str, target: str, ours: Callable, theirs: Callable, repeats: int) -> Row:
    """Images per second of both, epoch by epoch."""
    count = sum(len(batch[0]) for batch in ours(0))  # the same for both
    pairs = alternated(lambda: deque(ours(1), maxlen=0), lambda: deque(theirs(1), maxlen=0), repeats)
    fast, slow = (count / statistics.median(side) for side in zip(*pairs, strict=True))
    return Row(name, [b / a for a, b in pairs], target, f"{fast:,.0f} and {slow:,.0f} images/s")


def expert_simulation(repeats: int) -> list[Row]:
    """Twenty experts for every image of ImageNet: seconds, and the most memory that was in use at once."""
    rng = np.random.default_rng(0)
    matrix, labels = rng.random((20, 1000)), rng.integers(0, 1000, 1_281_167)
    taken = [seconds(lambda: simulate(matrix, labels, seed=0)) for _ in range(repeats)]
    tracemalloc.start()
    simulate(matrix, labels, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    name = "20 experts for 1,281,167 samples"
    return [Row(name, taken, "<= 2", unit=" s"), Row(f"{name}, memory", [peak / 1e6], "<= 60", unit=" MB")]


def measure(repeats: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [*loaders(Path(folder), repeats), *expert_simulation(repeats)]


def loaders(folder: Path, repeats: int) -> list[Row]:
    small = torch.randint(0, 256, (20_000, 3, 32, 32), dtype=torch.uint8)
    each, name = theirs(PerImage(small, CIFAR_RECIPE), 128), "resident CIFAR crop + flip / per image, 2 workers"
    rows = [
        compare(name, ">= 6", ours(Images(small, CIFAR), 128), each, repeats),
        compare(f"{name}, channels first", ">= 6", ours(Images(small, CIFAR), 128, torch.contiguous_format), each, repeats),
    ]  # fmt: skip

    square = photographs(64, 256, 256)
    save(square, 8, folder / "square")
    kept = torch.from_numpy(np.stack(square)).repeat(8, 1, 1, 1).permute(0, 3, 1, 2)  # channels last, as in the cache
    resident = ours(Images(kept, IMAGENET), 64)
    files = theirs(ImageFolder(folder / "square", IMAGENET_RECIPE), 64)
    rows.append(compare("resident 224 px RandomResizedCrop / per image from files", ">= 4", resident, files, repeats))
    memory = theirs(PerImage(kept, IMAGENET_RECIPE), 64)
    rows.append(compare("resident 224 px RandomResizedCrop / per image from memory", "", resident, memory, repeats))

    paths = save(photographs(64, 375, 500), 12, folder / "photographs")  # 500 x 375: the usual size in ImageNet
    stream = ours(ImageFiles(folder / "photographs", paths, IMAGENET, WORKERS), 64)
    plain = theirs(ImageFolder(folder / "photographs", IMAGENET_RECIPE), 64)
    rows.append(compare("stream / ImageFolder + DataLoader", ">= 1.2", stream, plain, repeats))
    return rows


if __name__ == "__main__":
    main(measure, __doc__)
