"""What is done with each sample, as columns of names and numbers: of `l2d predict`, and of `l2d evaluate --samples`."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from l2d.decisions import Decision, Deployment, pick
from l2d.errors import UserError
from l2d.evaluation.outcome import Outcome
from l2d.inference.table import COLUMNS, Predictions

ROWS = 2048  # samples that are turned into text at a time


def decided_columns(
    decision: Decision, beliefs: Tensor, deployment: Deployment, somebody: Tensor
) -> dict[str, list[Any]]:
    """What a decision by beliefs [N, K+J] says about each sample; `somebody` [N]: whether anybody can be asked."""
    assert deployment.class_names is not None
    classes = deployment.class_names
    predicted = _named(classes, decision.predicted)
    gain, accuracy = decision.margin, pick(beliefs, len(classes) + decision.expert)  # [N], [N]
    there = somebody.tolist()
    return {
        "decision": _who(decision, predicted, deployment.expert_names),
        "asked": decision.deferred.tolist(),
        "predicted": predicted,
        "probability": pick(beliefs, decision.predicted).tolist(),
        "expert": _where(there, _named(deployment.expert_names, decision.expert)),
        "expert_accuracy": _where(there, accuracy.tolist()),
        "gain": _where(gain.isfinite().tolist(), gain.tolist()),  # -inf: not at any price
    }


def sample_kinds(outcome: Outcome) -> dict[str, type]:
    """column -> what it holds: the true label, the final answer and whether it is right; what `l2d predict` says; each expert's
    answer (None: not recorded); the probability of each class, and how likely each expert is right."""
    classes, experts = names_of(outcome)
    if len(set(classes)) < len(classes) or len(set(experts)) < len(experts):
        raise UserError(
            "A table of samples has a column for each class and expert, and two of them have the same name."
        )
    said = {name: kind for name, kind in COLUMNS.items() if name not in ("id", "error")}
    return {
        "id": str,
        "label": str,
        "answer": str,
        "right": bool,
        **said,
        **{f"answer_{name}": str for name in experts},
        **{f"probability_{name}": float for name in classes},
        **{f"accuracy_{name}": float for name in experts},
    }


def sample_parts(outcome: Outcome) -> Iterator[Predictions]:
    """A row for every sample with the columns of `sample_kinds`, some rows at a time."""
    ids = ids_of(outcome)
    for start in range(0, len(ids), ROWS):
        rows = slice(start, start + ROWS)
        columns = {"id": list(ids[rows]), **_columns(outcome, rows)}
        yield Predictions({name: columns[name] for name in sample_kinds(outcome)})


def ids_of(outcome: Outcome) -> Sequence[str]:
    """The names of the samples, or their numbers in the test split."""
    if outcome.ids is not None:
        return outcome.ids
    return list(map(str, range(len(outcome.labels)) if outcome.samples is None else outcome.samples.tolist()))


def names_of(outcome: Outcome) -> tuple[list[str], list[str]]:
    """The names of classes and experts, which an outcome that was made from a config has."""
    assert outcome.deployment is not None and outcome.deployment.class_names is not None
    return outcome.deployment.class_names, outcome.deployment.expert_names


def _columns(outcome: Outcome, rows: slice) -> dict[str, list[Any]]:
    """All columns but the id, of these rows."""
    class_names, experts = names_of(outcome)
    assert outcome.deployment is not None
    classes = [*class_names, None]  # -1, no answer, is the last
    answers, beliefs, whole = outcome.answers[rows], outcome.beliefs[rows], outcome.decision  # [n, J], [n, K+J]
    decision = Decision(whole.predicted[rows], whole.expert[rows], whole.gain[rows], whole.asked[rows])
    somebody = (decision.gain > -torch.inf).any(dim=1)  # [n]
    believed = [*(f"probability_{name}" for name in class_names), *(f"accuracy_{name}" for name in experts)]
    return {
        "label": _named(classes, outcome.labels[rows]),
        "answer": _named(classes, outcome.answer[rows]),
        "right": outcome.right[rows].tolist(),
        **decided_columns(decision, beliefs, outcome.deployment, somebody),
        **{f"answer_{name}": _named(classes, said) for name, said in zip(experts, answers.T, strict=True)},
        **{name: column.tolist() for name, column in zip(believed, beliefs.T, strict=True)},
    }


def _who(decision: Decision, predicted: list[str], expert_names: list[str]) -> list[str]:
    """The class that is answered, or the names of those who are asked."""
    answered, last = list(predicted), -1
    for i, j in decision.asked.nonzero().tolist():  # row by row
        name = expert_names[j]
        answered[i] = f"{answered[i]}; {name}" if i == last else name
        last = i
    return answered


def _named(names: Sequence[Any], numbers: Tensor) -> list[Any]:
    """The names with these numbers [N]."""
    return [names[number] for number in numbers.tolist()]


def _where(kept: list[bool], values: list[Any]) -> list[Any]:
    return [value if keep else None for keep, value in zip(kept, values, strict=True)]
