"""rule=caps: no expert is asked about more than its share of the cases."""

import torch

from l2d.decisions.allocate import ROUNDING, allocate
from l2d.decisions.best import valued
from l2d.decisions.cases import Cases, needs
from l2d.decisions.decide import Decision
from l2d.decisions.limits import Percent, given_up, limit_facts, names_experts, per_expert, percent, room_for


@needs("all", held_out=True, check=names_experts("caps"))
def caps(cases: Cases, caps: dict[str, Percent] | Percent) -> Decision:
    """argmax of [eta, Acc - cost - price], with the prices at which held-out cases keep the caps (percent of cases).

    maximise the sum of utilities of the held-out cases with load_j <= cap_j N: prices are its dual variables, found once, and
    then cases are decided one at a time. An expert who is not named has no cap and no price, and one with cap 0 is not asked.
    """
    names = cases.deployment.expert_names
    cases, at_most = valued(cases), per_expert(caps, names, "rule.caps")
    assert cases.held_out is not None
    fitted_on = cases.held_out.decide()
    allocation = allocate(fitted_on, room_for(at_most, len(fitted_on.asked)))
    prices = allocation.prices
    prices = torch.where(
        prices > 0, prices + ROUNDING * prices.clamp(min=1), 0
    )  # a case just worth it is not asked about
    prices = prices.masked_fill(at_most == 0, torch.inf)
    decision, free = cases.decide(prices), cases.decide()
    facts = limit_facts(
        names,
        at_most,
        price=prices,
        held_out=percent(cases.held_out.decide(prices).asked),
        load=percent(decision.asked),
    )
    more = {"given_up": given_up(free, decision), "duality_gap": allocation.gap}
    return decision._replace(facts={"unit": "percent", **facts, **more})
