"""The methods of a block in the order of their system error, and of their regret, with what they are compared with."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from l2d.report.load import BLOCK
from l2d.report.methods import label, methods_of
from l2d.report.metrics import REFERENCE_SHOWN
from l2d.report.tables import one_per_seed

RANKED = {"system_error": "System error (%)", "regret": "Regret (%)"}  # column of the runs -> label
COLUMNS = ["by", "entry", "kind", "num_experts", "mean", "std", "n", "rank", "mean_rank"]
PAIR = ["num_experts", "seed"]


def rank_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per block, ranked number (`by`), entry and number of experts, and one for the average over these (no number).

    An entry is a method, or of the kind `reference`: what is reached without a trained system, and the best achievable.
    `mean` and `std` are over the `n` seeds, `rank` is the place among methods that have all seeds, at the printed two decimals.
    Methods with a run for every number of experts and seed have an average, and a `mean_rank` over all of these. Entries stand
    in the order of their average, then the methods without one.
    """
    finished = one_per_seed(runs[runs["status"] == "finished"])
    rows: list[tuple[Any, ...]] = []
    for block, group in finished.groupby(BLOCK):
        for by in RANKED:
            if group[by].notna().any():
                rows += [(*block, by, *row) for row in _ranked(group, by)]
    return pd.DataFrame(rows, columns=[*BLOCK, *COLUMNS]).astype({"num_experts": "Int64", "n": "Int64"})


def _ranked(runs: pd.DataFrame, by: str) -> list[tuple[Any, ...]]:
    """The rows of one block, from `entry` on."""
    values = runs.groupby([*PAIR, "method"])[by].mean().unstack()  # [counts x seeds, methods]
    methods = [method for method in methods_of(runs) if values[method].notna().any()]
    everywhere = [method for method in methods if values[method].notna().all()]
    values = values[methods].join(_references(runs, by, everywhere))
    mean_rank = values[everywhere].round(2).rank(axis=1).mean()
    average = _average(values)
    order = sorted(values, key=lambda entry: (pd.isna(average["mean"][entry]), average["mean"][entry]))
    average["rank"] = _rank(average["mean"][everywhere])
    counts = sorted(set(runs["num_experts"]))
    at = {num: _at(values.loc[num], methods) for num in counts}
    rows = []
    for entry in order:
        kind = "method" if entry in methods else "reference"
        lines = [(num, at[num].loc[entry], float("nan")) for num in counts]
        if pd.notna(average["mean"][entry]):
            lines.insert(0, (pd.NA, average.loc[entry], mean_rank.get(entry, float("nan"))))
        rows += [(entry, kind, num, line["mean"], line["std"], line["n"], line["rank"], r) for num, line, r in lines]
    return rows


def _at(values: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Mean, standard deviation, seeds and rank of every entry at one number of experts; `values` [seeds, entries]."""
    table = pd.DataFrame({"mean": values.mean(), "std": values.std(), "n": values.count()})
    table["rank"] = _rank(table["mean"][[method for method in methods if values[method].notna().all()]])
    return table


def _average(values: pd.DataFrame) -> pd.DataFrame:
    """Mean over the numbers of experts of each entry that has all values, and its deviation over seeds that have all numbers."""
    whole = values.loc[:, values.notna().all()]
    per_count = whole.groupby(level="num_experts").mean()
    seeds = whole.unstack("num_experts").dropna()  # [seeds, entries x counts]
    per_seed = seeds.T.groupby(level=0).mean().T  # [seeds, entries]
    table = pd.DataFrame({"mean": per_count.mean(), "std": per_seed.std()})
    return table.reindex(values.columns).assign(n=len(seeds))


def _rank(means: pd.Series) -> pd.Series:
    return means.round(2).rank(method="min")


def _references(runs: pd.DataFrame, by: str, methods: Sequence[str]) -> pd.DataFrame:
    """The errors of what is no method, or for regret their excess over the best achievable, [counts x seeds, references]."""
    per_pair = runs.groupby(PAIR)
    found = {metric.label.removesuffix(" (%)"): 100 - per_pair[metric.name].mean() for metric in REFERENCE_SHOWN}
    accuracy = runs.groupby([*PAIR, "method"])["classifier_accuracy"].mean().unstack()[list(methods)]
    if methods:
        best = accuracy.groupby(level="num_experts").mean().mean().idxmax()
        found[f"Best classifier alone ({label(str(best))})"] = 100 - accuracy[best]
    if "bayes_system_error" in runs:
        found["Best achievable"] = per_pair["bayes_system_error"].mean()
        if by == "regret":
            found = {name: errors - found["Best achievable"] for name, errors in found.items()}
    found = {name: errors for name, errors in found.items() if name not in set(runs["method"])}
    return pd.DataFrame(found, index=accuracy.index).dropna(axis=1)
