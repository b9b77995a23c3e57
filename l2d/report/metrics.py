"""Which metrics the report shows: the package's headline metrics, and the user's own metrics in the runs."""

import json
import math
from typing import Any, NamedTuple

import pandas as pd

from l2d.evaluation.metrics import HEADLINE, METRICS, REFERENCE

LARGEST = 1e30  # beyond it sums of squares overflow, and figures cannot be drawn


class ShownMetric(NamedTuple):
    """A metric as tables and figures show it: an l2d.evaluation.Metric without its function."""

    name: str
    label: str
    better: str
    short: str
    role: str

    @property
    def heading(self) -> str:
        return self.short or self.label


HEADLINE_SHOWN = [ShownMetric(m.name, m.label, m.better, m.short, m.role) for m in HEADLINE]
REFERENCE_SHOWN = [ShownMetric(m.name, m.label, m.better, m.short, m.role) for m in REFERENCE]


def shown_metrics(runs: pd.DataFrame) -> list[ShownMetric]:
    """The metrics of these runs: headline ones first, then the user's own that have a number in any run."""
    own: dict[str, ShownMetric] = {}
    for text in runs["own_metrics"].unique():
        for entry in json.loads(text):
            metric = ShownMetric(**entry)
            if metric.name in runs and runs[metric.name].notna().any():
                own.setdefault(metric.name, metric)
    ranked = sorted(own.values(), key=lambda metric: metric.role != "headline")
    return [*HEADLINE_SHOWN, *ranked]


def read_own_metrics(entries: Any) -> list[dict[str, str]]:
    """The entries of `own_metrics` in a result.json, checked; ValueError says what is wrong with one."""
    own = []
    for entry in entries or []:
        name, better = entry["name"], entry.get("better")
        if not isinstance(name, str) or name in {metric.name for metric in METRICS}:
            raise ValueError(f"own_metrics has the name {name!r}, which is taken or not a string")
        if better not in ("lower", "higher"):
            raise ValueError(f"own_metrics says better={better!r} of {name}; it must be lower or higher")
        texts = {key: str(entry.get(key) or "") for key in ("label", "short", "role")}
        own.append({"name": name, "better": better, **texts, "label": texts["label"] or name})
    return own


def read_number(value: Any, key: str) -> float:
    """A number of a result.json; NaN where there is none, ValueError where there is something else."""
    if value is None:
        return math.nan
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (abs(value) <= LARGEST or math.isnan(value))
    ):
        raise ValueError(f"{key} is {value!r}, not a number up to {LARGEST:g}")
    return float(value)


def read_whole(value: Any, key: str) -> int:
    """A whole number of a result.json or config.yaml, ValueError where there is something else."""
    number = read_number(value, key)
    if not number.is_integer() or abs(number) > 2**53:
        raise ValueError(f"{key} is {value!r}, not a whole number")
    return int(value)


def read_metrics(metrics: Any, own: list[dict[str, str]]) -> dict[str, Any]:
    """name -> number of a finished run; the headline metrics must be there.

    A detail of the package may be a list of numbers, one per expert; lists of a user's own metric are not shown.
    """
    if not isinstance(metrics, dict):
        raise ValueError(f"metrics is {metrics!r}, not a mapping")
    read: dict[str, Any] = {}
    for metric in METRICS:
        value, key = metrics.get(metric.name), f"metrics.{metric.name}"
        if metric.role == "detail" and isinstance(value, list):
            read[metric.name] = [read_number(v, key) for v in value]
        else:
            read[metric.name] = read_number(value, key)
    for name in (metric["name"] for metric in own):
        if not isinstance(metrics.get(name), list):
            read[name] = read_number(metrics.get(name), f"metrics.{name}")
    for metric in HEADLINE:
        if not math.isfinite(read[metric.name]):
            raise ValueError(f"metrics.{metric.name} is {metrics.get(metric.name)!r}, and the run says finished")
    return read
