"""The map of regimes: who wins where, by how much and why, from the runs of experiment=regimes.

    l2d train -m experiment=regimes output_dir=outputs/regimes hydra/launcher=joblib
    scripts/regimes outputs/regimes --out report/regimes

Writes regimes.csv (a row per regime and method), regimes.md, and two figures: the winner of every regime, and the parts of
the regret.
"""

import argparse
from pathlib import Path

import pandas as pd
from finished import finished_runs, network
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from l2d.report.figures import save_figure
from l2d.report.methods import label
from l2d.report.render import markdown_table, to_csv
from l2d.report.style import STYLE, look

CAPACITIES = ["linear", "1x32", "1x96", "2x256"]
REGIME = ["resample", "capacity", "samples", "experts"]
PARTS = ["classifier", "decision", "expert"]
VANILLA = {"ce": ("ce", "picce_ce", "pice_ce", "balanced_ce"), "ova": ("ova", "picce_ova", "pice_ova", "balanced_ova")}
NAMES = {
    "ce": "CE", "picce_ce": "PiCCE", "pice_ce": "PiCE", "balanced_ce": "bal. CE", "ova": "OvA", "picce_ova": "PiCCE-OvA",
    "pice_ova": "PiCE-OvA", "balanced_ova": "bal. OvA", "decoupled": "decoupled", "asm": "A-SM",
}  # fmt: skip
SHOWN_PARTS = ["ce", "picce_ce", "balanced_ce", "ova", "picce_ova", "balanced_ova", "decoupled", "asm"]
CLOSE = 0.3  # points of regret: a method this near to the best is as good


def load(folder: Path) -> pd.DataFrame:
    """A row per finished run: its regime, method, seed and the parts of its regret."""
    rows = []
    for result, config in finished_runs(folder):
        rows.append(
            {
                "resample": config["experts"]["resample"],
                "capacity": network(config),
                "samples": config["dataset"]["num_train"],
                "experts": config["experts"]["num"],
                "method": result["choices"]["loss"],
                "seed": result["seed"],
                "system_error": result["metrics"]["system_error"],
                "classifier_accuracy": result["metrics"]["classifier_accuracy"],
                "coverage": result["metrics"]["coverage"],
                "best": result["bayes"]["system_error"],
                **{part: result["evaluation"]["regret"][part] for part in ("total", *PARTS)},
            }
        )
    return pd.DataFrame(rows)


def average(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of every regime and method, the standard deviation of the total, and how far behind the regime's best."""
    numbers = ["total", *PARTS, "system_error", "classifier_accuracy", "coverage", "best"]
    grouped = runs.groupby([*REGIME, "method"])
    cells = grouped[numbers].mean()
    cells["std"], cells["seeds"] = grouped["total"].std(), grouped["seed"].count()
    cells = cells.reset_index()
    cells["behind"] = cells["total"] - cells.groupby(REGIME)["total"].transform("min")
    return cells


def winners(cells: pd.DataFrame) -> Figure:
    """A field per regime with more than one expert: the best method, its regret, and in brackets what the vanilla loss of CE has more."""
    cells = cells[cells["experts"] > 1]
    samples, experts = sorted(set(cells["samples"])), sorted(set(cells["experts"]))
    kinds = sorted(set(cells["resample"]))
    figure = Figure(figsize=(1.35 * len(samples) * len(experts) + 1.2, 0.72 * len(CAPACITIES) * len(kinds) + 1.4))
    panels = figure.subplots(len(kinds), 1, squeeze=False)[:, 0]
    columns = [(n, j) for n in samples for j in experts]
    for axes, kind in zip(panels, kinds, strict=True):
        for x, (n, j) in enumerate(columns):
            for y, capacity in enumerate(CAPACITIES):
                at = cells[(cells[REGIME] == [kind, capacity, n, j]).all(axis=1)].set_index("method")
                if len(at):
                    _field(axes, x, y, at)
        axes.set(xlim=(0, len(columns)), ylim=(len(CAPACITIES), 0))
        axes.set_xticks([x + 0.5 for x in range(len(columns))], [f"J={j}" for _, j in columns])
        axes.set_yticks([y + 0.5 for y in range(len(CAPACITIES))], CAPACITIES)
        axes.tick_params(length=0)
        axes.grid(False)
        for group, n in enumerate(samples):
            axes.text((group + 0.5) * len(experts), -0.12, f"{n:,} training samples", ha="center", va="bottom")
            axes.axvline(group * len(experts), color="white", linewidth=4)
        drawn = "answers drawn once" if kind == "once" else "answers drawn anew in every epoch"
        axes.set_ylabel(drawn)
        for side in axes.spines.values():
            side.set_visible(False)
    return figure


def _field(axes, x: int, y: int, at: pd.DataFrame) -> None:
    best = at["total"].idxmin()
    close = [name for name in at.index if at.loc[name, "behind"] <= CLOSE and name != best]
    axes.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, color=look(best)["color"], alpha=0.22, linewidth=0))
    axes.text(x + 0.5, y + 0.26, NAMES[best], ha="center", va="center", fontsize=9, weight="bold")
    more = at.loc["ce", "total"] - at.loc[best, "total"]
    axes.text(x + 0.5, y + 0.52, f"{at.loc[best, 'total']:.1f} (+{more:.1f})", ha="center", va="center", fontsize=8)
    names = ", ".join(NAMES[name] for name in close[:2]) + ("..." if len(close) > 2 else "")
    axes.text(x + 0.5, y + 0.78, names, ha="center", va="center", fontsize=6, color="#5b6875")


