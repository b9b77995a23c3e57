"""How long one waits for a command that does not train: whole processes, turn by turn with the imports they cannot avoid."""

import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import Row, alternated, main, python, seconds

HYDRA = "import hydra, omegaconf"
SMALL = ("dataset.num_train=128", "dataset.num_test=128", "trainer.epochs=1", "verbose=false")
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
    grid = ("loss=ce,picce_ce,pice_ce,ova,picce_ova", "experts.num=1,2,4,8", "seed=0,1,2")
    words = ["l2d", "train", "-m", *SMALL, *grid, f"output_dir={folder}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    assert len(list(folder.glob("*/*/result.json"))) == 60


def against(name: str, target: str, ours: Callable, theirs: Callable, repeats: int) -> Row:
    pairs = alternated(ours, theirs, repeats)
    first, second = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Row(name, [a / b for a, b in pairs], target, f"{first:.2f} and {second:.2f} s")


def measure(repeats: int) -> Iterator[Row]:
    hydra, nothing = python(HYDRA), python("pass")
    for words, target in (("--help", "<= 0.3"), ("train --help", "<= 0.3")):
        times = [seconds(command("l2d", *words.split())) for _ in range(repeats)]
        yield Row(f"l2d {words}", times, target, unit=" s")
    pairs = alternated(python("import l2d"), nothing, repeats)
    yield Row("import l2d, beyond an empty Python", [a - b for a, b in pairs], "<= 0.2", unit=" s")
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch, "outputs")
        sixty_runs(runs)
        finished = ["train", *SMALL, f"output_dir={runs}", "loss=ce", "experts.num=4"]
        python(NO_TORCH.format(words=finished, module="l2d.cli"))()  # fails if torch is imported
        times = [seconds(command("l2d", *finished)) for _ in range(repeats)]
        yield Row("l2d train of a finished run", times, "<= 1", "without torch", " s")
        grid = ["loss=ce,ova,picce_ce,picce_ova,decoupled", "experts.num=1,2,4,8,16", "seed=range(20)", "plan=true"]
        times = [seconds(command("l2d", "train", "-m", *grid, f"output_dir={scratch}")) for _ in range(min(repeats, 3))]
        yield Row("plan=true of 500 cells", times, "<= 10", unit=" s")
        for name, module in (("status", "l2d.status"), ("report", "l2d.report.cli")):
            words = [str(runs)] + (["--out", str(Path(scratch, "report"))] if name == "report" else [])
            python(NO_TORCH.format(words=words, module=module))()
            ours = command("l2d", name, *words)
            yield against(f"l2d {name} of 60 runs / import hydra, omegaconf", "", ours, hydra, repeats)


if __name__ == "__main__":
    main(measure, __doc__)
