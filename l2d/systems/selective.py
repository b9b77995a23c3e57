"""A classifier, and whom to ask instead of it from held-out data: a routing table and a threshold."""

from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor, nn

from l2d.systems.classifier import ClassifierSystem, count_right, shrunk
from l2d.task import hold_out


class SelectiveSystem(ClassifierSystem):
    """Ask argmax_j table[j, yhat] iff its entry minus max_k p_k is above a threshold.

    table[j, k] is how often expert j was right on held-out samples that the classifier took for class k, shrunk to its overall
    accuracy as by `strength` more answers; without a `table` the overall accuracy, so that the best single expert is asked. The
    threshold maximises the accuracy of the system on other held-out samples than those of the table.
    """

    fitted_on_held_out = True
    vouches_for = "none"  # the threshold makes up for overconfident class probabilities, so beliefs are no accuracies

    def __init__(
        self,
        backbone: Callable[[int], nn.Module],
        num_classes: int,
        num_experts: int,
        seed: int,
        table: bool,
        strength: Annotated[float, Gt(0)],
    ):
        super().__init__(backbone, num_classes)
        self.by_class, self.strength, self.seed = table, strength, seed
        self.table: Tensor
        self.threshold: Tensor
        self.register_buffer("table", torch.zeros(num_experts, num_classes))
        self.register_buffer("threshold", torch.zeros(()))

    def beliefs(self, outputs: Tensor) -> Tensor:
        """[p, table[:, yhat] - threshold]: below 0 or above 1 where the threshold takes it there, which keeps every margin."""
        probabilities = outputs.double().softmax(dim=1)  # [B, K]
        return torch.cat([probabilities, self.routed(outputs) - self.threshold.to(probabilities)], dim=1)

    def routed(self, outputs: Tensor) -> Tensor:
        """The entries of the table for the predicted classes, [B, J]."""
        return self.table.to(outputs.device).double().T[outputs.argmax(dim=1)]

    def settle(self, outputs: Tensor, labels: Tensor, answers: Tensor) -> None:
        """The table from one half of the samples, the threshold from the other (0 where there is none)."""
        one, other = hold_out(len(labels), 0.5, self.seed)
        predicted = outputs.argmax(dim=1)  # [N]
        right, given = count_right(predicted[one], labels[one], answers[one], self.num_classes)  # [J, K] each
        total = given.sum(dim=1, keepdim=True)  # [J, 1]
        overall = right.sum(dim=1, keepdim=True) / total.clamp(min=1)  # [J, 1]; nobody's answers count as wrong
        table = shrunk(right, given, overall, self.strength) if self.by_class else overall.expand_as(right)
        self.table.copy_(table)
        if other is None:
            return
        outputs, labels, answers, predicted = (part[other] for part in (outputs, labels, answers, predicted))
        best, expert = self.routed(outputs).masked_fill(answers < 0, -torch.inf).max(dim=1)  # [n], [n]
        gap = best - outputs.double().softmax(dim=1).max(dim=1).values  # [n]; -inf where nobody can be asked
        answer = answers.gather(1, expert[:, None]).squeeze(1)  # [n]
        better = (answer == labels).long() - (predicted == labels).long()  # [n] what asking changes
        self.threshold.fill_(best_threshold(gap, better))


def best_threshold(gap: Tensor, better: Tensor) -> float:
    """The t for which the sum of `better` [N] over gap > t, with gaps [N] in (-1, 1), is largest; among equals the largest t.

    It lies half-way between two gaps, or between one and the end.

    >>> best_threshold(torch.tensor([0.25, 0.5, -0.5]), torch.tensor([-1, 1, 0]))
    0.375
    """
    gap, order = gap.clamp(min=-1).double().sort(descending=True)
    total = torch.cat([gap.new_zeros(1), better[order].double().cumsum(0)])  # [N+1]: of the first n
    ends = torch.cat([gap.new_ones(1), gap, -gap.new_ones(1)])  # [N+2]
    total[ends[:-1] == ends[1:]] = -torch.inf  # no threshold separates equal gaps
    n = int(total.argmax())
    return float(ends[n : n + 2].mean())
