"""What `l2d predict` adds to the forward pass: whole streams of inputs, against a bare loop over the same loader, turn by turn.

Both show the same batches, read by the same worker processes, to the same network on the CPU. l2d also decides about every
input and writes a row for it into a CSV file.
"""

import io
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from data import photographs, save
from measure import Row, alternated, main

import l2d
from l2d.compose import compose
from l2d.export import main as export
from l2d.inference import TrainedSystem
from l2d.inference.served import served_inputs
from l2d.inference.verify import open_onnx
from l2d.inference.write import write
from l2d.train import run
from l2d.training.loop import forward

BATCH = 64


def trained(folder: Path, *words: str) -> TrainedSystem:
    """A run of one epoch: what it has learnt does not matter."""
    common = [
        "trainer.epochs=1",
        "trainer.device=cpu",
        "verbose=false",
        f"output_dir={folder}",
        f"dataset.cache={folder}",
    ]
    with redirect_stdout(io.StringIO()):
        run(compose([*common, *words]))
    (result,) = folder.glob("*/*/result.json")
    return l2d.load(result.parent)


def bare_loop(system: TrainedSystem, inputs: Any) -> None:
    for _, values, _ in system.intake.batches(inputs, BATCH):
        forward(system.system, system.prepared(values), system.place)


def share_of_bare(name: str, target: str, system: TrainedSystem, inputs: Any, repeats: int) -> Row:
    """Bare time / l2d's time."""
    out = system.run.folder.with_suffix(".csv")

    def ours() -> None:
        write(out, system.stream(inputs, system.decider(system.cfg), BATCH))

    pairs = alternated(ours, partial(bare_loop, system, inputs), repeats)
    count = len(out.read_text().splitlines()) - 1
    fast, slow = (count / statistics.median(side) for side in zip(*pairs, strict=True))
    return Row(name, [b / a for a, b in pairs], target, f"{fast:,.0f} of {slow:,.0f} inputs/s")


def exported_share(name: str, system: TrainedSystem, inputs: Any, repeats: int) -> Row:
    """Bare time / that of the exported file by onnxruntime, which also computes beliefs and decisions."""
    file = system.run.folder / "model.onnx"
    with redirect_stdout(io.StringIO()):
        export([str(system.run.folder), "--out", str(file)])
    exported = open_onnx(file)

    def ours() -> None:
        for _, values, _ in system.intake.batches(inputs, BATCH):
            exported(served_inputs(system, values))

    return Row(name, [b / a for a, b in alternated(ours, partial(bare_loop, system, inputs), repeats)])


def measure(repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:
        folder, images = Path(place), photographs(64, 375, 500)  # 500 x 375: the usual size in ImageNet
        for split, copies in (("train", 2), ("test", 12)):
            save(images, copies, folder / "photographs" / split)
        groups = f"dataset.groups={{all: [{','.join(map(str, range(10)))}]}}"
        experts = ("experts=specialist", "experts.group=all", "experts.num=5", "experts.classes_per_expert=2")
        for feed in ("stream", "resident"):
            system = trained(
                folder / feed, "dataset=folder", f"dataset.root={folder / 'photographs'}", groups, *experts, "dataset.size=64",
                "dataset.resize=72", "backbone=resnet18", f"dataset.feed={feed}", f"trainer.batch_size={BATCH}",
            )  # fmt: skip
            name = (
                f"predict, photographs of a run on {feed} images, ResNet-18 at 64 px / bare loop over the same loader"
            )
            yield share_of_bare(name, ">= 0.9", system, folder / "photographs" / "test", repeats)
            yield exported_share(
                f"the same run exported, by onnxruntime ({feed})", system, folder / "photographs" / "test", repeats
            )
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((20_000, 768), dtype=np.float32), rng.integers(0, 10, 20_000)  # [N, D], [N]
        np.savez(folder / "vectors.npz", x=x, y=y, answers=rng.integers(0, 10, (len(x), 3)))
        system = trained(
            folder / "vectors", "dataset=features", f"dataset.path={folder / 'vectors.npz'}", "experts.num=3"
        )
        yield share_of_bare("predict, vectors of 768, MLP / bare loop over the same loader", "", system, x, repeats)
        yield exported_share("the same run exported, by onnxruntime (vectors)", system, x, repeats)


if __name__ == "__main__":
    main(measure, __doc__)
