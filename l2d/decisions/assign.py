"""rule=assign: the cases of a batch are divided among experts who each have time for so many of them."""

from typing import Annotated, Any

import torch
from annotated_types import Ge

from l2d.decisions.allocate import allocate
from l2d.decisions.best import valued
from l2d.decisions.cases import Cases, needs
from l2d.decisions.decide import Decision
from l2d.decisions.limits import given_up, limit_facts, names_experts, per_expert

Count = Annotated[int, Ge(0)]


@needs("all", check=names_experts("capacities"))
def assign(cases: Cases, batch: Annotated[int, Ge(1)], capacities: dict[str, Count] | Count) -> Decision:
    """Of every `batch` consecutive cases expert j gets at most capacities[j], such that the sum of utilities is largest.

    An expert who is not named takes any number. The last batch may be shorter, with the same capacities.
    """
    names = cases.deployment.expert_names
    cases, at_most = valued(cases), per_expert(capacities, names, "rule.capacities")
    room = torch.tensor(at_most, dtype=torch.float64)  # [J]
    free = cases.decide()
    parts = [Decision(*columns) for columns in zip(*(column.split(batch) for column in free[:4]), strict=True)]
    allocated = [allocate(part, room) for part in parts]
    asked = torch.cat([part.asked for part in allocated])  # [N, J]
    expert = torch.where(asked.any(dim=1), asked.int().argmax(dim=1), free.expert)  # [N]
    decision = free._replace(asked=asked, expert=expert)

    def explain() -> dict[str, Any]:
        facts = limit_facts(
            names,
            at_most,
            price=torch.stack([part.prices for part in allocated]).mean(dim=0),
            load=torch.stack([part.asked.sum(dim=0) for part in allocated]).amax(dim=0).double(),
        )
        more = {"given_up": given_up(free, decision), "duality_gap": max(part.gap for part in allocated)}
        return {"unit": "cases per batch", "batch": batch, **facts, **more}

    return decision._replace(explain=explain)
