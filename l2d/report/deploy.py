"""What should I deploy? All finished systems of a report under one rule and the same costs, best first."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from l2d.errors import UserError, notify
from l2d.report.load import BLOCK
from l2d.report.methods import label
from l2d.tracking.trained import FROM_OUTCOME, changed, find_run

if TYPE_CHECKING:  # torch takes seconds to import, and a report without this needs none
    from torch import Tensor

    from l2d.evaluation.outcome import Outcome

CELL = ["num_experts", "method"]
HEADINGS = ["", "Method", "Cost per 100 cases", "behind the best", "Error (%)", "Coverage (%)", "Questions", "Seeds"]
MOST_CLASSES = 8  # shown of those that the best method asks about most
LEGEND = (
    "Every finished system decides under the same rule and the same costs. Cost is what errors and questions cost together; in brackets 95 percent "
    "intervals over other test sets of the same size (bootstrap), those of the differences paired by sample. Below, whom the best method asks, and about which classes."
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


def deploy(runs: pd.DataFrame, changes: list[str]) -> Deployed:
    """Decide again in every finished run that kept its scores, under `changes` (rule=..., experts.costs=...)."""
    found = [(row, outcome) for row in _finished(runs) if (outcome := _decided(row, changes)) is not None]
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
        best = [outcome for row, outcome in here if row["method"] == rows[0]["method"]]
        asked += [{**block, "method": rows[0]["method"], **row} for row in _asked(best)]
    return Deployed(pd.DataFrame(ranking), pd.DataFrame(asked), " ".join(changes))


@dataclass(frozen=True)
class DeployTable:
    """A table as it is shown: texts alone."""

    title: str
    headings: list[str]
    rows: list[list[str]]
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
                f"{row['system_cost']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
                _behind(row),
                *(f"{row[name]:.2f}" for name in ("system_error", "coverage", "questions")),
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
        tables.append(DeployTable(title, HEADINGS, rows, headings, asked))
    return tables


def _behind(row: dict[str, Any]) -> str:
    if row["rank"] == 1:
        return ""
    low, high = row["behind_low"], row["behind_high"]
    return f"{row['behind']:.2f}" + ("" if low is None or pd.isna(low) else f" [{low:.2f}, {high:.2f}]")


def _finished(runs: pd.DataFrame) -> list[dict[str, Any]]:
    finished = runs[runs["status"] == "finished"]
    return finished.drop_duplicates([*BLOCK, *CELL, "seed"]).to_dict("records")


def _decided(row: dict[str, Any], changes: list[str]) -> "Outcome | None":
    """The outcome of a run on its test set; None, with a notice, for one that cannot be decided again."""
    from l2d.evaluation.again import evaluate_kept

    folder = Path(row["folder"])
    try:
        run = find_run(str(folder))
        cfg, touched = changed(run, changes, ())
        if touched - FROM_OUTCOME:
            raise UserError(
                f"--deploy takes rule and experts.costs alone, not {', '.join(sorted(touched - FROM_OUTCOME))}."
            )
        cfg.evaluation._target_ = None  # the decision alone
        evaluated = evaluate_kept(cfg, folder, run.result)
    except UserError as error:
        notify(f"{folder.name} is left out: {error}")
        return None
    if evaluated is None:
        notify(f"{folder.name} is left out: it kept no scores (record=scores).")
        return None
    return evaluated.outcomes["test"]


def _ranked(found: "list[tuple[dict[str, Any], Outcome]]") -> list[dict[str, Any]]:
    """The methods of a block with one number of experts, by what errors and questions cost together."""
    import torch

    from l2d.evaluation.intervals import interval, resampled_means

    by_method: dict[str, list[Outcome]] = {}
    for row, outcome in found:
        by_method.setdefault(row["method"], []).append(outcome)
    cost = {method: _mean([o.loss + o.spent for o in seeds]) for method, seeds in by_method.items()}  # [N] each
    order = sorted(cost, key=lambda method: cost[method].mean().item())
    paired = len({len(values) for values in cost.values()}) == 1
    rows = []
    for rank, method in enumerate(order, start=1):
        seeds, columns = by_method[method], [cost[method]]
        if paired:
            columns.append(cost[method] - cost[order[0]])
        means = 100 * resampled_means(torch.stack(columns, dim=1))  # [R, 1 or 2]
        (low, *behind_low), (high, *behind_high) = (end.tolist() for end in interval(means))
        rows.append(
            {
                "rank": rank,
                "method": method,
                "seeds": len(seeds),
                "system_cost": 100 * cost[method].mean().item(),
                "low": low,
                "high": high,
                "behind": 100 * (cost[method].mean() - cost[order[0]].mean()).item(),
                "behind_low": behind_low[0] if paired else None,
                "behind_high": behind_high[0] if paired else None,
                "system_error": 100 * _mean([(~o.right).double() for o in seeds]).mean().item(),
                "coverage": 100 * _mean([(~o.decision.deferred).double() for o in seeds]).mean().item(),
                "questions": 100 * _mean([o.decision.asked.double().sum(1) for o in seeds]).mean().item(),
            }
        )
    return rows


def _asked(seeds: "list[Outcome]") -> list[dict[str, Any]]:
    """How often each expert is asked, in all cases and in those of each class, mean over seeds."""
    labels = seeds[0].labels
    share = 100 * _mean([outcome.decision.asked.double() for outcome in seeds])  # [N, J]
    deployment = seeds[0].deployment
    assert deployment is not None and deployment.class_names is not None
    rows = []
    for j, name in enumerate(deployment.expert_names):
        by_class = {
            f"class {of}": share[labels == k, j].mean().item()
            for k, of in enumerate(deployment.class_names)
            if bool((labels == k).any())
        }
        rows.append({"expert": name, "asked": share[:, j].mean().item(), **by_class})
    return rows


def _mean(tensors: "list[Tensor]") -> "Tensor":
    import torch

    return torch.stack(tensors).mean(dim=0)
