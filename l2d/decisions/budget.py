"""rule=budget: ask about a share of the cases at most, those in which it is worth most."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from l2d.decisions.best import valued
from l2d.decisions.cases import Cases, needs
from l2d.decisions.decide import Decision
from l2d.decisions.limits import Percent, given_up, limit_facts, percent


@needs("top", held_out=True, casewise=True)
def budget(cases: Cases, defer_at_most: Percent) -> Decision:
    """Ask where the gain exceeds one common price: the lowest, but no less than 0, that keeps the budget on held-out cases.

    Where experts are as good as believed no other way of asking so often is right more often.
    """
    cases = valued(cases)
    assert cases.held_out is not None
    price, deferred = _price(cases.held_out, defer_at_most)
    free = cases.decide()
    decision = free.at_price(price)

    def explain() -> dict[str, Any]:
        facts = limit_facts(
            ["all"],
            [defer_at_most],
            price=torch.tensor([price], dtype=torch.float64),
            held_out=deferred,
            load=percent(decision.deferred),
        )
        return {"unit": "percent", **facts, "given_up": given_up(free, decision)}

    return decision._replace(explain=explain)


@lru_cache(maxsize=1)
def _price(held_out: Cases, defer_at_most: float) -> tuple[float, Tensor]:
    """The price, and the percentage [1] of held-out cases that are deferred at it."""
    free = held_out.decide()
    price = max(0.0, price_for(free.margin, defer_at_most)) if defer_at_most else torch.inf
    return price, percent(free.at_price(price).deferred)


def price_for(margin: Tensor, at_most: float) -> float:
    """The lowest price at which at most `at_most` percent of samples with these gains [N] are deferred."""
    ranked = margin.sort(descending=True).values  # [N]
    return ranked[min(int(at_most * len(ranked) // 100), len(ranked) - 1)].item()
