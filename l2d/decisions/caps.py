"""rule=caps: no expert is asked about more than its share of the cases."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from l2d.decisions.allocate import ROUNDING, allocate
from l2d.decisions.best import valued
from l2d.decisions.cases import Cases, needs
from l2d.decisions.decide import Decision
from l2d.decisions.limits import Percent, given_up, limit_facts, names_experts, per_expert, percent, room_for


@needs("all", held_out=True, check=names_experts("caps"), casewise=True)
def caps(cases: Cases, caps: dict[str, Percent] | Percent) -> Decision:
    """argmax of [eta, Acc - cost - price], with the prices at which held-out cases keep the caps (percent of cases).

    maximise the sum of utilities of the held-out cases with load_j <= cap_j N: prices are its dual variables, found once, and
    then cases are decided one at a time. An expert who is not named has no cap and no price, and one with cap 0 is not asked.
    """
    names = cases.deployment.expert_names
    cases, at_most = valued(cases), per_expert(caps, names, "rule.caps")
    assert cases.held_out is not None
    prices, load, gap = _prices(cases.held_out, at_most)
    decision, free = cases.decide(prices), cases.decide()

    def explain() -> dict[str, Any]:
        facts = limit_facts(names, at_most, price=prices, held_out=load, load=percent(decision.asked))
        return {"unit": "percent", **facts, "given_up": given_up(free, decision), "duality_gap": gap}

    return decision._replace(explain=explain)


@lru_cache(maxsize=1)
def _prices(held_out: Cases, at_most: tuple[float, ...]) -> tuple[Tensor, Tensor, float]:
    """The prices [J], the percentage [J] of held-out cases in which each expert is asked at them, and the duality gap."""
    limits = torch.tensor(at_most, dtype=torch.float64)
    free = held_out.decide()
    allocation = allocate(free, room_for(limits, len(free.asked)))
    prices = allocation.prices
    prices = torch.where(
        prices > 0, prices + ROUNDING * prices.clamp(min=1), 0
    )  # a case just worth it is not asked about
    prices = prices.masked_fill(limits == 0, torch.inf)
    return prices, percent(held_out.decide(prices).asked), allocation.gap
