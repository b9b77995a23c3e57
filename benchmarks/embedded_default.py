"""The candidates for the embedded default, by their error on held-out data, mean over losses and seeds.

l2d train -m experiment=embedded_default output_dir=outputs/embedded_default hydra/launcher=joblib
scripts/embedded_default outputs/embedded_default
"""

import argparse
from pathlib import Path

import pandas as pd
from finished import finished_runs, network

from l2d.report.render import markdown_table

CANDIDATE = ["network", "learning rate", "weight decay"]


def load(folder: Path) -> pd.DataFrame:
    """A row per finished run: what was chosen, and its errors."""
    rows = []
    for result, config in finished_runs(folder):
        chosen = (network(config), config["optim"]["lr"], config["optim"]["weight_decay"])
        errors = {"held out": result["held_out"]["system_error"], "test": result["metrics"]["system_error"]}
        rows.append({**dict(zip(CANDIDATE, chosen, strict=True)), "loss": config["loss"]["name"], **errors})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--shown", type=int, default=10)
    options = parser.parse_args()
    runs = load(options.runs)
    if runs.empty:
        parser.error(f"{options.runs} has no finished runs of experiment=embedded_default")
    found = runs.groupby(CANDIDATE)[["held out", "test"]].mean().sort_values("held out")
    by_loss = runs.pivot_table("held out", CANDIDATE, "loss").loc[found.index]
    rows = []
    for candidate, errors in found.head(options.shown).iterrows():
        each = [f"{by_loss.loc[candidate, loss]:.2f}" for loss in by_loss]
        rows.append([*map(str, candidate), f"{errors['held out']:.2f}", *each, f"{errors['test']:.2f}"])
    print(markdown_table([*CANDIDATE, "held-out error", *(f"of {loss}" for loss in by_loss), "test error"], rows))


if __name__ == "__main__":
    main()
