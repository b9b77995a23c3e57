"""rule=committee: where asking pays, ask several and let them vote."""

from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from l2d.decisions.cases import Cases, Deployment, needs
from l2d.decisions.decide import Decision
from l2d.decisions.vote import vote
from l2d.errors import UserError


def enough_experts(deployment: Deployment, settings: dict[str, Any]) -> None:
    """Refuse a committee with more members than there are experts."""
    experts = len(deployment.expert_names)
    if settings["k"] > experts:
        raise UserError(f"rule.k={settings['k']} is more than there are experts; choose a number from 1 to {experts}.")


@needs("all", check=enough_experts, casewise=True)
def committee(cases: Cases, k: Annotated[int, Ge(1)], weighted: bool) -> Decision:
    """Where rule=best asks, the k experts with the highest Acc_j - cost_j answer by vote; fewer where fewer are there.

    A weighted vote counts each by its log odds; otherwise the majority decides. Among equals the expert with the highest believed
    accuracy is followed. With k = 1 this is rule=best.
    """
    decision = cases.decide()
    if k == 1:
        return decision
    ranked = decision.gain.scatter(
        1, decision.expert[:, None], torch.inf
    )  # [N, J]; ties are decided already for the first
    members = ranked.argsort(dim=1, descending=True, stable=True)[:, :k]  # [N, k]
    asked = torch.zeros_like(decision.asked).scatter_(1, members, True)
    asked &= cases.available & decision.deferred[:, None]
    accuracy = cases.beliefs[:, cases.num_classes :]  # [N, J]
    weights = log_odds(accuracy, cases.num_classes) if weighted else torch.ones_like(accuracy)
    voted = vote(cases.answers, asked, weights, accuracy)  # [N]
    return decision._replace(asked=asked, answer=torch.where(decision.deferred, voted, decision.predicted))


def log_odds(accuracy: Tensor, num_classes: int) -> Tensor:
    """log (K - 1) Acc / (1 - Acc), the weight of a vote that is best if experts err independently and evenly; below 0 for an
    expert that is worse than guessing."""
    bounded = accuracy.clamp(1e-6, 1 - 1e-6)  # nobody outvotes all others together by being certain
    return ((num_classes - 1) * bounded / (1 - bounded)).log()
