"""Finished runs decided again, from the outcomes that they kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from l2d.errors import UserError, notify
from l2d.tracking.trained import Run, changed, find_run

if TYPE_CHECKING:  # torch takes seconds to import, and a report without this needs none
    from l2d.evaluation.outcome import Outcome

MOST_NAMES = 3  # of runs that are left out for one reason
DECIDING = (
    "rule=",
    "rule.",
    "experts.costs=",
    "evaluation=",
    "evaluation.",
)  # what can change without predicting again
TRUST = "trust=true"


@dataclass(frozen=True)
class Again:
    """A finished run under a setting in which some things may be changed."""

    run: Run
    cfg: DictConfig
    outcomes: "dict[str, Outcome]"  # test, and held_out if there is one


def decide_again(folder: Path, changes: list[str], option: str, also: tuple[str, ...] = ()) -> Again:
    """The run in a folder under `changes`: rule, experts.costs, trust=true and what begins with one of `also`. A UserError says why that
    is not possible; `option` is where the changes were given."""
    from l2d.evaluation.again import evaluate_kept

    other = [change for change in changes if change != TRUST]
    for change in other:
        if not change.startswith((*DECIDING, *also)):
            taken = ", ".join(word.rstrip("=.") for word in ("rule=", "experts.costs=", *also, TRUST))
            raise UserError(f"{option} takes {taken} alone, not {change}.")
    run = find_run(str(folder), trust=TRUST in changes)
    cfg, _ = changed(run, other, ())
    cfg.evaluation._target_ = None  # the decision alone
    evaluated = evaluate_kept(cfg, folder, run.result)
    if evaluated is None:
        raise UserError("It kept no scores (record=scores).")
    return Again(run, cfg, evaluated.outcomes)


def name_left_out(left_out: dict[str, list[str]]) -> None:
    """Notify about runs (reason -> their names) that could not be decided again."""
    for reason, names in left_out.items():
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        notify(f"Left out: {', '.join(names[:MOST_NAMES])}{more}. {reason}")
