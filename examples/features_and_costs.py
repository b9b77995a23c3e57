"""Feature vectors in an .npz, and experts who cost differently: what is asked, and what does it cost?

    python examples/features_and_costs.py [FOLDER]

A nurse, a doctor and a professor can be asked about each patient; the better, the more expensive. One system is trained, and every
row of the table below is the same system under other costs, or under a budget: nothing is trained again.
"""

import argparse
import io
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd

from l2d.compose import compose
from l2d.train import run

NAMES, ACCURACY = ["nurse", "doctor", "professor"], np.array([0.75, 0.85, 0.97])  # [J]
COSTS = [0.02, 0.06, 0.2]  # of a question, where an error costs 1


def write_patients(path: Path, count: int = 3000, seed: int = 0) -> None:
    """x [N, 8], y [N], answers [N, J] and names: four diagnoses that overlap, and what three people said."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=count)  # [N]
    centres = 1.1 * rng.standard_normal((4, 8))  # [K, D]
    right = rng.random((count, len(NAMES))) < ACCURACY  # [N, J]
    other = (labels[:, None] + rng.integers(1, 4, size=right.shape)) % 4  # [N, J] a wrong diagnosis
    np.savez(
        path,
        x=(centres[labels] + rng.standard_normal((count, 8))).astype(np.float32),
        y=labels,
        answers=np.where(right, labels[:, None], other),
        names=np.array(NAMES),
        classes=np.array(["flu", "cold", "covid", "allergy"]),
    )


def results(out: Path, *settings: str) -> dict:
    """The metrics of the system under these settings. The first call trains it; after that only the decision is made again."""
    cfg = compose([
        "dataset=features", "experts.num=null", "loss=decoupled", "backbone.hidden=32", "optim.lr=3e-3", "trainer.epochs=20",
        "trainer.batch_size=64", "held_out=0.2", *settings,
    ])  # fmt: skip
    cfg.dataset.path, cfg.dataset.cache = str(out / "patients.npz"), str(out / "cache")
    cfg.output_dir = str(out / "runs")
    with redirect_stdout(io.StringIO()):  # the table at the end says it all
        return run(cfg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("outputs/examples/features_and_costs"))
    out = parser.parse_args().folder
    out.mkdir(parents=True, exist_ok=True)
    write_patients(out / "patients.npz")

    price = f"experts.costs={COSTS}"
    budget = ["rule=budget", price]  # fitted on what the run held out
    rows = {
        "questions are free": results(out),
        "at half the price": results(out, f"experts.costs={[cost / 2 for cost in COSTS]}"),
        "at their price": results(out, price),
        "at twice the price": results(out, f"experts.costs={[cost * 2 for cost in COSTS]}"),
        "at their price, about 5% at most": results(out, *budget, "rule.defer_at_most=5"),
        "at their price, about 10% at most": results(out, *budget, "rule.defer_at_most=10"),
        "at their price, without the professor": results(out, price, "rule.available=[nurse,doctor]"),
    }
    table = pd.DataFrame({name: metrics["deferred_to"] for name, metrics in rows.items()}, index=NAMES).T
    table.insert(0, "errors", [metrics["system_error"] for metrics in rows.values()])
    table.insert(1, "cost", [metrics["system_cost"] for metrics in rows.values()])
    print("Per 100 patients: errors, what errors and questions cost together, and how often each one is asked")
    print(table.astype(float).round(2).to_string(na_rep="-"))
    table.to_csv(out / "costs.csv")


if __name__ == "__main__":
    main()
