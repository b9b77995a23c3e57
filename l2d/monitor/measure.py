"""What to watch: how much each expert is asked, whether beliefs come true, whether anything drifts, which answers are missing."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from l2d.monitor.read import Log
from l2d.report.statistics import holm, share_interval

SYSTEM = "the system itself"
FEW = 10  # cases of a category in both parts together; rarer ones are counted together
DRIFT = {
    "who is asked": "who",
    "predicted classes": "predicted",
    "probability of the predicted class": "probability",
    "gain of asking": "gain",
}  # what is compared -> its column


class Share(NamedTuple):
    """Percent of something in one part, or in all of them."""

    who: str
    part: int | None  # None: all
    cases: int  # that it is the share of
    share: float


class Believed(NamedTuple):
    """How likely somebody was believed to be right, and how often that was so, in percent, where the truth is known."""

    who: str
    cases: int
    believed: float
    realised: float
    low: float
    high: float

    @property
    def outside(self) -> bool:
        """Whether what was believed is outside the 95% interval of what happened."""
        return not self.low <= self.believed <= self.high


class Drift(NamedTuple):
    """Whether the first and the last part differ; p is that of a test, `adjusted` by Holm for the number of tests."""

    what: str
    test: str
    cases: int
    p: float | None  # None: too few to tell
    adjusted: float | None = None


@dataclass(frozen=True)
class Measured:
    load: list[Share]  # of the cases
    missing: list[Share]  # of the questions
    beliefs: list[Believed]
    drift: list[Drift]
    system: Believed | None  # the final answers, with what was believed of whoever gave them


def measure(log: Log) -> Measured:
    """Everything that is watched."""
    return Measured(_load(log), _missing(log), _beliefs(log), adjusted(_drift(log)), _final(log))


def _load(log: Log) -> list[Share]:
    """The share of the cases about which each expert is asked, in every part and in all."""
    sizes = log.cases["part"].value_counts()
    kept = log.cases[~log.cases["asked"].astype(bool)]
    rows = []
    for who in [SYSTEM, *log.experts]:
        counts = (kept if who == SYSTEM else log.questions[log.questions["expert"] == who])["part"].value_counts()
        rows += [
            Share(who, part, int(sizes[part]), 100 * counts.get(part, 0) / sizes[part]) for part in range(log.parts)
        ]
        rows.append(Share(who, None, len(log.cases), 100 * counts.sum() / len(log.cases)))
    return rows


def _missing(log: Log) -> list[Share]:
    """The share of the questions to each expert, and to all, that have no answer."""
    rows = []
    for who, asked in [("all", log.questions), *log.questions.groupby("expert")]:
        for part, some in [*((part, asked[asked["part"] == part]) for part in range(log.parts)), (None, asked)]:
            if len(some):
                rows.append(Share(str(who), part, len(some), 100 * some["answer"].isna().mean()))
    return rows


def _beliefs(log: Log) -> list[Believed]:
    """Of the system where it answered, and of every expert where it was asked."""
    kept = log.cases[~log.cases["asked"].astype(bool)].dropna(subset="label")
    found = [_believed(SYSTEM, kept["probability"], kept["predicted"] == kept["label"])]
    known = log.questions.dropna(subset=["answer", "label", "believed"])
    for who, some in known.groupby("expert"):
        found.append(_believed(str(who), some["believed"], some["answer"] == some["label"]))
    return [row for row in found if row is not None]


def _final(log: Log) -> Believed | None:
    """Of the final answer, where it is known who gave it: the system or the only expert who was asked."""
    kept = log.cases[~log.cases["asked"].astype(bool)].dropna(subset="label")
    single = log.questions[log.questions["together"] == 1].dropna(subset=["answer", "label", "believed"])
    believed = pd.concat([kept["probability"], single["believed"]])
    right = pd.concat([kept["predicted"] == kept["label"], single["answer"] == single["label"]])
    return _believed("all of them", believed, right)


def _believed(who: str, believed: pd.Series, right: pd.Series) -> Believed | None:
    if not len(right):
        return None
    hits, count = int(right.sum()), len(right)
    return Believed(who, count, 100 * float(believed.mean()), 100 * hits / count, *share_interval(hits, count))


def _drift(log: Log) -> list[Drift]:
    """The first part against the last."""
    from scipy.stats import ks_2samp

    cases = log.cases.assign(who=log.cases["decision"].where(log.cases["asked"].astype(bool), SYSTEM))
    first, last = (cases[cases["part"] == part] for part in (0, log.parts - 1))
    rows = []
    for what, column in DRIFT.items():
        before, after = first[column].dropna(), last[column].dropna()
        if pd.api.types.is_numeric_dtype(cases[column]):
            p = float(ks_2samp(before, after).pvalue) if len(before) and len(after) else None
            rows.append(Drift(what, "Kolmogorov-Smirnov", len(before) + len(after), p))
        else:
            rows.append(Drift(what, "chi-square", len(before) + len(after), chi_square(before, after)))
    return rows


def chi_square(before: pd.Series, after: pd.Series) -> float | None:
    """The p-value of the chi-square test that both have the same shares; rare categories are counted together. None: too few."""
    from scipy.stats import chi2_contingency

    table = pd.DataFrame({"before": before.value_counts(), "after": after.value_counts()}).fillna(0)
    rare = table.sum(axis=1) < FEW
    counts = [*table[~rare].to_numpy(), *([table[rare].sum().to_numpy()] if rare.any() else [])]
    counts.sort(key=lambda row: -row.sum())
    if len(counts) > 1 and counts[-1].sum() < FEW:  # the rare ones together are still too few
        counts[-2:] = [counts[-2] + counts[-1]]
    if len(counts) < 2 or not np.sum(counts, axis=0).all():
        return None
    return float(chi2_contingency(np.array(counts), correction=False).pvalue)


def adjusted(tests: list[Drift]) -> list[Drift]:
    """The tests with p-values adjusted for their number, by Holm's method."""
    known = [i for i, test in enumerate(tests) if test.p is not None]
    corrected = dict(zip(known, holm([tests[i].p or 0.0 for i in known]), strict=True))
    return [test._replace(adjusted=corrected.get(i)) for i, test in enumerate(tests)]
