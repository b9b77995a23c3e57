"""Runs -> the cells of tables: mean and standard deviation over seeds, beside the published number."""

from importlib.resources import files
from typing import Any

import pandas as pd

from l2d.errors import notify
from l2d.evaluation.metrics import REFERENCE
from l2d.report.load import BLOCK, CELL
from l2d.report.methods import base_order, column, in_rows, loss_name
from l2d.report.metrics import ShownMetric, shown_metrics

ROW = [*BLOCK, "base", "num_experts"]  # one row of a table


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per cell, for the runs and for what the paper published for their blocks.

    A cell's `state` is complete, partial (only `n` of the block's `seeds` finished), failed, unfinished or missing; its
    mean and sample standard deviation (n - 1) are over the finished seeds. `<metric>_better` marks the best complete
    cells of a row at the printed two decimals, where they differ; where methods are rows, those of a number of experts.
    """
    published, metrics = load_published(), shown_metrics(runs)
    rows = []
    for block, group in one_per_seed(runs).groupby(BLOCK):
        for key in _grid(block, group, published):
            rows.append({**dict(zip(CELL, (*block, *key), strict=True)), **_cell(*key, group, metrics)})
    published = published.drop(columns=["base", "formulation"])
    keys = ["dataset", "experts", "num_experts", "method"]
    cells = pd.DataFrame(rows).merge(published, on=keys, how="left", suffixes=("", "_published"))
    for metric in metrics:
        if f"{metric.name}_published" in cells:
            cells[f"{metric.name}_difference"] = cells[metric.name] - cells[f"{metric.name}_published"]
        cells[f"{metric.name}_better"] = _better(cells, metric)
    return cells


def reference_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per block and number of experts: accuracies to compare a system with, mean over seeds.

    The experts of a seed are the same for every loss. `best_achievable` is 100 minus the Bayes optimum's system error.
    """
    done = one_per_seed(runs[runs["status"] == "finished"])
    bayes = done["bayes_system_error"] if "bayes_system_error" in done else float("nan")
    done = done.assign(best_achievable=100 - bayes)
    names = [*(metric.name for metric in REFERENCE), "best_achievable"]
    per_seed = done.groupby([*BLOCK, "num_experts", "seed"])[names].mean()
    return per_seed.groupby(level=[*BLOCK, "num_experts"]).mean().reset_index()


def load_published() -> pd.DataFrame:
    """The paper's Tables 1, 2 and 4, which ship with the package."""
    with files("l2d.report").joinpath("published.csv").open() as file:
        published = pd.read_csv(file)
    names = map(loss_name, published["formulation"], published["base"])
    return published.assign(method=list(names))


def one_per_seed(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with each seed once per cell: of several the finished one, then the first folder."""
    order = runs.assign(_late=runs["status"] != "finished").sort_values([*CELL, "seed", "_late", "folder"])
    repeated = order.duplicated([*CELL, "seed"])
    return order[~repeated].drop(columns="_late")


def name_repeated(runs: pd.DataFrame) -> None:
    """Notify about the runs that `one_per_seed` leaves out."""
    for folder in runs.drop(one_per_seed(runs).index)["folder"]:
        notify(f"{folder} repeats another run of the same setting and seed, and is not counted.")


def _grid(block: tuple[Any, ...], runs: pd.DataFrame, published: pd.DataFrame) -> list[tuple[str, int, str]]:
    """(base, number of experts, method) of the cells that the block's table has, in its order."""
    printed = published[(published["dataset"] == block[0]) & (published["experts"] == block[1])]
    cell = ["base", "num_experts", "method"]
    known = set(pd.concat([runs[cell], printed[cell]]).itertuples(index=False, name=None))
    return sorted(known, key=lambda key: (base_order(key[0]), key[1], column(key[2])))


def _cell(base: str, num: int, method: str, block: pd.DataFrame, metrics: list[ShownMetric]) -> dict[str, Any]:
    here = block[(block["base"] == base) & (block["num_experts"] == num) & (block["method"] == method)]
    done = here[here["status"] == "finished"]
    n, seeds = len(done), block["seed"].nunique()
    bayes = block.loc[block["num_experts"] == num].filter(like="bayes_").mean()
    if n:
        state = "complete" if n == seeds else "partial"
    elif len(here):
        state = "failed" if (here["status"] == "failed").any() else "unfinished"
    else:
        state = "missing"
    return {
        "state": state,
        "n": n,
        "seeds": seeds,
        # a metric that is undefined for one seed has no mean
        **{metric.name: done[metric.name].mean(skipna=False) for metric in metrics},
        **{f"{metric.name}_std": done[metric.name].std(skipna=False) for metric in metrics},
        **bayes.to_dict(),
    }


def _better(cells: pd.DataFrame, metric: ShownMetric) -> pd.Series:
    """True at the best complete cells of a row, where not all are equal."""
    sign = -1 if metric.better == "lower" else 1
    value = (sign * cells[metric.name]).round(2).where(cells["state"] == "complete")
    many = cells.groupby(BLOCK)["method"].transform(lambda methods: in_rows(list(methods))).astype(bool)
    row = value.groupby([cells["base"].mask(many, ""), *(cells[key] for key in ROW if key != "base")])
    best, worst = row.transform("max"), row.transform("min")
    return (value == best) & (best > worst)
