"""PiCCE minus vanilla over the same seeds, with Student's t interval (written out: scipy is not a dependency)."""

import math

import pandas as pd

from l2d.report.load import BLOCK, METRICS
from l2d.report.tables import one_per_seed


def paired_differences(runs: pd.DataFrame, method: str = "picce", against: str = "vanilla") -> pd.DataFrame:
    """For each block, base, count and metric: the mean of d_s = method_s - against_s over the seeds s that finished
    both, and its 95% interval, mean +- t_{0.975, n-1} std(d) / sqrt(n). One seed gives no interval."""
    cell = [*BLOCK, "base", "num_experts"]
    done = one_per_seed(runs[runs["status"] == "finished"])
    sides = (done[done["method"] == name][[*cell, "seed", *METRICS]] for name in (method, against))
    pairs = pd.merge(*sides, on=[*cell, "seed"], suffixes=("", "_other"))
    rows = []
    for key, group in pairs.groupby(cell):
        for metric in METRICS:
            difference = group[metric] - group[f"{metric}_other"]
            n, mean = len(difference), difference.mean()
            half = t_quantile(0.975, n - 1) * difference.std() / math.sqrt(n) if n > 1 else math.nan
            rows.append((*key, metric, n, mean, mean - half, mean + half))
    return pd.DataFrame(rows, columns=[*cell, "metric", "n", "difference", "low", "high"])


def t_quantile(probability: float, freedom: int) -> float:
    """The t with Pr(T <= t) = probability, for probability >= 0.5, by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high


def t_cdf(t: float, freedom: int) -> float:
    """Pr(T <= t) for t >= 0 and a whole number of degrees of freedom: the finite series in a = atan(t / sqrt(freedom)).

    Pr(|T| <= t) is sin a (1 + 1/2 cos^2 a + 1*3/(2*4) cos^4 a + ...) for even freedom, and
    2/pi (a + sin a (cos a + 2/3 cos^3 a + 2*4/(3*5) cos^5 a + ...)) for odd; the last power is freedom - 2.
    """
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    both = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 + both) / 2
