"""rule=combine: ask while it pays, and let every answer update the classifier's own belief."""

import math
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from l2d.decisions.cases import Cases, needs
from l2d.decisions.confusion import confusion_of
from l2d.decisions.decide import Decision, pick

AT_ONCE = 2**18  # products eta_y C_j[y, m] of one class y in memory
HOTTEST = 20.0  # temperatures from its inverse to it are tried


class Terms(NamedTuple):
    """When to ask, and what an answer means."""

    confusion: Tensor  # [J, K, K]: probability of answer m (last) by expert j (first) to class y
    costs: Tensor  # [J]
    questions: int  # at most, per case
    least_gain: float  # values are exact to a hundredth of it


@needs("classes", held_out=True, casewise=True)
def combine(
    cases: Cases, questions: Annotated[int, Ge(1)] | None, least_gain: Annotated[float, Interval(gt=0, le=1)]
) -> Decision:
    """Ask the expert whose answer is worth most, if that is worth more than `least_gain` after its cost; replace the class
    probabilities eta by those given the answer, eta_y C_j[y, m] / sum; and again among the others. The answer is the most
    probable class. Where an answer is not there yet, the question is the last about its case.

    Confusions C and the temperature of eta are fitted on held-out cases; experts err independently given the class.
    """
    held_out = cases.held_out
    assert held_out is not None
    temperature, confusion = _fitted(held_out)
    costs = cases.deployment.costs if cases.deployment.costs is not None else confusion.new_zeros(cases.num_experts)
    limit = min(questions or cases.num_experts, cases.num_experts)
    by_class = (
        confusion.transpose(0, 1).contiguous().transpose(0, 1)
    )  # the same, laid out as `value_of_asking` reads it
    terms = Terms(by_class, costs.double(), limit, least_gain)
    eta = (class_logits(cases) / temperature).softmax(dim=1)  # [N, K]
    rows = max(1, AT_ONCE // (cases.num_experts * cases.num_classes))
    parts = [
        _consult(*some, terms)
        for some in zip(eta.split(rows), cases.answers.split(rows), cases.available.split(rows), strict=True)
    ]
    gain, asked, concluded = (torch.cat(column) for column in zip(*parts, strict=True))
    predicted = cases.decide().predicted  # [N]
    answer = torch.where(asked.any(dim=1), concluded, predicted)

    def explain() -> dict[str, Any]:
        by_questions = 100 * asked.sum(dim=1).bincount().double() / len(asked)  # percent of cases with 0, 1, 2, ...
        return {
            "temperature": temperature,
            "fitted_on": len(held_out.answers),
            "cases_by_questions": by_questions.tolist(),
        }

    return Decision(predicted, gain.argmax(dim=1), gain, asked, answer, explain)


@lru_cache(maxsize=1)
def _fitted(held_out: Cases) -> tuple[float, Tensor]:
    """The temperature of eta, and the confusions [J, K, K]."""
    return temperature_of(held_out), confusion_of(held_out)


def _consult(eta: Tensor, answers: Tensor, available: Tensor, terms: Terms) -> tuple[Tensor, Tensor, Tensor]:
    """What the first question gains [B, J], who is asked [B, J] and the most probable class after it [B]."""
    asked, belief = torch.zeros_like(available), eta.clone()  # [B, J], [B, K]
    first: Tensor | None = None
    unsettled = torch.arange(len(eta))  # the cases about which there may be another question
    for _ in range(terms.questions):
        now = belief[unsettled]  # [b, K]
        gain = (
            value_of_asking(now, terms.confusion, terms.least_gain / 100) - terms.costs - now.amax(dim=1, keepdim=True)
        )  # [b, J]
        gain = gain.masked_fill(asked[unsettled] | ~available[unsettled], -torch.inf)
        first = gain if first is None else first
        most, expert = gain.max(dim=1)  # [b], [b]
        pays = most > terms.least_gain
        unsettled, expert = unsettled[pays], expert[pays]
        asked[unsettled, expert] = True
        heard = answers[unsettled, expert] >= 0
        unsettled, expert = unsettled[heard], expert[heard]
        joint = belief[unsettled] * terms.confusion[expert, :, answers[unsettled, expert].long()]  # [b, K]
        belief[unsettled] = joint / joint.sum(dim=1, keepdim=True)
        # No answer makes a class more than certain, so these cannot gain enough.
        unsettled = unsettled[1 - belief[unsettled].amax(dim=1) > terms.least_gain]
        if not len(unsettled):
            break
    assert first is not None
    return first, asked, belief.argmax(dim=1)


def value_of_asking(eta: Tensor, confusion: Tensor, ignored: float = 0.0) -> Tensor:
    """The expected probability of the most probable class after an answer, sum_m max_y eta_y C_j[y, m], [B, J]; cost not
    subtracted. Never less than max(max_y eta_y, Acc_j), where Acc_j = sum_y eta_y C_j[y, y].

    The least probable classes that together have no more than the probability `ignored` are left out, which lowers a value by
    no more than that.

    >>> eta = torch.tensor([[0.7, 0.3]])
    >>> value_of_asking(eta, torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]]))  # perfect, and guessing
    tensor([[1.0000, 0.7000]])
    """
    by_class = confusion.transpose(0, 1).flatten(1)  # [K, J x K]; a copy only of what is not laid out so
    eta, classes = eta.sort(dim=1, descending=True)  # [B, K]
    rest = eta.flip(1).cumsum(dim=1).flip(1)  # [B, K]: of a class and those after it
    joint = eta.new_zeros(len(eta), by_class.shape[1])  # [B, J x K], the highest over y for each answer
    product = torch.empty_like(joint)
    for rank in range(int((rest > ignored).sum(dim=1).max())):
        torch.index_select(by_class, 0, classes[:, rank], out=product)
        torch.maximum(joint, product.mul_(eta[:, rank, None]), out=joint)
    return joint.view(len(eta), len(confusion), -1).sum(dim=2)


def class_logits(cases: Cases) -> Tensor:
    """log of the class probabilities, [N, K], up to a constant for each case."""
    eta = cases.beliefs[:, : cases.num_classes].double()
    return eta.clamp(min=torch.finfo(eta.dtype).tiny).log()


def temperature_of(held_out: Cases) -> float:
    """The T for which softmax(log eta / T) makes the labels most likely. The likelihood is concave in 1/T: find the zero of its
    slope, mean of log eta_y - E log eta."""
    assert held_out.labels is not None
    logits = class_logits(held_out)  # [n, K]
    of_labels = pick(logits, held_out.labels.long()).mean()
    low, high = -math.log(HOTTEST), math.log(HOTTEST)  # of log T
    for _ in range(40):
        middle = (low + high) / 2
        expected = ((logits / math.exp(middle)).softmax(dim=1) * logits).sum(dim=1).mean()
        low, high = (low, middle) if expected < of_labels else (middle, high)
    return math.exp(middle)
