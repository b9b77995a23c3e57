"""Evaluations: `l2d evaluate RUN evaluation=full` beyond its start, from what the run kept, and a panel of 1,000 experts."""

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import torch
from measure import Row, alternated, main, seconds

from l2d.compose import compose
from l2d.evaluate import main as evaluate
from l2d.evaluation import METRICS, outcome_of
from l2d.evaluation import measure as measure_metrics
from l2d.losses import DeferralLoss
from l2d.train import run

K, N = 100, 5000


def measure(repeats: int) -> Iterator[Row]:
    words = ["loss=ova", "experts.num=20", "dataset.num_classes=100", "dataset.num_test=10000", "held_out=0.1"]
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        run(compose([*words, "trainer.epochs=1", "verbose=false", f"output_dir={folder}"]))
        (result,) = Path(folder).glob("*/*/result.json")
        call = [str(result.parent), "evaluation=full", f"out={folder}/full.json"]
        times = [seconds(lambda: evaluate(call)) for _ in range(repeats + 1)][1:]  # the first one imports
    yield Row("l2d evaluate RUN evaluation=full, 10,000 x 100 + 20, beyond its start", times, "<= 1", unit=" s")
    yield many_experts(3 * repeats)


def many_experts(repeats: int) -> Row:
    """Beliefs, decisions and all metrics of scores, without the forward passes: 1,000 experts against 20."""
    loss, rng = DeferralLoss("vanilla", "ce", K), torch.Generator().manual_seed(0)
    labels = torch.randint(K, (N,), generator=rng)

    def evaluation(num_experts: int) -> Callable[[], object]:
        scores = torch.randn(N, K + num_experts, generator=rng)
        answers = torch.randint(K, (N, num_experts), generator=rng, dtype=torch.int8)
        return lambda: measure_metrics(outcome_of(scores, labels, answers, loss), METRICS)

    pairs = alternated(evaluation(1000), evaluation(20), repeats)
    most = f"<= {(K + 1000) / (K + 20):.2f}"
    return Row("evaluation from scores alone, J=1000 / J=20 (answers: 50 times)", [a / b for a, b in pairs], most)


if __name__ == "__main__":
    main(measure, __doc__)
