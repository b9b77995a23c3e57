"""The one decision of the package: the action with the highest utility, [eta_1 .. eta_K, Acc_j - cost_j - price_j]."""

from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from l2d.kernels import argmax as argmax_by_kernel
from l2d.kernels import decide as decide_by_kernel

AT_ONCE = 1 << 18  # numbers of a table that are computed with at a time: bounds the memory for what is made on the way


class Decision(NamedTuple):
    """Who answers each sample, and by how much.

    `gain > 0` says that asking is better than predicting: utility of expert j minus the probability of the predicted class.
    """

    predicted: Tensor  # [N] the class that the system answers where it asks nobody
    expert: Tensor  # [N] the expert with the highest utility, asked or not
    gain: Tensor  # [N, J]; -inf for an expert who is not available
    asked: Tensor  # [N, J] bool; several: a committee
    answer: Tensor | None = (
        None  # [N] where a rule forms it from what was said; None: the asked expert's, else `predicted`
    )
    explain: Callable[[], dict[str, Any]] | None = None  # -> `facts`; computed only where they are read

    @property
    def facts(self) -> dict[str, Any] | None:
        """What a rule says about itself in result.json."""
        return self.explain() if self.explain else None

    @property
    def num_asked(self) -> Tensor:
        """How many experts are asked, [N]."""
        return self.asked.sum(dim=1, dtype=torch.int32)  # several times as fast as in int64

    @property
    def deferred(self) -> Tensor:
        """Whether anybody is asked, [N]."""
        return self.num_asked > 0  # several times as fast as any(dim=1)

    @property
    def margin(self) -> Tensor:
        """The gain of the best expert, [N]: the order in which a budget is spent."""
        return pick(self.gain, self.expert)

    def at_price(self, price: float) -> "Decision":
        """The same with one common price on asking anybody: `margin > price` is asked."""
        best = torch.zeros_like(self.asked).scatter_(1, self.expert[:, None], True)  # [N, J]
        return self._replace(asked=best & (self.gain > price))


def decide(
    beliefs: Tensor,
    num_classes: int,
    costs: Tensor | None = None,
    prices: Tensor | None = None,
    available: Tensor | None = None,
    order: Tensor | None = None,
) -> Decision:
    """Choose an action for every sample from beliefs [N, K+J] (class probabilities, then expert accuracies).

    costs and prices [J] are subtracted from the experts' accuracies; who is not `available` [N, J] is not asked. `order`
    [N, K+J] breaks ties between equal utilities (probabilities saturate where scores do not): the scores themselves,
    where beliefs are monotone in them, so that without costs the decision is argmax(scores). Then the lower index wins.

    Returns the decision, with at most one expert asked per sample.

    >>> beliefs = torch.tensor([[0.6, 0.4, 0.7], [0.6, 0.4, 0.5]])  # two classes, one expert
    >>> decide(beliefs, num_classes=2).asked.tolist()
    [[True], [False]]
    >>> decide(beliefs, num_classes=2, costs=torch.tensor([0.2])).asked.tolist()
    [[False], [False]]
    """
    utility = beliefs[:, num_classes:]  # [N, J]
    for charge in (costs, prices):
        utility = utility if charge is None else utility - charge.to(utility)
    if available is not None:
        everybody = _readable(beliefs, available) and int(available.count_nonzero()) == available.numel()
        utility = utility if everybody else utility.masked_fill(~available, -torch.inf)
    if torch.compiler.is_compiling():  # in an exported graph the number of rows is not known
        return _decide(beliefs, utility, order, num_classes)
    made = None if order is None else decide_by_kernel(beliefs, utility, order)
    if made is not None:
        return Decision(*made)
    rows = rows_at_once(beliefs)
    tables = beliefs.split(rows), utility.split(rows), repeat(None) if order is None else order.split(rows)
    parts = [_decide(*some, num_classes) for some in zip(*tables, strict=False)]
    predicted, expert, gain, asked = (torch.cat(column) for column in zip(*(part[:4] for part in parts), strict=True))
    return Decision(predicted, expert, gain, asked)


def _decide(beliefs: Tensor, utility: Tensor, order: Tensor | None, num_classes: int) -> Decision:
    """The decision of some rows: beliefs [B, K+J], the experts' utility [B, J], order [B, K+J]."""
    classes, experts = (None, None) if order is None else order.tensor_split([num_classes], dim=1)
    predicted = highest(beliefs[:, :num_classes], classes)  # [B]
    expert = highest(utility, experts)  # [B]
    gain = utility - pick(beliefs, predicted)[:, None]  # [B, J]
    if classes is not None and experts is not None:
        ahead = experts > pick(classes, predicted)[:, None]  # [B, J]
        gain.masked_fill_((gain == 0) & ahead, torch.finfo(gain.dtype).tiny)
    return Decision(predicted, expert, gain, torch.zeros_like(gain, dtype=torch.bool)).at_price(0)


def rows_at_once(table: Tensor) -> int:
    """How many rows of a table [N, C] have AT_ONCE numbers: 2,184 with 100 classes and 20 experts."""
    return max(1, AT_ONCE // max(table.shape[1], 1))


def pick(table: Tensor, column: Tensor) -> Tensor:
    """table[i, column[i]], [N]."""
    return table.gather(1, column[:, None]).squeeze(1)


def highest(utility: Tensor, order: Tensor | None = None) -> Tensor:
    """The column of the highest utility in each row [N], among equals by the highest `order`, then the first."""
    if order is None:
        return argmax(utility)
    best = utility.amax(dim=1, keepdim=True)  # [N, 1]
    if _readable(utility):
        first = argmax(order)  # the answer, if its utility is the highest in all rows, as it is without costs
        if torch.equal(pick(utility, first), best[:, 0]):
            return first
    return argmax(order.masked_fill(utility != best, -torch.inf))


def argmax(table: Tensor) -> Tensor:
    """The column of the highest number in each row of a table [N, C], the first among equals, [N]."""
    found = argmax_by_kernel(table)
    return table.argmax(dim=1) if found is None else found


def _readable(*tables: Tensor) -> bool:
    """Whether code may depend on their numbers: not on a device, which would be waited for, and not in a graph."""
    return not torch.compiler.is_compiling() and all(table.device.type == "cpu" for table in tables)
