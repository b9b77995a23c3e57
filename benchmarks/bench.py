"""`l2d bench quick` as a user runs it: minutes, and the share of it that is training steps."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from finished import step_seconds
from measure import Row, main, seconds


def measure(repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["l2d", "bench", f"output_dir={folder}/runs", "--out", f"{folder}/report"]
        minutes = seconds(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL)) / 60
        runs = [file.parent for file in Path(folder, "runs").glob("*/*/result.json")]
        share = sum(map(step_seconds, runs)) / (60 * minutes * (os.cpu_count() or 1))
    yield Row("l2d bench quick", [minutes], "<= 5", f"{len(runs)} runs", " min")
    yield Row("training steps, of the time of all cores", [100 * share], unit=" %")


if __name__ == "__main__":
    main(measure, __doc__)
