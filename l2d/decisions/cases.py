"""Cases: what a rule decides about, and what it may be fitted on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from torch import Tensor

from l2d.decisions.decide import Decision, decide


@dataclass(frozen=True)
class Deployment:
    """What is known where a system is used, beside the system: its experts and what asking them and erring cost."""

    expert_names: list[str]
    costs: Tensor | None = None  # [J] of asking, in units of a right answer
    class_names: list[str] | None = None
    loss_matrix: Tensor | None = None  # [K, K]: of answering column k where row y is true; None: 1 where they differ


@dataclass(frozen=True, eq=False)  # compared by identity: what is fitted on held-out cases is fitted once (lru_cache)
class Cases:
    """N cases as a system sees them. Answers are for rules that ask and then think again: read only those asked for.

    An expert who may be asked and whose answer is -1 has not been heard yet, as in `l2d predict`.
    """

    beliefs: Tensor  # [N, K+J] class probabilities, then expert accuracies
    answers: Tensor  # [N, J]; -1: not recorded
    available: Tensor  # [N, J] who may be asked
    order: Tensor  # [N, K+J] breaks ties between equal utilities
    deployment: Deployment
    labels: Tensor | None = field(default=None)  # [N] of held-out cases alone
    held_out: "Cases | None" = None  # other cases, to fit a rule on

    @property
    def num_experts(self) -> int:
        return self.answers.shape[1]

    @property
    def num_classes(self) -> int:
        return self.beliefs.shape[1] - self.num_experts

    def decide(self, prices: Tensor | None = None) -> Decision:
        """The one decision, with these prices [J] on top of the costs."""
        costs = self.deployment.costs
        return decide(self.beliefs, self.num_classes, costs, prices, self.available, self.order)

    def offers(self) -> dict[str, object]:
        """What a rule may ask for by name."""
        return {
            "cases": self,
            "beliefs": self.beliefs,
            "num_classes": self.num_classes,
            "available": self.available,
            "order": self.order,
            "costs": self.deployment.costs,
            "expert_names": self.deployment.expert_names,
        }


Vouched = Literal["all", "top", "classes", "none"]


class Needs(NamedTuple):
    """What a rule cannot do without."""

    vouches_for: Vouched  # all: it compares experts; top: the best one with the classes; classes: it reads those alone
    held_out: bool  # it is fitted
    check: Callable[[Deployment, dict[str, Any]], None] | None = None  # refuses settings that do not fit the experts
    casewise: bool = False  # the decision about a case does not depend on the other cases


Rule = TypeVar("Rule", bound=Callable[..., Decision])


def needs(
    vouches_for: Vouched,
    held_out: bool = False,
    check: Callable[[Deployment, dict[str, Any]], None] | None = None,
    casewise: bool = False,
) -> Callable[[Rule], Rule]:
    """Mark a rule with what it needs, so that a run that lacks it is refused before it is trained. A rule that decides about
    each case alone (`casewise`) is given a stream of cases in parts; any other all cases at once."""

    def mark(rule: Rule) -> Rule:
        rule.needs = Needs(vouches_for, held_out, check, casewise)  # type: ignore[attr-defined]
        return rule

    return mark
