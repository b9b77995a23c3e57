"""What should I deploy? All finished systems of a report under one rule and the same costs, best first."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from l2d.errors import UserError
from l2d.report.again import decide_again, name_left_out
from l2d.report.load import BLOCK
from l2d.report.methods import label

if TYPE_CHECKING:  # torch takes seconds to import, and a report without this needs none
    from torch import Tensor

    from l2d.evaluation.outcome import Outcome

CELL = ["num_experts", "method"]
HEADINGS = [
    "",
    "Method",
    "Cost per 100 cases",
    "behind the best",
    "Error (%)",
    "Coverage (%)",
    "Questions",
    "Area",
    "AUGRC",
    "Seeds",
]
VALUES = ("system_cost", "area", "augrc")
MOST_CLASSES = 8  # shown of those that the best method asks about most
LEGEND = (
    "Every finished system decides under the same rule and the same costs. Cost is what errors and questions cost together; in brackets 95 percent "
    "intervals over other test sets of the same size (bootstrap), those of the differences paired by sample. Area and AUGRC are of the curve over all prices of asking."
)


@dataclass(frozen=True)
class Deployed:
    """`ranking`: a row per method and number of experts, best first. `asked`: of the best one, who is asked how often."""

    ranking: pd.DataFrame
    asked: pd.DataFrame
    changes: str  # the rule and the costs, as they were given
    legend: str = LEGEND

    @cached_property
    def tables(self) -> "list[DeployTable]":
        return _tables(self)


@dataclass(frozen=True)
class Decided:
    """A run under the rule, with what it is ranked and compared by."""

    outcome: "Outcome"
    values: (
        "Tensor"  # [1 + R, M] on the test set, then on its resamples: cost and, where there is a curve, area and AUGRC
    )


def deploy(runs: pd.DataFrame, changes: list[str]) -> Deployed:
    """Decide again in every finished run that kept its scores, under `changes` (rule=..., experts.costs=...)."""
    found: list[tuple[dict[str, Any], Decided]] = []
    left_out: dict[str, list[str]] = {}  # reason -> runs
    for row in _finished(runs):
        folder = Path(row["folder"])
        try:
            found.append((row, _decided(folder, changes)))
        except UserError as error:
            left_out.setdefault(str(error), []).append(folder.name)
    name_left_out(left_out)
    if not found:
        raise UserError(
            f"--deploy {' '.join(changes)}: no finished run here can be decided again; see the notices above."
        )
    ranking, asked = [], []
    blocks = pd.DataFrame([row for row, _ in found]).groupby([*BLOCK, "num_experts"], sort=False).groups
    for key, places in blocks.items():
        here = [found[place] for place in places]
        rows = _ranked(here)
        block = dict(zip([*BLOCK, "num_experts"], key if isinstance(key, tuple) else (key,), strict=True))
        ranking += [{**block, **row} for row in rows]
        best = [decided.outcome for row, decided in here if row["method"] == rows[0]["method"]]
        asked += [{**block, "method": rows[0]["method"], **row} for row in _asked(best)]
    return Deployed(pd.DataFrame(ranking), pd.DataFrame(asked), " ".join(changes))


@dataclass(frozen=True)
class DeployTable:
    """A table as it is shown: texts, and what the page filters by."""

    title: str
    dataset: str
    methods: list[str]  # of the rows, the best first
    headings: list[str]
    rows: list[list[str]]
    asked_title: str
    asked_headings: list[str]
    asked: list[list[str]]  # of the best method


def _tables(deployed: Deployed) -> list[DeployTable]:
    """One for each block and number of experts."""
    tables = []
    for key, group in deployed.ranking.groupby([*BLOCK, "num_experts"], sort=False):
        dataset, experts, setting, num = key
        title = f"{dataset}, {experts} experts, J={num}" + (f" ({setting})" if setting else "")
        rows = [
            [
                str(row["rank"]),
                label(row["method"]),
                _with_interval(row, "system_cost"),
                _with_interval(row, "system_cost_behind") if row["rank"] > 1 else "",
                *(f"{row[name]:.2f}" for name in ("system_error", "coverage", "questions_asked")),
                *(_with_interval(row, name) for name in VALUES[1:]),
                str(row["seeds"]),
            ]
            for row in group.to_dict("records")
        ]
        here = deployed.asked[(deployed.asked[[*BLOCK, "num_experts"]] == list(key)).all(axis=1)]
        classes = [name for name in here if name.startswith("class ") and here[name].notna().all()]
        most = here[classes].max().sort_values(ascending=False, kind="stable").index[:MOST_CLASSES].tolist()
        asked = [
            [row["expert"], f"{row['asked']:.1f}", *(f"{row[name]:.1f}" for name in most)]
            for row in here.to_dict("records")
        ]
        headings = ["Expert", "asked (%)", *(name.removeprefix("class ") for name in most)]
        which = f"of {len(most)} classes" if len(most) < len(classes) else "of each class"
        who = f"Whom {label(here['method'].iloc[0])} asks, in percent of all cases and {which}"
        tables.append(DeployTable(title, dataset, list(group["method"]), HEADINGS, rows, who, headings, asked))
    return tables


def _with_interval(row: dict[str, Any], name: str) -> str:
    value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None or pd.isna(value):
        return ""
    return f"{value:.2f}" + ("" if low is None or pd.isna(low) else f" [{low:.2f}, {high:.2f}]")


def _finished(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Whatever rule and costs they were reported under: all are decided again."""
    finished = runs[runs["status"] == "finished"].assign(setting=lambda frame: frame["trained_with"])
    return finished.drop_duplicates([*BLOCK, *CELL, "seed"]).to_dict("records")


