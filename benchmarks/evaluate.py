"""`l2d evaluate RUN evaluation=full` beyond its start: 10,000 test samples, 100 classes, 20 experts, from what the run kept."""

import io
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from measure import Row, main, seconds

from l2d.compose import compose
from l2d.evaluate import main as evaluate
from l2d.train import run


def measure(repeats: int) -> Iterator[Row]:
    words = ["loss=ova", "experts.num=20", "dataset.num_classes=100", "dataset.num_test=10000", "held_out=0.1"]
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        run(compose([*words, "trainer.epochs=1", "verbose=false", f"output_dir={folder}"]))
        (result,) = Path(folder).glob("*/*/result.json")
        call = [str(result.parent), "evaluation=full", f"out={folder}/full.json"]
        times = [seconds(lambda: evaluate(call)) for _ in range(repeats + 1)][1:]  # the first one imports
    yield Row("l2d evaluate RUN evaluation=full, 10,000 x 100 + 20, beyond its start", times, "<= 1", unit=" s")


if __name__ == "__main__":
    main(measure, __doc__)
