"""`l2d report` and `l2d status` of thousands of runs: seconds, memory and the size of the page, and how they grow.

One small run is trained; the others are its folder with another loss, number of experts and seed written into it.
"""

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from measure import Row, main

LOSSES = ("ce", "picce_ce", "ova", "picce_ova")
COUNTS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20)
FEW, MANY = 500, 2000


def train_one(folder: Path) -> Path:
    """A finished run of the embedded default's size with 15 epochs of metrics."""
    words = ["l2d", "train", "dataset.num_train=512", "dataset.num_test=512", "experts.num=20", "trainer.eval_every=1"]
    subprocess.run([*words, f"output_dir={folder}", "verbose=false"], check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*/*/result.json")).parent


def copies(run: Path, folder: Path, count: int) -> None:
    """`count` finished runs below a folder: losses x numbers of experts x seeds."""
    result, config = json.loads((run / "result.json").read_text()), yaml.safe_load((run / "config.yaml").read_text())
    seeds = range(count // (len(LOSSES) * len(COUNTS)))
    rng = random.Random(0)
    for loss, experts, seed in itertools.product(LOSSES, COUNTS, seeds):
        formulation, base = ("picce", loss[6:]) if loss.startswith("picce") else ("vanilla", loss)
        place = folder / "synthetic" / f"{loss}-J{experts}-seed{seed}"
        place.mkdir(parents=True)
        config["loss"] |= {"name": loss, "formulation": formulation, "base": base}
        config["experts"]["num"], config["seed"] = experts, seed
        chosen = {"loss": loss, "formulation": formulation, "base": base, "num_experts": experts, "seed": seed}
        metrics = {**result["metrics"], "system_error": 20 + 5 * rng.random(), "coverage": 60 + 20 * rng.random()}
        changed = {
            **result,
            "choices": {**result["choices"], **chosen},
            "experts": result["experts"][:experts],
            "metrics": metrics,
            "seed": seed,
            "fingerprint": f"{rng.getrandbits(32):08x}",
        }
        (place / "result.json").write_text(json.dumps(changed))
        (place / "config.yaml").write_text(yaml.safe_dump(config))
        shutil.copy(run / "metrics.csv", place)


def cost(*words: str) -> tuple[float, float]:
    """Seconds and peak memory in MB of a command."""
    started = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "l2d", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    assert status == 0, words
    return time.perf_counter() - started, used.ru_maxrss / 1024


def measure(repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        run = train_one(Path(scratch, "one"))
        folders = {count: Path(scratch, str(count)) for count in (FEW, MANY)}
        for count, folder in folders.items():
            copies(run, folder, count)
        out = Path(scratch, "report")
        for name, more in (("status", ()), ("report", ("--out", str(out)))):
            few, many = ([cost(name, str(folders[n]), *more) for _ in range(min(repeats, 3))] for n in (FEW, MANY))
            target = "<= 60" if name == "report" else ""
            yield Row(f"l2d {name} of {MANY:,} runs", [seconds for seconds, _ in many], target, unit=" s")
            growth = [b[0] / a[0] for a, b in zip(few, many, strict=True)]
            yield Row(f"l2d {name} of {MANY:,} runs / of {FEW}", growth, f"<= {MANY / FEW:g}")
            yield Row(
                f"l2d {name} of {MANY:,} runs, peak memory", [memory for _, memory in many], "<= 1000", unit=" MB"
            )
        page = (out / "index.html").stat().st_size / 1e6
        yield Row(f"page of {MANY:,} runs", [page], "<= 10", unit=" MB")


if __name__ == "__main__":
    main(measure, __doc__)
