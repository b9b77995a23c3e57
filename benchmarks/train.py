"""How much of the bare model's speed is left in `l2d train`: whole epochs of both, turn by turn, in one process.

The bare loop is forward, cross-entropy over the K+J columns, backward and step on batches that lie ready as floats, in the
same layout and with the same optimiser. l2d's epochs are those of `l2d train`: resident bytes, crop and flip, the loss, the
schedule, the display, metrics.csv, and whatever else happens between two epochs. A tracker hands over from one to the other.
"""

import io
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from measure import Row, alternated, main, seconds
from torch import Tensor, nn

from l2d.compose import compose
from l2d.config import build
from l2d.data import Batch, Dataset, Images, Loader, Preprocessing, Split, listed_by
from l2d.data.dataset import Generated
from l2d.evaluation.evaluator import PROBE_SIZE, Known, evaluate, evaluation_loaders
from l2d.place import Place
from l2d.systems import load_system
from l2d.task import load_task
from l2d.tracking.trackers import NullTracker
from l2d.train import run
from l2d.training.checkpoint import Checkpoints
from l2d.training.loop import forward, predict

K, J, BATCH = 100, 20, 128
WRN = ("backbone=wrn28", "backbone.depth=16", "backbone.width=2")
MLP = ("backbone=mlp", "backbone.hidden=64", "backbone.layers=1")


@listed_by(Generated)
def random_images(name: str, num_train: int, num_test: int, beside: int = 0) -> Dataset:
    """As large as CIFAR-100's, in bytes, with the group that the `animal` experts want; `beside` more training images are
    in memory and not trained on."""
    rng = torch.Generator().manual_seed(0)
    preprocessing = Preprocessing((3, 32, 32), (0.5,) * 3, (0.25,) * 3, augment="crop_flip")

    def split(count: int, beside: int = 0) -> Split:
        images = torch.randint(0, 256, (count + beside, 3, 32, 32), dtype=torch.uint8, generator=rng)
        return Split(Images(images[:count], preprocessing), torch.randint(K, (count,), generator=rng))

    names, groups = [str(k) for k in range(K)], {"animal": list(range(50))}
    return Dataset(name, names, split(num_train, beside), split(num_test), groups)


class Bare:
    """The loop without a framework."""

    def __init__(self, model: nn.Module, layout: torch.memory_format, train_steps: int, test_steps: int):
        self.model, self.layout = model.to(memory_format=layout), layout
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.ready = [self._batch() for _ in range(max(train_steps, test_steps))]
        self.train_steps, self.test_steps = train_steps, test_steps

    def _batch(self) -> tuple[Tensor, Tensor]:
        images = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=self.layout)
        return images, torch.randint(K, (BATCH,))

    def train(self) -> None:
        self.model.train()
        for images, labels in self.ready[: self.train_steps]:
            loss = F.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def test(self) -> None:
        self.model.eval()
        for images, _ in self.ready[: self.test_steps]:
            self.model(images)


class HandOver(NullTracker):
    """After every epoch of l2d it is the other's turn; what that takes is not l2d's time."""

    other: Callable[[], object]
    pairs: list[tuple[float, float]]

    def start(self, name: str, config: dict, folder: Path) -> None:
        HandOver.pairs, self.since = [], time.perf_counter()

    def log(self, row: dict) -> None:
        HandOver.pairs.append((time.perf_counter() - self.since, seconds(HandOver.other)))
        self.since = time.perf_counter()


def config(folder: str, *words: str):
    """What `l2d train` makes of these words."""
    common = [
        "dataset=cifar100", "dataset._target_=__main__.random_images", "~dataset.root", "~dataset.download",
        "~dataset.verify", "experts=animal", f"experts.num={J}", "loss=picce_ce", "trainer.device=cpu",
        f"trainer.batch_size={BATCH}", f"output_dir={folder}", "verbose=false",
    ]  # fmt: skip
    return compose([*common, *words])


def sizes(train_steps: int, test_steps: int) -> tuple[str, ...]:
    return f"+dataset.num_train={train_steps * BATCH}", f"+dataset.num_test={test_steps * BATCH}"