def parts(cells: pd.DataFrame, experts: int = 20) -> Figure:
    """The three parts of the regret with this many experts: a panel per capacity and number of samples."""
    cells = cells[cells["experts"] == experts]
    samples = sorted(set(cells["samples"]))
    figure = Figure(figsize=(4.2 * len(samples), 2.3 * len(CAPACITIES)))
    panels = figure.subplots(len(CAPACITIES), len(samples), squeeze=False, sharex=True, sharey="col")
    colours = dict(zip(PARTS, ("#0072B2", "#E69F00", "#CC79A7"), strict=True))
    for row, capacity in enumerate(CAPACITIES):
        for column, n in enumerate(samples):
            axes = panels[row, column]
            for offset, (kind, alpha) in enumerate((("once", 1.0), ("per_epoch", 0.5))):
                at = (
                    cells[(cells[REGIME[:3]] == [kind, capacity, n]).all(axis=1)]
                    .set_index("method")
                    .reindex(SHOWN_PARTS)
                )
                left = pd.Series(0.0, index=SHOWN_PARTS)
                for part in PARTS:
                    places = [i + 0.38 * offset - 0.19 for i in range(len(SHOWN_PARTS))]
                    named = f"{part}, {'drawn once' if kind == 'once' else 'per epoch'}"
                    axes.bar(places, at[part], 0.36, bottom=left, color=colours[part], alpha=alpha, label=named)
                    left += at[part].fillna(0)
            axes.set_title(f"{capacity}, {n:,} samples", fontsize=9)
            axes.set_xticks(
                range(len(SHOWN_PARTS)), [NAMES[m] for m in SHOWN_PARTS], rotation=45, ha="right", fontsize=8
            )
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6, fontsize=8)
    figure.supylabel(f"regret with {experts} experts (points of system error)", fontsize=9)
    return figure


def table(cells: pd.DataFrame) -> str:
    """Markdown: a row per regime, the regret of every method; bold is the best, and what is as good."""
    methods = [m for m in NAMES if m in set(cells["method"])]
    rows = []
    order = cells.assign(place=cells["capacity"].map(CAPACITIES.index)).sort_values(
        ["resample", "place", "samples", "experts"]
    )
    for (kind, capacity, n, j), at in order.groupby(REGIME, sort=False):
        by = at.set_index("method")
        row = [str(kind), str(capacity), f"{n:,}", str(j), f"{by['best'].iloc[0]:.1f}"]
        for method in methods:
            if method not in by.index:
                row.append("")
                continue
            text = f"{by.loc[method, 'total']:.1f}"
            row.append(f"**{text}**" if by.loc[method, "behind"] <= CLOSE else text)
        rows.append(row)
    return markdown_table(["answers", "capacity", "samples", "J", "optimum", *(label(m) for m in methods)], rows)


def summary(cells: pd.DataFrame) -> str:
    """Over the regimes with several experts: how often a method is the best or as good, its mean and its largest distance from it."""
    several = cells[cells["experts"] > 1]
    rows = []
    for method in sorted(set(several["method"]), key=list(NAMES).index):
        mine = several[several["method"] == method]
        worst = mine.loc[mine["behind"].idxmax()]
        where = f"{worst['capacity']}, {worst['samples']:,}, J={worst['experts']}, {worst['resample']}"
        rows.append(
            [
                label(method),
                str((mine["behind"] <= CLOSE).sum()),
                f"{mine['behind'].mean():.2f}",
                f"{worst['behind']:.1f}",
                where,
            ]
        )
    return markdown_table(["method", f"best or within {CLOSE}", "mean behind", "most behind", "where"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, default=Path("report/regimes"))
    options = parser.parse_args()
    runs = load(options.runs)
    if runs.empty:
        parser.error(f"{options.runs} has no finished runs of experiment=regimes")
    cells = average(runs)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "regimes.csv").write_text(to_csv(cells.round(3)))
    (options.out / "regimes.md").write_text(f"{summary(cells)}\n\n{table(cells)}\n")
    with rc_context(STYLE):
        save_figure(winners(cells), options.out / "regimes")
        save_figure(parts(cells), options.out / "parts")
    print(summary(cells))


if __name__ == "__main__":
    main()
