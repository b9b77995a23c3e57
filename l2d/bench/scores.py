"""From the runs of a benchmark to its tables: every method on every task, and every method over all tasks."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from l2d.report.statistics import holm, student_interval


class Scores(NamedTuple):
    """`cells`: a row per task and method. `methods`: a row per method, best mean rank first. `comparison`: see Comparison."""

    cells: pd.DataFrame
    methods: pd.DataFrame
    comparison: "Comparison"


class Comparison(NamedTuple):
    """Tests over the tasks, with the mean excess of a method on a task as one value. On a task that only one of two methods can
    do, that one is ahead by more than on any other."""

    tasks: int
    friedman: (
        float  # probability of ranks as different as these if the methods were equal; NaN with too few tasks or methods
    )
    wilcoxon: pd.DataFrame  # [methods, methods]: of each pair, not corrected; NaN with too few tasks

    def of_all_pairs(self) -> pd.DataFrame:
        """[methods, methods] corrected by Holm for the number of pairs."""
        upper = np.triu(np.ones(self.wilcoxon.shape, dtype=bool), 1)
        corrected = np.full(self.wilcoxon.shape, np.nan)
        corrected[upper] = holm(self.wilcoxon.to_numpy()[upper].tolist())
        return pd.DataFrame(
            np.where(upper, corrected, corrected.T), index=self.wilcoxon.index, columns=self.wilcoxon.columns
        )

    def against(self, method: str) -> pd.Series:
        """Of one method with each other, corrected by Holm for these alone."""
        row = self.wilcoxon.loc[method].drop(method)
        return pd.Series(holm(row.tolist()), index=row.index)

    def smallest(self) -> float:
        """What the corrected probability of a pair is at least, whatever the runs say: that of one method ahead on every task."""
        pairs = len(self.wilcoxon) * (len(self.wilcoxon) - 1) // 2
        return min(1.0, pairs * 2 / 2**self.tasks)


def score(runs: pd.DataFrame, anchor: str) -> Scores:
    """The scores of the reported runs. The excess of a run is its regret where the best achievable is known, and else its cost
    or error; normalised, it is a share of the anchor's mean excess on the same task."""
    cells = score_cells(runs, anchor)
    return Scores(cells, score_methods(cells), compare(cells))


def excess(runs: pd.DataFrame) -> pd.Series:
    """Regret; where it is not known, what errors and questions cost; where nothing has a price, the error."""
    numbers = runs[["regret_total", "system_cost", "system_error"]].astype(float)
    return numbers["regret_total"].fillna(numbers["system_cost"]).fillna(numbers["system_error"])


def score_cells(runs: pd.DataFrame, anchor: str) -> pd.DataFrame:
    """A row per task and method, in their order: the mean excess over `n` seeds with its 95% interval, the mean of the other
    numbers, the rank on the task (equal ones share the mean rank; who could not finish shares the last ranks), and the reason."""
    rows = []
    for (task, method), group in runs.assign(excess=excess(runs)).groupby(["task", "method"], sort=False):
        done = group[group["error"].isna()]
        low, high = student_interval(done["excess"]) if len(done) else (np.nan, np.nan)
        means = done[["excess", "system_error", "coverage", "classifier_accuracy", "seconds"]].astype(float).mean()
        parts = done[["regret_classifier", "regret_decision", "regret_expert", "best_achievable"]].astype(float).mean()
        errors = group["error"].dropna()
        known = bool(done["regret_total"].notna().all()) if len(done) else False
        facts = {
            "n": len(done),
            "low": low,
            "high": high,
            "known": known,
            "error": errors.iloc[0] if len(errors) else None,
        }
        rows.append({"task": task, "method": method, **means, **parts, **facts})
    cells = pd.DataFrame(rows)
    cells["rank"] = cells.groupby("task")["excess"].transform(lambda e: e.round(4).rank(na_option="bottom"))
    anchors = cells[cells["method"] == anchor].set_index("task")["excess"]
    cells["normalised"] = cells["excess"] / cells["task"].map(anchors)
    return cells


def score_methods(cells: pd.DataFrame) -> pd.DataFrame:
    """A row per method, best mean rank first: mean rank, mean and largest normalised excess and on which task that is, how many
    tasks it finished and on how many it is the best, mean seconds of a run."""
    rows = []
    for method, group in cells.groupby("method", sort=False):
        done = group.dropna(subset="normalised")
        worst = done.loc[done["normalised"].idxmax()] if len(done) else None
        rows.append(
            {
                "method": method,
                "mean_rank": group["rank"].mean(),
                "mean_normalised": done["normalised"].mean(),
                "worst_normalised": np.nan if worst is None else worst["normalised"],
                "worst_task": None if worst is None else worst["task"],
                "best_on": int((group["rank"] == 1).sum()),
                "tasks": len(done),
                "of": len(group),
                "seconds": done["seconds"].mean(),
            }
        )
    return pd.DataFrame(rows).sort_values(["mean_rank", "mean_normalised"], ignore_index=True)


def compare(cells: pd.DataFrame) -> Comparison:
    """Friedman's test, and Wilcoxon's signed-rank test of every pair of methods."""
    from scipy.stats import friedmanchisquare, wilcoxon  # loads slowly

    methods = list(dict.fromkeys(cells["method"]))
    table = cells.pivot(index="task", columns="method", values="excess")[methods]  # [tasks, methods]
    pairs = pd.DataFrame(np.nan, index=methods, columns=methods)
    if len(table) < 2 or len(methods) < 2:
        return Comparison(len(table), np.nan, pairs)
    ranks = table.rank(axis=1, na_option="bottom")
    friedman = friedmanchisquare(*ranks.T.to_numpy()).pvalue if len(methods) > 2 else np.nan
    refused = 1 + 2 * table.abs().max(axis=None)  # further behind than any other
    whole = table.fillna(refused)
    for i, a in enumerate(methods):
        for b in methods[:i]:
            difference = whole[a] - whole[b]
            p = wilcoxon(difference).pvalue if (difference != 0).any() else 1.0
            pairs.loc[a, b] = pairs.loc[b, a] = p
    return Comparison(len(table), float(friedman), pairs)
