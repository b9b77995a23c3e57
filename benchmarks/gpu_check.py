"""What only a GPU can show, as a table to paste into a bug report; where there is none, the CPU takes its place.

Every check is `l2d train` in processes of its own, on tiny data. The exit code is 1 if one fails.
"""

import argparse
import csv
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import releases
import torch
import torch.nn.functional as F

from l2d.config import build
from l2d.place import Place, Ranks
from l2d.tracking.run_folder import environment

Check = Callable[[], str]  # returns a note; raises Failed or Skipped
NET = ("backbone=wrn28", "backbone.depth=10", "backbone.width=1")
SMALL = ("dataset.size=32", "dataset.resize=40", "experts.num=2")
TREE = (
    "dataset=folder",
    "dataset.root=tree",
    *SMALL,
    *NET,
    "experts=specialist",
    "dataset.groups={specialty:[cat,dog]}",
)
OLDER_BF16 = {
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"
}  # some CPUs announce a newer bf16 that their machine does not have
MINUTE, LIMIT_S = 60, 600
LOWEST_SHARE = 0.7  # of the bare loop's images per second


class Failed(Exception):
    """The check did not pass, for this reason."""


class Skipped(Exception):
    """The check cannot be made here, for this reason."""


class Bench:
    """Runs `l2d train` on one device, in a scratch folder."""

    def __init__(self, device: str, folder: Path):
        self.device, self.folder, self.number = device, folder, 0
        self.gpu = device == "cuda"
        self.started: list[subprocess.Popen] = []

    def command(self, *words: str) -> list[str]:
        common = ("trainer.epochs=2", "trainer.batch_size=4", f"trainer.device={self.device}", "verbose=false")
        return [sys.executable, "-m", "l2d", "train", *common, *words]

    def start(self, command: list[str], **environment: str) -> subprocess.Popen:
        own = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{Path(__file__).parent}", **environment}
        self.started.append(
            subprocess.Popen(
                command, cwd=self.folder, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        )
        return self.started[-1]

    def stop_all(self) -> None:
        for process in self.started:
            process.kill()  # does nothing to one that has ended

    def finish(self, *running: subprocess.Popen) -> None:
        """Wait for processes that must all succeed."""
        for process in running:
            said = process.communicate(timeout=LIMIT_S)[1]
            if process.returncode:
                raise Failed(f"exit code {process.returncode}: {(said.strip().splitlines() or ['no message'])[-1]}")

    def fresh(self) -> str:
        self.number += 1
        return f"outputs{self.number}"

    def train(self, *words: str, **environment: str) -> Path:
        """The folder of a run that must finish."""
        output = self.fresh()
        self.finish(self.start(self.command(*words, f"output_dir={output}"), **environment))
        return self.run_in(output)

    def run_in(self, output: str) -> Path:
        found = list((self.folder / output).glob("*/*/result.json"))
        if len(found) != 1 or json.loads(found[0].read_text())["status"] != "finished":
            raise Failed(f"{len(found)} results instead of one that is finished")
        return found[0].parent

    def ranks(self, command: list[str]) -> list[subprocess.Popen]:
        """Two processes that know each other as torchrun's do."""
        if self.gpu and torch.cuda.device_count() < 2:
            raise Skipped("needs two GPUs")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        return [self.start(command, RANK=str(rank), LOCAL_RANK=str(rank), **meeting) for rank in range(2)]

    def wait_for_checkpoint(self, output: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not list((self.folder / output).glob("*/*/checkpoint.previous.pt")):
            if time.monotonic() > deadline:
                raise Failed("no checkpoint was written")
            time.sleep(0.01)


def checks(bench: Bench) -> Iterator[tuple[str, Check]]:
    """Name and check, in the order of the table."""
    for name, words in datasets().items():
        yield f"dataset {name}", lambda words=words: metrics_of(bench.train(*words))
    half = {} if bench.gpu else OLDER_BF16
    for precision in ("bf16", "fp16"):
        yield (
            f"precision {precision}",
            lambda p=precision: metrics_of(
                bench.train(*TREE, f"trainer.precision={p}", "trainer.clip_grad=1.0", **half)
            ),
        )
    small = (
        TREE if bench.gpu else ("dataset.num_train=64", "dataset.num_test=32")
    )  # on a CPU a convolution compiles for minutes
    yield "compile", lambda: metrics_of(bench.train(*small, "trainer.compile=true"))
    yield "compile, CUDA graphs", lambda: metrics_of(bench.train(*small, "trainer.compile=reduce-overhead"))
    yield "weights read back", lambda: read_back(bench)
    for backbone in ("wrn28", "resnet18", "mobilenet_v2"):
        yield f"deterministic twice, {backbone}", lambda b=backbone: twice(bench, b)
    yield "resume after SIGKILL", lambda: resumed(bench)
    yield "two ranks", lambda: two_ranks(bench)
    yield "two ranks, one killed", lambda: one_killed(bench)
    yield "images/s against a bare loop", lambda: throughput(bench)


def datasets() -> dict[str, tuple[str, ...]]:
    """Every kind of dataset on its way to the device: bytes or floats in memory, files streamed by workers or in the process."""
    images = {name: (f"dataset={name}", f"dataset.root={name}", *SMALL) for name in ("micebone", "chaoyang")}
    return {
        "synthetic": ("dataset.num_train=64", "dataset.num_test=32"),
        "cifar100": ("dataset=cifar100", "dataset.root=cifar100", "dataset.verify=false", *NET),
        "micebone, resident": (*images["micebone"], "dataset.feed=resident"),
        "chaoyang, streamed": (*images["chaoyang"], "dataset.feed=stream", "dataset.workers=1"),
        "folder, resident, crop and flip": (*TREE, "dataset.augment=crop_flip"),
        "folder, streamed by 2 workers": (*TREE, "dataset.feed=stream", "dataset.workers=2"),
        "imagenet_dogs, streamed by 2 workers": (
            "dataset=imagenet_dogs", "dataset.root=imagenet", "dataset.workers=2", *SMALL, "experts.classes_per_expert=1",
        ),
    }  # fmt: skip


def write_data(folder: Path) -> None:
    for name in ("cifar100", "micebone", "chaoyang", "imagenet", "tree"):
        (folder / name).mkdir()
    releases.write_cifar100(folder / "cifar100", releases.cifar100_parts())
    releases.write_micebone(folder / "micebone")
    releases.write_chaoyang(folder / "chaoyang")
    releases.write_imagenet(folder / "imagenet")
    releases.write_tree(folder / "tree", train=16, test=4)


def metrics_of(run: Path) -> str:
    result = json.loads((run / "result.json").read_text())
    memory = result["peak_memory_mb"]
    return f"system error {result['metrics']['system_error']:.2f}" + (f", {memory:.0f} MB" if memory else "")


def read_back(bench: Bench) -> str:
    """The weights alone, evaluated on the device, give the metrics of the run."""
    run = bench.train(*TREE)
    command = [sys.executable, "-m", "l2d", "evaluate", str(run / "model.safetensors"), "out=again.json"]
    bench.finish(bench.start(command))
    again, first = (json.loads(p.read_text()) for p in (bench.folder / "again.json", run / "result.json"))
    if again["metrics"] != first["metrics"]:
        raise Failed("l2d evaluate finds other metrics")
    return "the same metrics"


def twice(bench: Bench, backbone: str) -> str:
    chosen = TREE if backbone == "wrn28" else (*(word for word in TREE if word not in NET), f"backbone={backbone}")
    words = (*chosen, "trainer.deterministic=true")
    compare(bench.train(*words), bench.train(*words))
    return "bit-identical"


def compare(one: Path, other: Path) -> None:
    """Weights and rows of metrics.csv must be the same, up to the time taken."""
    if (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes():
        raise Failed("the weights differ")
    rows = [
        [
            {k: v for k, v in row.items() if k != "images_per_second"}
            for row in csv.DictReader((run / "metrics.csv").open())
        ]
        for run in (one, other)
    ]
    if rows[0] != rows[1]:
        raise Failed("metrics.csv differs")


def resumed(bench: Bench) -> str:
    words = (*TREE, "trainer.deterministic=true", "trainer.epochs=30", "trainer.eval_every=1")
    undisturbed, output = bench.train(*words), bench.fresh()
    command = bench.command(*words, "trainer.checkpoint_minutes=0", f"output_dir={output}")
    running = bench.start(command)
    bench.wait_for_checkpoint(output)
    running.kill()
    if running.wait() != -signal.SIGKILL:
        raise Failed("it was over before it could be killed")
    bench.finish(bench.start(command))
    compare(undisturbed, bench.run_in(output))
    return "bit-identical"


def two_ranks(bench: Bench) -> str:
    output = bench.fresh()
    bench.finish(*bench.ranks(bench.command(*TREE, f"output_dir={output}")))
    return metrics_of(bench.run_in(output)) + (", NCCL" if bench.gpu else ", gloo")


def one_killed(bench: Bench) -> str:
    """The other must notice, say so and leave its checkpoint, from which the run continues."""
    output = bench.fresh()
    command = bench.command(*TREE, "trainer.epochs=300", "trainer.checkpoint_minutes=0", f"output_dir={output}")
    survivor, killed = bench.ranks(command)
    bench.wait_for_checkpoint(output)
    killed.kill()
    began = time.monotonic()
    killed.communicate()
    said, seconds = survivor.communicate(timeout=LIMIT_S)[1], time.monotonic() - began
    if survivor.returncode in (0, None) or seconds > MINUTE:
        raise Failed(f"exit code {survivor.returncode} after {seconds:.0f} s")
    told = "its reason" if "process 1 of 2 ended" in said else "another message"
    return f"noticed after {seconds:.0f} s, exit code {survivor.returncode}, {told}"


def throughput(bench: Bench) -> str:
    """Images per second of the last epoch of l2d, and of forward, cross-entropy, backward and step on batches that lie ready."""
    from train import BATCH, J, K

    width, steps = (4, 100) if bench.gpu else (1, 6)
    run = bench.train(
        "dataset=cifar100", "dataset._target_=train.random_images", "~dataset.root", "~dataset.download", "~dataset.verify",
        f"+dataset.num_train={steps * BATCH}", f"+dataset.num_test={BATCH}", f"experts.num={J}", "loss=picce_ce",
        "backbone.depth=16", f"backbone.width={width}", f"trainer.batch_size={BATCH}", "trainer.epochs=4",
    )  # fmt: skip
    ours = max(float(row["images_per_second"]) for row in csv.DictReader((run / "metrics.csv").open()))
    place = Place.choose(bench.device, "auto", Ranks.alone())
    cfg = compose_backbone(width)
    model = build(cfg, "backbone", num_outputs=K + J, image_shape=(3, 32, 32))
    place = place.take(model, cfg.trainer)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True)
    images = torch.randn(BATCH, 3, 32, 32, device=place.device).contiguous(memory_format=place.layout)
    labels = torch.randint(K, (BATCH,), device=place.device)

    def bare() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            with place.autocast():
                loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        loss.item()
        return steps * BATCH / (time.perf_counter() - began)

    theirs = max(bare() for _ in range(4))
    note = f"{ours:,.0f} of {theirs:,.0f} images/s: {ours / theirs:.2f}"
    if ours < LOWEST_SHARE * theirs:
        raise Failed(f"{note}, below {LOWEST_SHARE}")
    return note


def compose_backbone(width: int):
    from l2d.compose import compose

    return compose(["backbone=wrn28", "backbone.depth=16", f"backbone.width={width}"])


def facts(device: str) -> dict[str, str]:
    """What a bug report needs to say."""
    known = environment()
    shown = {name: known["versions"].get(name, "?") for name in ("l2d", "python", "torch", "torchvision", "timm")}
    shown |= {"commit": str(known["git_commit"]), "system": platform.platform()}
    if device == "cuda":
        names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
        shown |= {
            "GPUs": ", ".join(names),
            "CUDA": str(torch.version.cuda),
            "cuDNN": str(torch.backends.cudnn.version()),
        }
        shown["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    else:
        shown["device"] = f"CPU in place of a GPU, {os.cpu_count()} cores"
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", metavar="WORD", help="only checks whose name contains this")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here; use --device cpu")
    bench = Bench(options.device, Path())
    chosen = [(name, check) for name, check in checks(bench) if options.only in name]
    if not chosen:
        parser.error(f"--only {options.only}: no check has this in its name")
    failed, began = 0, time.monotonic()
    print("| | |\n|---|---|")
    print("\n".join(f"| {name} | {value} |" for name, value in facts(options.device).items()))
    print("\n| check | result | seconds | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="l2d-gpu-check-") as scratch:
        write_data(Path(scratch))
        os.environ |= {"XDG_CACHE_HOME": str(Path(scratch, "cache")), "WANDB_MODE": "disabled"}
        bench.folder = Path(scratch)
        for name, check in chosen:
            started = time.monotonic()
            try:
                result, note = "passed", check()
            except Skipped as reason:
                result, note = "skipped", str(reason)
            except (Failed, subprocess.TimeoutExpired) as reason:
                result, note, failed = "**failed**", str(reason).replace("|", "/"), failed + 1
            finally:
                bench.stop_all()
            print(f"| {name} | {result} | {time.monotonic() - started:.0f} | {note} |", flush=True)
    print(f"\n{failed} failed, {(time.monotonic() - began) / 60:.1f} min")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
