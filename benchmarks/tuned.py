"""Five regimes with tuned settings: `l2d bench` on specialists with one expert and with 20, for losses in which the experts share
one unit of weight and for losses in which each has a whole one.

    scripts/tuned --out report/tuned

Every loss has the trials of the benchmark's protocol in every regime. Prints, and writes to tuned.md, the mean system error over
the reported seeds; runs are in outputs/tuned, and finished ones are not run again.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import pandas as pd

from l2d.report.methods import label
from l2d.report.render import markdown_table

REGIMES = {  # capacity, samples -> settings; epochs such that steps grow with the samples, less than in proportion
    ("linear", 10_000): ["backbone=linear", "trainer.epochs=15"],
    ("1x32", 30_000): ["backbone.layers=1", "backbone.hidden=32", "trainer.epochs=10"],
    ("1x96", 30_000): ["backbone.layers=1", "backbone.hidden=96", "trainer.epochs=10"],
    ("2x256", 20_000): ["backbone.layers=2", "backbone.hidden=256", "trainer.epochs=12"],
    ("2x256", 4_000): ["backbone.layers=2", "backbone.hidden=256", "trainer.epochs=30"],
}
ALONE = ["ce", "ova", "decoupled", "asm"]  # with one expert the others are one of these
SEVERAL = ["ce", "picce_ce", "balanced_ce", "ova", "picce_ova", "balanced_ova", "decoupled", "asm"]
OWN = Path(__file__).parent / "whole_weight/loss"  # a whole unit of weight for every expert
SAME = {
    "picce_ce": "ce", "balanced_ce": "ce", "picce_ova": "ova", "balanced_ova": "ova", "decoupled_whole": "decoupled", "asm_whole": "asm",
}  # fmt: skip


def bench(capacity: str, samples: int, experts: int, out: Path) -> pd.DataFrame:
    """A row per loss of one regime, from tasks.csv."""
    folder = out / f"{capacity}-{samples}-J{experts}"
    methods = ALONE if experts == 1 else SEVERAL
    added = [] if experts == 1 else [word for file in sorted(OWN.glob("*.yaml")) for word in ("--add", str(file))]
    words = [f"dataset.num_train={samples}", f"experts.num={experts}", *REGIMES[capacity, samples]]
    command = ["bench", "full", "--tasks", "specialists", "--methods", ",".join(methods), *added, "--seeds", "3"]
    places = ["--out", str(folder), f"output_dir=outputs/tuned/{folder.name}"]
    subprocess.run([sys.executable, "-m", "l2d", *command, *places, *words], check=True)
    return pd.read_csv(folder / "tasks.csv").set_index("method")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("report/tuned"))
    options = parser.parse_args()
    columns: dict[str, dict[str, str]] = {}  # regime -> method -> text
    for capacity, samples in REGIMES:
        one, many = (bench(capacity, samples, experts, options.out) for experts in (1, 20))
        best = many["system_error"].min()
        column = columns[f"{capacity}, {samples:,}"] = {}
        for method, row in many.iterrows():
            before = one["system_error"][SAME.get(str(method), str(method))]
            error = f"{row['system_error']:.1f}"
            column[str(method)] = f"{before:.1f} -> " + (f"**{error}**" if row["system_error"] == best else error)
        column["best achievable"] = f"{one['best_achievable'].iloc[0]:.1f} -> {many['best_achievable'].iloc[0]:.1f}"
    rows = [
        [label(method), *(column[method] for column in columns.values())] for method in next(iter(columns.values()))
    ]
    table = markdown_table(["loss", *columns], rows)
    (options.out / "tuned.md").write_text(table + "\n", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
