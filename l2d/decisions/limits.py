"""Limits on how much experts are asked: what a rule says about them in result.json."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor

from l2d.decisions.cases import Deployment
from l2d.decisions.decide import Decision
from l2d.errors import UserError

Percent = Annotated[float, Interval(ge=0, le=100)]


def per_expert(given: float | Mapping[str, float], names: list[str], key: str) -> tuple[float, ...]:
    """The limit of each of J experts, given by name, or one for all; inf for experts who are not named."""
    if not isinstance(given, Mapping):
        return (float(given),) * len(names)
    for name in given:
        if name not in names:
            raise UserError(
                f"{key}.{name}={given[name]:g}: there is no such expert; the experts are {', '.join(names)}."
            )
    return tuple(float(given.get(name, torch.inf)) for name in names)


def names_experts(key: str) -> Callable[[Deployment, dict[str, Any]], None]:
    """Refuses names in a rule's setting that no expert has."""

    def check(deployment: Deployment, settings: dict[str, Any]) -> None:
        per_expert(settings[key], deployment.expert_names, f"rule.{key}")

    return check


def room_for(at_most: Tensor, count: int) -> Tensor:
    """How many of `count` cases these percentages allow, [J] whole numbers."""
    return (at_most * count / 100 + 1e-9).floor()


def percent(asked: Tensor) -> Tensor:
    """In how many of 100 cases, [J] from [N, J] bool or [1] from [N]."""
    return 100 * asked.sum(dim=0).double().reshape(-1) / len(asked)


def limit_facts(names: list[str], limits: Sequence[float], **columns: Tensor) -> dict[str, Any]:
    """Rows of `limits` ({who, at_most, ..., load, over}, one per limit; None: no limit), and whether all are kept."""
    at_most = torch.tensor(limits, dtype=torch.float64)  # [J]
    over = (columns["load"] - at_most).clamp(min=0)
    over = torch.where(over < 1e-9, 0, over)  # a percentage is rounded
    columns = {"at_most": at_most, **columns, "over": over}
    rows = [
        {"who": name, **{key: _finite(column[j]) for key, column in columns.items()}} for j, name in enumerate(names)
    ]
    return {"limits": rows, "kept": not bool(over.any())}


def given_up(free: Decision, decision: Decision) -> float:
    """The expected accuracy (minus costs) of the decision without limits minus that of the one with them, in points."""
    lost = _expected(free, free.asked) - _expected(free, decision.asked)
    return 100 * float(lost.mean()) if len(lost) else 0.0


def _expected(free: Decision, asked: Tensor) -> Tensor:
    """What asking is worth more than predicting, [N]."""
    return torch.where(asked, free.gain, 0).sum(dim=1).double()


def _finite(value: Tensor) -> float | None:
    return float(value) if value.isfinite() else None
