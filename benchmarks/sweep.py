"""What a multirun adds: a grid of 12 cells of the embedded default in one process, against 12 times one cell."""

import json
import subprocess
import tempfile
from pathlib import Path

from finished import step_seconds
from measure import Row, main, seconds

GRID = ("-m", "loss=ce,picce_ce,ova,picce_ova", "experts.num=1,4,8")


def train(folder: str, *words: str) -> float:
    """Seconds of the whole command, as a user waits for it."""
    command = ["l2d", "train", *words, f"output_dir={folder}"]
    return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def cells(folder: str) -> list[Path]:
    return sorted(path.parent for path in Path(folder).glob("*/*/result.json"))


def reported(folder: str) -> float:
    """Seconds that the cells below a folder say they took, from data to result."""
    return sum(json.loads((cell / "result.json").read_text())["seconds"] for cell in cells(folder))


def measure(repeats: int) -> list[Row]:
    alone, further, strict, added, commands = [], [], [], [], []
    for _ in range(min(repeats, 3)):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as grid:
            command = train(one, "-m")
            sweep = train(grid, *GRID)
            assert (len(cells(one)), len(cells(grid))) == (1, 12)
            alone.append(sweep / (12 * reported(one)))
            further.append((sweep - command) / (reported(grid) - reported(one)))
            strict.append(sweep / sum(map(step_seconds, cells(grid))))
            steps = sum(map(step_seconds, cells(grid))) - sum(map(step_seconds, cells(one)))
            added.append((sweep - command) / steps)
            commands.append(sweep / (12 * command))
    return [
        Row(
            "12-cell multirun / 12 x the time that one cell alone reports",
            alone,
            "<= 1.10",
            "the multirun with the start of its process",
        ),
        Row("its 11 further cells / the time that they report", further, "", "what the sweep adds to a cell"),
        Row("12-cell multirun / the steps of its 12 cells alone", strict, "", "no start, no evaluation, no files"),
        Row("its 11 further cells / their steps alone", added, "<= 1.10", "composing, data, evaluation, files"),
        Row("12-cell multirun / 12 commands", commands),
    ]


if __name__ == "__main__":
    main(measure, __doc__)
