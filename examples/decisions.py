"""From a run to decisions: train on a table, decide about new rows, export the system, and watch it in use.

    python examples/decisions.py [FOLDER]

Tickets of a help desk go to one of four teams. Ann and Ben can be asked about a ticket. In the second month of use Ben has
too much to do and errs more often, which `l2d monitor` shows.
"""

import argparse
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

import l2d
from l2d.compose import compose
from l2d.train import run, run_folder

TEAMS = np.array(["billing", "sales", "network", "hardware"])
CENTRES = np.array([[2, 0, 0, 0], [2, 1.2, 0, 0], [0, 0, 2, 0], [0, 0, 2, 1.2]])  # [K, D] two and two are alike
SKILLS = {"ann": [0.95, 0.95, 0.5, 0.5], "ben": [0.5, 0.5, 0.95, 0.95]}  # how often each one is right, by team


def tickets(count: int, seed: int, ben: float = 1.0) -> pd.DataFrame:
    """A row per ticket: id, features, the right team, and what Ann and Ben say; Ben is right `ben` times as often as usual."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=count)  # [N]
    x = CENTRES[labels] + 0.7 * rng.standard_normal((count, 4))  # [N, D]
    table = pd.DataFrame(x, columns=["x_1", "x_2", "x_3", "x_4"]).round(3)
    table.insert(0, "id", [f"{seed}-{i:04}" for i in range(count)])
    table["label"] = TEAMS[labels]
    for name, skill in SKILLS.items():
        right = rng.random(count) < np.array(skill)[labels] * (ben if name == "ben" else 1)
        table[name] = TEAMS[np.where(right, labels, (labels + rng.integers(1, 4, size=count)) % 4)]
    return table


def command(*words: str) -> None:
    """Run a command of l2d."""
    print(f"\n$ {shlex.join(['l2d', *words])}", flush=True)
    subprocess.run([sys.executable, "-m", "l2d", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("outputs/examples/decisions"))
    out = parser.parse_args().folder
    out.mkdir(parents=True, exist_ok=True)

    # Train: l2d train dataset=features dataset.path=tickets.csv experts.num=null ...
    tickets(3000, seed=0).to_csv(out / "tickets.csv", index=False)
    cfg = compose([
        "dataset=features", "experts.num=null", "loss=decoupled", "backbone.hidden=32", "optim.lr=3e-3", "trainer.epochs=15",
        "trainer.batch_size=64", "verbose=false",
    ])  # fmt: skip
    cfg.dataset.path, cfg.dataset.cache = str(out / "tickets.csv"), str(out / "cache")
    cfg.output_dir = str(out / "runs")
    run(cfg)

    # Use: the folder of the run is all that is needed. The new tickets have neither a label nor answers.
    new = pd.concat([tickets(1000, seed=1), tickets(1000, seed=2, ben=0.6)], ignore_index=True)
    new[["id", "x_1", "x_2", "x_3", "x_4"]].to_csv(out / "new.csv", index=False)
    system = l2d.load(run_folder(cfg))
    decisions = system.predict(out / "new.csv", costs={"ann": 0.1, "ben": 0.1}).to_pandas()
    decisions.to_csv(out / "decisions.csv", index=False)
    print("\n", decisions.head(5).drop(columns="error").round(2).to_string(index=False), sep="")

    # One file that needs no l2d: python examples/serve.py FOLDER/model.onnx answers over HTTP with it.
    model = "model.onnx" if find_spec("onnxruntime") else "model.pt2"  # ONNX is an extra: pip install 'l2d[onnx]'
    where = ["--out", str(out / model), "--check", str(out / "new.csv")]
    command("export", str(run_folder(cfg)), "experts.costs=0.1", *where)

    # Watch: who was asked has answered, and the truth is known by now.
    said = new.join(decisions[["decision", "asked"]])
    said["answer"] = [row[row["decision"]] if row["asked"] else None for _, row in said.iterrows()]
    said[["id", "answer", "label"]].to_csv(out / "answers.csv", index=False)
    command("monitor", str(out / "decisions.csv"), str(out / "answers.csv"), "--out", str(out / "watch.csv"))


if __name__ == "__main__":
    main()