def _decided(folder: Path, changes: list[str]) -> Decided:
    """The run in a folder on its test set; a UserError says why it cannot be decided again."""
    outcomes = decide_again(folder, changes, "--deploy").outcomes
    return Decided(outcomes["test"], _values(outcomes["test"], outcomes.get("held_out")))


def _values(outcome: "Outcome", held_out: "Outcome | None") -> "Tensor":
    """[1 + R, M]; the columns are the first ones of VALUES."""
    import torch

    from l2d.evaluation.areas import areas, resampled_areas
    from l2d.evaluation.full import without_limits
    from l2d.evaluation.intervals import resampled_means

    cost = 100 * (outcome.loss + outcome.spent)[:, None]  # [N, 1]
    columns = [torch.cat([cost.mean(dim=0, keepdim=True), resampled_means(cost)])]
    if outcome.decision.answer is None:  # several opinions have no curve over prices
        free = without_limits(outcome, held_out)
        columns.append(torch.cat([areas(free, torch.ones(1, len(free.labels))), resampled_areas(free)]))
    return torch.cat(columns, dim=1)


def _ranked(found: list[tuple[dict[str, Any], Decided]]) -> list[dict[str, Any]]:
    """The methods of a block with one number of experts, by what errors and questions cost together, mean over seeds."""
    import torch

    from l2d.evaluation.metrics import coverage, questions_asked, system_error

    by_method: dict[str, list[Decided]] = {}
    for row, decided in found:
        by_method.setdefault(row["method"], []).append(decided)
    values = {method: torch.stack([run.values for run in seeds]).mean(dim=0) for method, seeds in by_method.items()}
    order = sorted(values, key=lambda method: values[method][0, 0].item())
    labels = found[0][1].outcome.labels
    paired = all(torch.equal(decided.outcome.labels, labels) for _, decided in found)
    rows = []
    for rank, method in enumerate(order, start=1):
        seeds = by_method[method]
        metrics = {
            metric.__name__: sum(metric(run.outcome) for run in seeds) / len(seeds)
            for metric in (system_error, coverage, questions_asked)
        }
        compared = _compared(values[method], values[order[0]], paired)
        rows.append({"rank": rank, "method": method, "seeds": len(seeds), **compared, **metrics})
    return rows


def _compared(values: "Tensor", best: "Tensor", paired: bool) -> dict[str, float | None]:
    """Each of VALUES with its interval and its distance from the best method's, whose interval needs the same test samples."""
    from l2d.evaluation.intervals import interval

    found: dict[str, float | None] = {}
    for name, ours, theirs in zip(VALUES, values.T, best.T, strict=False):  # [1 + R] each
        for key, column in ((name, ours), (f"{name}_behind", ours - theirs)):
            low, high = (end.item() for end in interval(column[1:]))
            known = paired or column is ours
            found |= {
                key: column[0].item(),
                f"{key}_low": low if known else None,
                f"{key}_high": high if known else None,
            }
    return found


def _asked(seeds: "list[Outcome]") -> list[dict[str, Any]]:
    """How often each expert is asked, in all cases and in those of each class, mean over the seeds that have it."""
    from l2d.evaluation.by_class import by_class

    rows = []
    for outcome in seeds:
        deployment, asked = outcome.deployment, by_class(outcome).asked[:, 1:]  # [K, J]
        assert deployment is not None and deployment.class_names is not None
        count = outcome.labels.bincount(minlength=outcome.num_classes)  # [K]
        share = (100 * asked / count[:, None]).tolist()  # [K, J]; nan of a class without samples
        for j, name in enumerate(deployment.expert_names):
            by_name = {f"class {of}": share[k][j] for k, of in enumerate(deployment.class_names) if count[k]}
            rows.append({"expert": name, "asked": 100 * asked[:, j].sum().item() / len(outcome.labels), **by_name})
    mean: list[dict[str, Any]] = (
        pd.DataFrame(rows).groupby("expert", sort=False).mean().reset_index().to_dict("records")
    )
    return mean
