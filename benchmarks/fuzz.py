"""Hostile input: random command lines, damaged folders and signals must end in a result, or in one sentence with exit code 2.

Never in a traceback, a hang, a wrong number, or a folder that is neither absent nor whole. Case i of a seed is always the
same, so `scripts/fuzz --seed 0 --start 17 --commands 1 --verbose` repeats one.
"""

import argparse
import gc
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fuzz_commands
import fuzz_folders
import fuzz_signals
from fuzz_case import Ended

FULL = {"commands": 2000, "folders": 500, "signals": 100}
Case = Callable[[random.Random, Path], tuple[str | None, list[Ended], list[str]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind, count in FULL.items():
        parser.add_argument(f"--{kind}", type=int, metavar="N", help=f"cases of this kind ({count} if none is given)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument(
        "--launcher", choices=fuzz_signals.LAUNCHERS, default="basic", help="of the sweeps that get signals"
    )
    parser.add_argument("--verbose", action="store_true", help="print every case and what came of it")
    options = parser.parse_args()
    given = {kind: getattr(options, kind) for kind in FULL}
    counts = FULL if not any(given.values()) else {kind: count or 0 for kind, count in given.items()}
    bad = 0
    with tempfile.TemporaryDirectory(prefix="l2d-fuzz-") as scratch:
        os.environ |= {"HOME": scratch, "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
        for kind, count in counts.items():
            if count:
                case = make(kind, options.launcher, Path(scratch))
                gc.freeze()  # a child need not look through all of torch for what to collect
                bad += repeat(kind, case, range(options.start, options.start + count), options, Path(scratch))
    sys.exit(1 if bad else 0)


def make(kind: str, launcher: str, scratch: Path) -> Case:
    """What runs a case of this kind; what the cases share is made first."""
    if kind == "commands":
        grammar, finished = fuzz_commands.Grammar(), fuzz_commands.make_finished(scratch)
        return lambda rng, folder: fuzz_commands.run_case(grammar, rng, folder, finished)
    if kind == "folders":
        good = fuzz_folders.make_good(scratch)
        return lambda rng, folder: fuzz_folders.run_case(good, rng, folder)
    reference = fuzz_signals.Reference(scratch, launcher)
    return lambda rng, folder: fuzz_signals.run_case(reference, rng, folder)


def repeat(kind: str, case: Case, numbers: range, options: argparse.Namespace, scratch: Path) -> int:
    """Run the cases, print those that went wrong and a summary; return how many did."""
    began, outcomes, bad = time.monotonic(), Counter[str](), 0
    for number in numbers:
        folder = scratch / str(number)
        wrong, ends, what = case(random.Random(f"{options.seed} {kind} {number}"), folder)
        bad += bool(wrong)
        for end in ends:
            outcomes["stopped" if end.stopped else {0: "a result", 2: "a sentence"}.get(end.code, "neither")] += 1
        if wrong or options.verbose:
            text = "\n".join([f"{kind} {number}: {wrong or 'good'}: {what}", *(end.stderr[-3000:] for end in ends)])
            print(text.encode("utf-8", "backslashreplace").decode(), flush=True)
        shutil.rmtree(folder)
    ended = ", ".join(f"{count} ended in {kind}" for kind, count in outcomes.items())
    seconds = time.monotonic() - began
    print(
        f"seed {options.seed}: {len(numbers)} {kind} in {seconds:.0f} s: of the runs {ended}; {bad} violations",
        flush=True,
    )
    return bad


if __name__ == "__main__":
    main()
