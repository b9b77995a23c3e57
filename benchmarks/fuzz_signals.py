"""Signals at random moments of sweeps: the same command afterwards completes them, with the results of one undisturbed."""

import csv
import io
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from fuzz_case import Ended, bad_output, run, start, wait

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL]
LAUNCHERS = {"basic": [], "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]}
GRID = [
    "train", "-m", "seed=0,1", "loss=ce,picce_ova", "dataset.num_train=512", "dataset.num_test=64", "trainer.epochs=20",
    "trainer.checkpoint_epochs=2", "output_dir=outputs",
]  # fmt: skip
SECONDS = 300  # for a whole sweep
GONE = 60  # seconds within which the processes of a stopped sweep must have ended
TIMES = {"seconds", "attempts", "peak_memory_mb", "images_per_second"}  # differ between two runs of the same setting


class Reference:
    """An undisturbed sweep with a launcher: its results, and how long it took."""

    def __init__(self, scratch: Path, launcher: str):
        folder = scratch / f"undisturbed-{launcher}"
        (folder / "here").mkdir(parents=True)
        self.words = [*GRID, *LAUNCHERS[launcher]]
        began = time.monotonic()
        end = run(self.words, folder, SECONDS)
        self.seconds = time.monotonic() - began
        assert end.code == 0, end
        self.results = results(folder)


def run_case(reference: Reference, rng: random.Random, folder: Path) -> tuple[str | None, list[Ended], list[str]]:
    """What a sweep that got one to three signals did that none may do, how it ended, and the signals."""
    (folder / "here").mkdir(parents=True)
    done: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        signum, moment, all_of_it = rng.choice(SIGNALS), rng.random() * reference.seconds, rng.random() < 0.5
        for name in ("stdout", "stderr"):
            (folder / name).unlink(missing_ok=True)
        child = start(reference.words, folder)
        wait(child, GONE, until=(folder / "stderr").exists)
        wait(child, 0.1 + moment)  # what comes before is the fuzzer's own
        done.append(f"{signum.name} to the {'group' if all_of_it else 'parent'} after {moment:.2f} s")
        (os.killpg if all_of_it else os.kill)(child, signum)
        hangs = not wait(child, GONE)
        if hangs:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = [(folder / name).read_text(errors="surrogateescape") for name in ("stdout", "stderr")]
        end = Ended(code, True, *said)
        wrong = "hangs after the signal" if hangs else bad_output(end) or orphans(child)
        if not wrong and code not in (0, -signum, 128 + signum):
            wrong = f"ends with exit code {code}"
        if wrong:
            return wrong, [end], done
    end = run(reference.words, folder, SECONDS)
    if wrong := bad_output(end) or orphans(None):
        return wrong, [end], done
    if end.code != 0:
        return f"the same command ends with exit code {end.code}", [end], done
    found = results(folder)
    different = [name for name in reference.results | found if reference.results.get(name) != found.get(name)]
    left = [path.name for path in folder.rglob("*tmp")]
    return (f"differs in {different} or leaves {left}" if different or left else None), [end], done


def orphans(group: int | None) -> str | None:
    """What is left of a process group a minute after its leader ended; it is killed."""
    deadline = time.monotonic() + GONE
    while group and time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return None
        time.sleep(0.05)
    if group:
        os.killpg(group, signal.SIGKILL)
        return "leaves processes behind"
    return None


def results(folder: Path) -> dict[str, Any]:
    """The results of every cell without the times: weights and outcome byte for byte, metrics, result."""
    found: dict[str, Any] = {}
    outputs = folder / "here" / "outputs"
    for path in sorted(outputs.rglob("*")):
        name = str(path.relative_to(outputs))
        if path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.name == "metrics.csv":
            rows = csv.DictReader(io.StringIO(path.read_text()))
            found[name] = [{key: row[key] for key in row if key not in TIMES} for row in rows]
        elif path.name == "result.json":
            result = json.loads(path.read_text())
            found[name] = {key: value for key, value in result.items() if key not in TIMES}
        elif path.name.startswith("checkpoint"):
            found[name] = "left behind"
    return found
