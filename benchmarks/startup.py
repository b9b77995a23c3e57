"""How long one waits for a command that does not train: whole processes, turn by turn with the imports they cannot avoid."""

import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import Row, alternated, main, python

HYDRA = "import hydra, omegaconf"
NO_TORCH = """
import sys
from {module} import main
try:
    main({words!r})
except SystemExit as stop:
    assert not stop.code, stop.code
assert "torch" not in sys.modules
"""


def command(*words: str) -> Callable[[], object]:
    return lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def sixty_runs(folder: Path) -> None:
    """Five losses, four numbers of experts and three seeds, as small as they can be."""
    small = ("dataset.num_train=128", "dataset.num_test=128", "trainer.epochs=1", "verbose=false")
    grid = ("loss=ce,picce_ce,pice_ce,ova,picce_ova", "experts.num=1,2,4,8", "seed=0,1,2")
    words = ["l2d", "train", "-m", *small, *grid, f"output_dir={folder}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    assert len(list(folder.glob("*/*/result.json"))) == 60


def against(name: str, target: str, ours: Callable, theirs: Callable, repeats: int) -> Row:
    pairs = alternated(ours, theirs, repeats)
    first, second = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Row(name, [a / b for a, b in pairs], target, f"{first:.2f} and {second:.2f} s")


def measure(repeats: int) -> list[Row]:
    hydra, nothing = python(HYDRA), python("pass")
    rows = [
        against(
            "l2d train --help / import hydra, omegaconf", "<= 1.5", command("l2d", "train", "--help"), hydra, repeats
        )
    ]
    pairs = alternated(python("import l2d"), nothing, repeats)
    rows.append(Row("import l2d, beyond an empty Python", [a - b for a, b in pairs], "<= 0.2", unit=" s"))
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch, "outputs")
        sixty_runs(runs)
        for name, module in (("status", "l2d.status"), ("report", "l2d.report.cli")):
            words = [str(runs)] + (["--out", str(Path(scratch, "report"))] if name == "report" else [])
            python(NO_TORCH.format(words=words, module=module))()  # fails if torch is imported
            ours = command("l2d", name, *words)
            rows.append(against(f"l2d {name} of 60 runs / import hydra, omegaconf", "", ours, hydra, repeats))
    return rows


if __name__ == "__main__":
    main(measure, __doc__)
