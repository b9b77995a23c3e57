"""How fast data reaches the device: l2d's loaders against torchvision's per-image pipelines, as ratios in one run.

Both sides end in normalised float32 batches in memory, from the same images, each in the layout that costs it least, with
the same number of worker processes where they have any. Epochs of the two sides alternate; the ratio is the median over the repeats.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from l2d.data import Dataset, Split, make_loader
from l2d.data.files import ImageFiles
from l2d.experts.simulator import simulate

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WORKERS = 2
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


def ours(images: torch.Tensor | ImageFiles, augment: str, size: int, batch: int) -> Callable[[int], Iterable]:
    count = len(images)
    split = Split(images, torch.arange(count) % 10)
    dataset = Dataset("x", list("0123456789"), split, split, (3, size, size), augment=augment, mean=MEAN, std=STD)
    experts = torch.zeros(count, 20, dtype=torch.int8)
    device = torch.device("cpu")
    return make_loader(dataset, "train", lambda epoch: experts, batch, device, 0, torch.channels_last).epoch


def theirs(dataset: TorchDataset, batch: int) -> Callable[[int], Iterable]:
    loader = DataLoader(dataset, batch, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True)
    return lambda epoch: loader


def images_per_second(epoch: Callable[[int], Iterable], number: int) -> float:
    started = time.perf_counter()
    count = sum(len(batch[0]) for batch in epoch(number))
    return count / (time.perf_counter() - started)


def compare(name: str, target: float | None, ours: Callable, theirs: Callable, repeats: int) -> dict:
    """Alternate epochs of the two, after one of each that is not counted."""
    speeds = [(images_per_second(ours, e), images_per_second(theirs, e)) for e in range(repeats + 1)][1:]
    ratios = sorted(a / b for a, b in speeds)
    fast, slow = (statistics.median(side) for side in zip(*speeds, strict=True))
    return {
        "name": name, "l2d_images_per_second": fast, "baseline_images_per_second": slow,
        "ratio": statistics.median(ratios), "lowest_ratio": ratios[0], "highest_ratio": ratios[-1], "target": target,
    }  # fmt: skip


def expert_simulation(repeats: int) -> dict:
    """Twenty experts for every image of ImageNet: seconds, and the most memory that was in use at once."""
    rng = np.random.default_rng(0)
    matrix, labels = rng.random((20, 1000)), rng.integers(0, 1000, 1_281_167)
    seconds = []
    for repeat in range(repeats):
        started = time.perf_counter()
        simulate(matrix, labels, seed=repeat)
        seconds.append(time.perf_counter() - started)
    tracemalloc.start()
    simulate(matrix, labels, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "name": "20 experts for 1,281,167 samples", "seconds": statistics.median(seconds), "most_seconds": max(seconds),
        "peak_mb": peak / 1e6, "target_seconds": 2, "target_mb": 60,
    }  # fmt: skip


def measure(folder: Path, repeats: int) -> list[dict]:
    small = torch.randint(0, 256, (20_000, 3, 32, 32), dtype=torch.uint8)
    rows = [
        compare(
            "resident CIFAR crop + flip / per image, 2 workers", 6,
            ours(small, "crop_flip", 32, 128), theirs(PerImage(small, CIFAR_RECIPE), 128), repeats,
        )
    ]  # fmt: skip

    square = photographs(64, 256, 256)
    save(square, 8, folder / "square")
    kept = torch.from_numpy(np.stack(square)).repeat(8, 1, 1, 1).permute(0, 3, 1, 2)  # channels last, as in the cache
    resident = ours(kept, "random_resized_crop_flip", 224, 64)
    files = theirs(ImageFolder(folder / "square", IMAGENET_RECIPE), 64)
    rows.append(compare("resident 224 px RandomResizedCrop / per image from files", 4, resident, files, repeats))
    memory = theirs(PerImage(kept, IMAGENET_RECIPE), 64)
    rows.append(compare("resident 224 px RandomResizedCrop / per image from memory", None, resident, memory, repeats))

    paths = save(photographs(64, 375, 500), 12, folder / "photographs")  # 500 x 375: the usual size in ImageNet
    stream = ours(ImageFiles(folder / "photographs", paths, 256, WORKERS), "random_resized_crop_flip", 224, 64)
    plain = theirs(ImageFolder(folder / "photographs", IMAGENET_RECIPE), 64)
    rows.append(compare("stream / ImageFolder + DataLoader", 1.2, stream, plain, repeats))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.repeats)
    experts = expert_simulation(options.repeats)

    table = Table("", "l2d", "baseline", "ratio", "lowest..highest", "target")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['l2d_images_per_second']:,.0f}/s",
            f"{row['baseline_images_per_second']:,.0f}/s",
            f"{row['ratio']:.2f}",
            f"{row['lowest_ratio']:.2f}..{row['highest_ratio']:.2f}",
            f">= {row['target']}" if row["target"] else "",
        )
    table.add_row(
        experts["name"], f"{experts['seconds']:.2f} s, {experts['peak_mb']:.0f} MB", "", "", "", "< 2 s, 60 MB"
    )
    Console(width=140).print(table)
    if options.json:
        machine = {"cores": os.cpu_count(), "torch": torch.__version__, "platform": platform.platform()}
        options.json.write_text(json.dumps({"loaders": rows, "experts": experts, "machine": machine}, indent=2) + "\n")


if __name__ == "__main__":
    main()
