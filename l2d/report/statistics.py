"""Intervals: of a method minus its baseline over the same seeds (Student's t), and of a share (Wilson); tests: of several at once (Holm)."""

import math

import pandas as pd
from scipy.special import ndtri, stdtrit  # quantiles of scipy.stats' norm and t, without loading all of scipy.stats

from l2d.report.load import BLOCK, CELL
from l2d.report.methods import baselines, check_baseline
from l2d.report.metrics import shown_metrics
from l2d.report.tables import one_per_seed


def paired_differences(runs: pd.DataFrame, baseline: str | None = None) -> pd.DataFrame:
    """For each method with a baseline, number of experts and metric: the mean of d_s = method_s - baseline_s over the
    seeds s that finished both, and its 95% interval, mean +- t_{0.975, n-1} std(d) / sqrt(n). One seed gives no interval.

    Every method is compared with `baseline`, or without one with the vanilla loss of its base.
    """
    check_baseline(runs, baseline)
    metrics, rows = shown_metrics(runs), []
    for block, group in one_per_seed(runs[runs["status"] == "finished"]).groupby(BLOCK):
        for method, other in baselines(group, baseline).items():
            mine, theirs = (group[group["method"] == name] for name in (method, other))
            pairs = mine.merge(theirs, on=["num_experts", "seed"], suffixes=("", "_other"))
            for num, seeds in pairs.groupby("num_experts"):
                for metric in metrics:
                    difference = (seeds[metric.name] - seeds[f"{metric.name}_other"]).dropna()
                    if n := len(difference):
                        cell = (*block, mine["base"].iloc[0], num, method, other, metric.name)
                        rows.append((*cell, n, difference.mean(), *student_interval(difference)))
    return pd.DataFrame(rows, columns=[*CELL, "baseline", "metric", "n", "difference", "low", "high"])


def student_interval(values: pd.Series) -> tuple[float, float]:
    """The 95% interval of the mean of these values, by Student's t; NaN for one value."""
    n, mean = len(values), values.mean()
    half = stdtrit(n - 1, 0.975) * values.std() / math.sqrt(n) if n > 1 else math.nan
    return mean - half, mean + half


def share_interval(hits: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """The ends, in percent, of Wilson's interval of a share of which `hits` of `count` were seen.

    >>> [round(end, 2) for end in share_interval(8, 10)]
    [49.02, 94.33]
    """
    z, share = float(ndtri((1 + level) / 2)), hits / count
    middle, half = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    scale = 100 / (1 + z * z / count)
    return max(scale * (middle - half), 0.0), min(scale * (middle + half), 100.0)


def holm(probabilities: list[float]) -> list[float]:
    """Holm's step-down correction, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(probabilities), 0.0
    for place, i in enumerate(sorted(range(len(probabilities)), key=lambda i: probabilities[i])):
        largest = max(largest, min(1.0, (len(probabilities) - place) * probabilities[i]))
        corrected[i] = largest
    return corrected