def share_of_bare(name: str, target: str, backbone: tuple, train_steps: int, test_steps: int, repeats: int) -> Row:
    """Bare time / l2d's time, epoch by epoch; with test steps each side also scores a test set every epoch."""
    words = (
        *backbone,
        *sizes(train_steps, test_steps or 1),
        f"trainer.epochs={repeats + 2}",
        "logger._target_=__main__.HandOver",
    )
    with tempfile.TemporaryDirectory() as folder:
        cfg = config(folder, *words, *(["trainer.eval_every=1"] if test_steps else []))
        model = build(cfg, "backbone", num_outputs=K + J, image_shape=(3, 32, 32))
        bare = Bare(model, Place().take(model, cfg.trainer).layout, train_steps, test_steps)
        HandOver.other = lambda: (bare.train(), bare.test())
        with redirect_stdout(io.StringIO()):
            run(cfg)
    pairs = HandOver.pairs[1:-1]  # the first has the start of everything in it, the last the final evaluation
    ours, theirs = (train_steps * BATCH / sorted(side)[len(side) // 2] for side in zip(*pairs, strict=True))
    note = f"{ours:,.0f} of {theirs:,.0f} training images/s"
    return Row(name, [other / own for own, other in pairs], target, note)


def share_of_bare_on_vectors(
    count: int, width: int, dtype: str, words: tuple[str, ...], repeats: int, compiled: bool = False
) -> Row:
    """The same for features mapped from a file, against the loop on the same tensor, which is not compiled."""
    classes, experts, batch = 10, 20, 256
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, width), dtype=np.float32).astype(dtype)  # [N, D]
    y, answers = rng.integers(0, classes, count), rng.integers(0, classes, (count, experts))
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/vectors.npz", x=x, y=y, answers=answers)
        cfg = compose([
            "dataset=features", f"dataset.path={folder}/vectors.npz", f"dataset.cache={folder}", f"experts.num={experts}",
            f"trainer.batch_size={batch}", f"trainer.epochs={repeats + 2}", "logger._target_=__main__.HandOver",
            f"output_dir={folder}", "verbose=false", "trainer.device=cpu", f"trainer.compile={compiled}", *words,
        ])  # fmt: skip
        values, labels = torch.from_numpy(x[: len(x) * 4 // 5]), torch.from_numpy(y[: len(y) * 4 // 5])
        model = build(cfg, "backbone", num_outputs=classes + experts, image_shape=(width,))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=5e-4, fused=True)

        def bare() -> None:
            for index in torch.randperm(len(values)).split(batch)[:-1]:
                loss = F.cross_entropy(model(values[index].float()), labels[index])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()

        HandOver.other = bare
        with redirect_stdout(io.StringIO()):
            run(cfg)
    pairs = HandOver.pairs[1:-1]
    name = f"training on {count:,} {dtype} vectors of {width}, mapped from a file, J=20 / bare loop on the same tensor"
    ratios = [other / own for own, other in pairs]
    return Row(f"{name}, trainer.compile=true", ratios) if compiled else Row(name, ratios, ">= 0.85")


def evaluation(steps: int, num_experts: int) -> tuple[Callable[[], object], Bare]:
    """Scores of a test set and all metrics of them, and the bare loop with the same network."""
    cfg = config("unused", *MLP, *sizes(1, steps), f"experts.num={num_experts}", "experts.wrap=true")
    task = load_task(cfg)
    system = load_system(cfg, task)
    place = Place().take(system, cfg.trainer)
    loader = evaluation_loaders(cfg, system, task, place)["test"]
    bare = Bare(system.backbone, place.layout, 0, steps)
    return lambda: evaluate(cfg, system, {"test": predict(system, loader)}, Known.of(task)), bare


def evaluation_share(repeats: int) -> Row:
    """An evaluation against the bare forward passes."""
    ours, bare = evaluation(80, J)
    pairs = alternated(ours, bare.test, repeats)
    return Row("evaluation, MLP 3072-64, J=20 / bare forward passes", [b / a for a, b in pairs], ">= 0.85")


def evaluation_of_many_experts(repeats: int) -> Row:
    """An evaluation, forward passes and all, of 1,000 experts against one of 20."""
    (many, _), (few, _) = evaluation(40, 1000), evaluation(40, J)
    pairs, most = alternated(many, few, repeats), f"<= {(K + 1000) / (K + J):.2f}"
    return Row("evaluation, MLP 3072-64, J=1000 / J=20", [a / b for a, b in pairs], most)


def underfitting_share(repeats: int) -> Row:
    """What evaluation=full adds to every epoch of the embedded default, in percent of the epoch's steps."""
    cfg = compose([])
    task = load_task(cfg)
    system = load_system(cfg, task)
    place = Place().take(system, cfg.trainer)
    loader = Loader(task.train, place, cfg.trainer.batch_size, cfg.seed, train=True)
    optimizer = build(cfg, "optim", params=system.parameters(), fused=True)
    stage = system.stages()[0]
    probe = Batch(*(part[:PROBE_SIZE] for part in next(loader.epoch())))

    def steps() -> None:
        system.train()
        for batch in loader.epoch(1):
            value = stage.loss(system(batch.inputs), batch)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()

    def look() -> None:
        system.underfitting(forward(system, probe.inputs, place), probe.labels, probe.answers)

    pairs = alternated(look, steps, repeats)
    return Row("underfitting, looked at every epoch / its 31 steps", [100 * a / b for a, b in pairs], "<= 2", unit=" %")


def late_epochs(repeats: int) -> Row:
    """A run of 5,000 epochs of one step each: the time of an epoch at the end against that at the beginning."""
    epochs, part = 5000, 500
    ratios = []
    for _ in range(repeats):
        first, last = _first_and_last_epochs(epochs, part)
        ratios.append(last / first)
    return Row(
        f"an epoch of one step, after {epochs:,} of them / after {part}", ratios, "<= 1.2", f"{1e3 * last:.2f} ms"
    )


def _first_and_last_epochs(epochs: int, part: int) -> tuple[float, float]:
    """Seconds of an epoch: the medians of the second and of the last `part` epochs."""
    words = ("dataset.num_train=128", "dataset.num_test=128", "trainer.batch_size=128", f"trainer.epochs={epochs}")
    HandOver.other = lambda: None
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        run(compose([*words, "logger._target_=__main__.HandOver", f"output_dir={folder}", "trainer.device=cpu"]))
    taken = [own for own, _ in HandOver.pairs]
    first, last = taken[part : 2 * part], taken[-part - 1 : -1]  # neither the start nor the final evaluation
    return statistics.median(first), statistics.median(last)


def checkpoint_share(repeats: int) -> Row:
    """The pause for a checkpoint of the largest of the paper's models, in percent of the interval between two."""
    cfg = config("unused", *sizes(1, 1), "backbone=resnet18")
    model = build(cfg, "backbone", num_outputs=1000 + J, image_shape=(3, 224, 224))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    state = {"system": model.state_dict(), "optimizer": optimizer.state_dict()}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        checkpoints = Checkpoints(Path(folder), fingerprint="0")
        taken = [seconds(lambda: checkpoints.save(state)) for _ in range(repeats)]
    interval = 60 * cfg.trainer.checkpoint_minutes
    note = f"{sorted(taken)[len(taken) // 2]:.2f} s every {interval:.0f} s"
    return Row("checkpoint of ResNet-18 / default interval", [100 * t / interval for t in taken], "<= 2", note, " %")


# ru_maxrss is inherited across fork, so read VmHWM.
PEAK = """
import sys
sys.path.insert(0, {here!r})
{code}
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
OURS = "import __main__, train; __main__.random_images = train.random_images; train.run(train.config({folder!r}, *{words!r}))"
THEIRS = """
import timm, torch
import l2d.models.registry
import l2d.models.wide_resnet
from train import BATCH, Bare, J, K
bare = Bare(timm.create_model("wrn28", num_classes=K + J, depth=16, width=2), torch.channels_last, 4, 4)
bare.train(); bare.test()
"""


def peak_memory(repeats: int) -> Row:
    """A run that keeps 50,000 + 10,000 images, against those bytes and the bare loop in a process of its own.

    It trains on a tenth of them: enough steps for the peak.
    """
    dataset = 60_000 * 3 * 32 * 32
    sized = ("+dataset.num_train=5000", "+dataset.beside=45000", "+dataset.num_test=10000")
    pairs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            words = (*WRN, *sized, "trainer.epochs=1")
            here = str(Path(__file__).parent)
            pairs.append(
                [_peak(PEAK.format(here=here, code=code.format(folder=folder, words=words))) for code in (OURS, THEIRS)]
            )
    note = f"{pairs[0][0] / 1e6:,.0f} MB of {dataset / 1e6:,.0f} + {pairs[0][1] / 1e6:,.0f} MB"
    ratios = [ours / (dataset + theirs) for ours, theirs in pairs]
    return Row("peak memory, resident CIFAR-100 / dataset + bare loop", ratios, "<= 1.15", note)


def _peak(code: str) -> int:
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return 1024 * int(out.splitlines()[-1])


def measure(repeats: int) -> Iterator[Row]:
    yield share_of_bare("training, WRN-16-2 / bare loop", ">= 0.97", WRN, 8, 0, 3 * repeats)
    yield share_of_bare("training and evaluation every epoch, WRN-16-2 / bare loop", ">= 0.95", WRN, 8, 4, 3 * repeats)
    yield share_of_bare("training, MLP 3072-64, J=20 / bare loop", ">= 0.80", MLP, 390, 0, 2 * repeats)
    words = (*MLP, "trainer.compile=true")
    yield share_of_bare("the same, trainer.compile=true / bare loop, not compiled", "", words, 390, 0, 2 * repeats)
    yield share_of_bare_on_vectors(1_000_000, 128, "float32", MLP, repeats)
    yield share_of_bare_on_vectors(1_000_000, 128, "float32", MLP, repeats, compiled=True)
    yield share_of_bare_on_vectors(50_000, 768, "float16", (), 2 * repeats)
    yield evaluation_share(10 * repeats)
    yield evaluation_of_many_experts(3 * repeats)
    yield underfitting_share(20 * repeats)
    yield late_epochs(min(repeats, 3))
    yield checkpoint_share(repeats)
    yield peak_memory(min(repeats, 3))


if __name__ == "__main__":
    main(measure, __doc__)
