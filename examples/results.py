"""Results in pandas: a small sweep, its runs as a frame, differences over the same seeds, a LaTeX table and a figure.

    python examples/results.py [FOLDER]

The question: what happens to the system error when experts are added?
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt

import l2d


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("outputs/examples/results"))
    out = parser.parse_args().folder
    out.mkdir(parents=True, exist_ok=True)

    # 2 losses x 3 numbers of experts x 3 seeds; what is finished is not run again. Runs land in FOLDER/outputs.
    words = ["train", "-m", "loss=ova,balanced_ova", "experts.num=1,4,16", "seed=0,1,2",
             "dataset.num_train=4000", "dataset.num_test=2000", "trainer.epochs=8", "backbone.hidden=64"]  # fmt: skip
    print(f"$ {shlex.join(['l2d', *words])}", flush=True)
    subprocess.run([sys.executable, "-m", "l2d", *words], cwd=out, stdout=subprocess.DEVNULL, check=True)

    # A row per run, with its settings, metrics and folder; pandas does the rest.
    runs = l2d.load_runs(out / "outputs")
    print(f"\n{len(runs)} runs with columns such as {', '.join(runs.columns[:12])}")
    errors = runs.groupby(["num_experts", "method"])["system_error"]
    table = errors.agg(lambda error: f"{error.mean():.2f} ± {error.std():.2f}").unstack()
    print("\nSystem error (%), mean and standard deviation over seeds:\n", table.to_string(), sep="")
    (out / "table.tex").write_text(table.to_latex(escape=True))

    # balanced_ova minus ova over the same seeds, with 95% intervals.
    paired = l2d.paired_differences(runs, baseline="ova")
    columns = ["method", "baseline", "num_experts", "n", "difference", "low", "high"]
    shown = paired.loc[paired["metric"] == "system_error", columns]
    print("\nSystem error, method minus baseline:\n", shown.round(2).to_string(index=False), sep="")

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for method, cell in errors.agg(["mean", "std"]).groupby("method"):
        axes.errorbar(cell.index.get_level_values(0), cell["mean"], cell["std"], marker="o", capsize=3, label=method)
    best = runs.groupby("num_experts")["bayes_system_error"].mean()
    axes.plot(best.index, best, "k--", label="best achievable")
    axes.set(xlabel="experts", ylabel="system error (%)", xscale="log", xticks=best.index, xticklabels=best.index)
    axes.minorticks_off()
    axes.legend()
    figure.savefig(out / "figure.png", dpi=150)
    print(f"\n{out / 'table.tex'}, {out / 'figure.png'}")


if __name__ == "__main__":
    main()
