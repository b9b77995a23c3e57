"""Runs -> the cells of tables: mean and standard deviation over seeds, beside the published number."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pandas as pd

from l2d.errors import notify
from l2d.report.load import BLOCK, CELL, METRICS

METHODS = {"vanilla": "Vanilla", "picce": "PiCCE", "pice": "PiCE"}
BASES = {"ce": "CE", "ova": "OvA"}
LOWER_IS_BETTER = {"system_error"}


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per cell of every block's table, the missing cells too.

    A cell's `state` is complete, partial (only `n` of the block's `seeds` finished), failed, unfinished or missing; its
    mean and sample standard deviation (n - 1) are over the finished seeds. `<metric>_better` is the better of vanilla
    and PiCCE at the printed two decimals, where both are complete.
    """
    published = load_published()
    runs = one_per_seed(runs)
    cells = pd.DataFrame(
        [_cell(key, group) for block, group in runs.groupby(BLOCK) for key in _grid(block, group, published)]
    )
    cells = cells.merge(
        published, on=["dataset", "experts", "base", "num_experts", "method"], how="left", suffixes=("", "_published")
    )
    for metric in METRICS:
        if f"{metric}_published" in cells:
            cells[f"{metric}_difference"] = cells[metric] - cells[f"{metric}_published"]
        cells[f"{metric}_better"] = _better(cells, metric)
    return cells


def load_published() -> pd.DataFrame:
    """The paper's Tables 1, 2 and 4, which ship with the package."""
    with files("l2d.report").joinpath("published.csv").open() as file:
        return pd.read_csv(file).rename(columns={"formulation": "method"})


def one_per_seed(runs: pd.DataFrame) -> pd.DataFrame:
    """A seed counts once in a cell: of several runs of the same thing the finished one, then the first folder."""
    order = runs.assign(_late=runs["status"] != "finished").sort_values([*CELL, "seed", "_late", "folder"])
    again = order.duplicated([*CELL, "seed"])
    return order[~again].drop(columns="_late")


def repeated(runs: pd.DataFrame) -> None:
    """Name the runs that `one_per_seed` leaves out."""
    for folder in runs.drop(one_per_seed(runs).index)["folder"]:
        notify(f"{folder} repeats another run of the same setting and seed, and is not counted.")


def _grid(block: tuple, runs: pd.DataFrame, published: pd.DataFrame) -> Iterator[tuple]:
    """The cells the block's table should have: every base, count and method of its runs and of the published table."""
    printed = published[(published["dataset"] == block[0]) & (published["experts"] == block[1])]
    known = pd.concat([runs[["base", "num_experts", "method"]], printed[["base", "num_experts", "method"]]])
    own = set(runs.loc[runs["base"] == "own", "method"])
    rivals = {"vanilla", "picce"} - {method.split(" ")[0] for method in known["method"]}
    methods = _ordered({*known["method"]} - own | rivals, METHODS)
    for base in _ordered(set(known["base"]), BASES):
        for num in sorted(set(known["num_experts"])):
            for method in methods if base != "own" else sorted(own):
                yield (*block, base, num, method)


def _cell(key: tuple, block: pd.DataFrame) -> dict[str, Any]:
    _, _, _, base, num, method = key
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
        **dict(zip(CELL, key, strict=True)),
        "loss": here["loss"].iloc[0] if len(here) else (base if method == "vanilla" else f"{method}_{base}"),
        "state": state,
        "n": n,
        "seeds": seeds,
        **{metric: done[metric].mean() for metric in METRICS},
        **{f"{metric}_std": done[metric].std() for metric in METRICS},
        **bayes.to_dict(),
    }


def _better(cells: pd.DataFrame, metric: str) -> pd.Series:
    """True where a complete vanilla or PiCCE cell beats the other one."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    value = (sign * cells[metric]).round(2).where(cells["state"] == "complete")
    other = pd.Series(float("nan"), index=cells.index)
    for method, rival in (("vanilla", "picce"), ("picce", "vanilla")):
        place = cells.loc[cells["method"] == rival, CELL[:-1]].assign(rival=value)
        mine = cells.loc[cells["method"] == method, CELL[:-1]].reset_index().merge(place, on=CELL[:-1])
        other.loc[mine["index"]] = mine["rival"].to_numpy()
    return value > other


def blocks(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each table's title and cells (or runs, or pairs)."""
    for (dataset, experts, setting), block in cells.groupby(BLOCK):
        yield f"{dataset}, {experts} experts" + (f" ({setting})" if setting else ""), block


def losses_of(block: pd.DataFrame) -> list[tuple[str, str]]:
    """The (base, method) pairs of a block's cells, in the order of its table."""
    return list(dict.fromkeys(zip(block["base"], block["method"], strict=True)))


def method_label(method: str) -> str:
    name, _, more = method.partition(" ")
    return f"{METHODS.get(name, name)} {more}".strip()


def loss_label(base: str, method: str) -> str:
    return f"{BASES.get(base, base)} {method_label(method)}" if base != "own" else method_label(method)


def _ordered(names: set[str], known: dict[str, str]) -> list[str]:
    """The known ones in their order, then the others by name."""
    place = list(known)
    return sorted(names, key=lambda name: (place.index(name) if name in place else len(place), name))
