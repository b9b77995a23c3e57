"""A loss of your own: judged by `l2d check`, then put into the benchmark.

    python examples/own_loss.py [FOLDER]

The idea: the experts who are right about a sample share one unit of weight, so that many experts cannot drown the classifier.
It is one function, `shared`, and one file, conf/loss/shared_ce.yaml, that names it. Both commands below find the function
because they are started in the folder of this file.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
from torch import Tensor

HERE = Path(__file__).resolve().parent
SMALL = [
    "dataset.num_classes=20", "dataset.num_train=3000", "dataset.num_test=500", "trainer.epochs=6", "backbone.hidden=64",
]  # fmt: skip


def shared(expert_scores: Tensor, correct: Tensor) -> Tensor:  # [B, J], [B, J] -> weights [B, J]
    """w_j = [expert j is right] / (how many are right)."""
    right = correct.to(expert_scores.dtype)
    return right / right.sum(dim=1, keepdim=True).clamp(min=1)


def l2d(*words: str) -> str:
    """Run a command of l2d in the folder of this file, and return what it prints."""
    print(f"$ {shlex.join(['l2d', *words])}", flush=True)
    command = [sys.executable, "-m", "l2d", *words]
    return subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("outputs/examples/own_loss"))
    out = parser.parse_args().folder.resolve()
    out.mkdir(parents=True, exist_ok=True)

    # Is it any good? The exact minimisers of the loss, on random joints of label and answers whose best decision is known. It is not:
    # of two experts who are always right each has half of the weight, so the loss would rather answer itself, and be wrong.
    print(l2d("check", "--config-dir", "conf", "loss=shared_ce", "--joints", "14"))

    # Where does it stand? Two tasks of the benchmark, made small, with the same trials for every method. balanced_ce has the same aim
    # without the flaw: it divides by the number of experts, whoever is right. hydra/launcher=basic makes one run after the other;
    # without it they are spread over all processors.
    chosen = ["--add", "conf/loss/shared_ce.yaml", "--methods", "ce,balanced_ce", "--tasks", "one_good,specialists"]
    where = ["hydra/launcher=basic", f"output_dir={out}/runs", "--out", f"{out}/report"]
    (out / "bench.txt").write_text(l2d("bench", *chosen, *SMALL, *where))
    methods, tasks = pd.read_csv(out / "report/methods.csv"), pd.read_csv(out / "report/tasks.csv")
    print("\nMean rank, and regret as a share of that of vanilla CE:")
    print(methods[["method", "mean_rank", "mean_normalised"]].round(2).to_string(index=False))
    print(
        "\nRegret in points of system error (excess), and percent of the cases that the system answers itself (coverage):"
    )
    print(tasks.pivot(index="method", columns="task", values=["excess", "coverage"]).round(1).to_string())
    print(f"\nAll of it: {out}/report/index.html")


if __name__ == "__main__":
    main()
