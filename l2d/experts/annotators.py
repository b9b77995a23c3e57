"""Experts who are people: the annotators of a dataset, one by one, joined by simulated ones, or pooled into groups."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge

from l2d.data.dataset import MISSING, Dataset
from l2d.data.manifest import cell_text
from l2d.data.tables import read_rows
from l2d.errors import UserError, notify
from l2d.experts.panel import STREAMS, ExpertPanel
from l2d.experts.simulator import MEMBER, confusion_matrix, random_stream, table_dtype, uniform_confusion

Ids = list[str | int] | str | int  # names of annotators; YAML reads some as numbers
AtLeast0 = Annotated[int, Ge(0)]


def human(dataset: Dataset, num: int | None, annotators: Ids | None = None, min_answers: AtLeast0 = 0) -> ExpertPanel:
    """The dataset's own annotators: the first `num` of them (all if null), or those that `annotators` names.

    Those with fewer than `min_answers` answers in the training split are left out.
    """
    names = _chosen(dataset, annotators, min_answers)
    return _people(dataset, names, num, named=annotators is not None)


def mixed(
    dataset: Dataset, num: int | None, annotators: Ids | None, extra: str, min_answers: AtLeast0 = 0
) -> ExpertPanel:
    """Annotators first, then simulated experts up to `num`, each modelled on one annotator, in turn.

    A simulated expert answers on its own, with its annotator's confusion matrix on the training split
    (`extra: confusion`), or with its overall accuracy there and uniform wrong answers (`extra: accuracy`).
    """
    if extra not in ("confusion", "accuracy"):
        raise UserError(f"experts.extra={extra} must be confusion or accuracy.")
    names = _chosen(dataset, annotators, min_answers)
    if num is None or num <= len(names):
        return _people(dataset, names, num, named=annotators is not None)
    models, extras = {}, [names[i % len(names)] for i in range(num - len(names))]
    labels, num_classes = dataset.train.labels.numpy(), dataset.num_classes
    for name in dict.fromkeys(extras):
        answers = dataset.annotators[name]["train"]
        given = answers != MISSING
        if not given.any():
            raise UserError(
                f"Annotator {name} has no answer in the training split, so no expert can be modelled on it; "
                "experts.min_answers=1 leaves such annotators out."
            )
        models[name] = (
            confusion_matrix(answers, labels, num_classes)
            if extra == "confusion"
            else uniform_confusion(float(np.mean(answers[given] == labels[given])), num_classes)
        )
    return ExpertPanel(
        names + [f"{name}_simulated_{i // len(names) + 1}" for i, name in enumerate(extras)],
        recorded=_recorded(dataset, names),
        confusion=np.stack([models[name] for name in extras]),
    )


def grouped(
    dataset: Dataset, num: int | None, annotators: Ids | None, min_answers: AtLeast0, table: str | None, seed: int
) -> ExpertPanel:
    """Annotators pooled into `num` experts: of similar accuracy on the training split, the most accurate first, with about as
    many answers in each group; or as the columns `annotator` and `group` of a `table` say.

    A group answers what one of its members who saw the sample said, drawn by the seed where several did.
    """
    names = _chosen(dataset, annotators, min_answers if table else max(min_answers, 1))
    groups = _groups_by_accuracy(dataset, names, num) if table is None else _groups_by_table(names, num, table)
    sizes = [f"{group} ({len(members)} people)" for group, members in groups.items()]
    notify(f"{sum(map(len, groups.values()))} annotators are pooled into {len(groups)} experts: {_some(sizes, 8)}.")
    recorded = {
        split: np.stack(
            [
                _one_of(members, dataset, split, random_stream(seed, STREAMS[split], g, key=MEMBER))
                for g, members in enumerate(groups.values())
            ],
            axis=1,
        )  # [N, J]
        for split in dataset.splits()
    }
    return ExpertPanel(list(groups), recorded=recorded)


def _groups_by_accuracy(dataset: Dataset, names: list[str], num: int | None) -> dict[str, list[str]]:
    """Annotators in descending order of accuracy, cut where the number of answers comes nearest to equal shares."""
    if num is None or num > len(names):
        raise UserError(
            f"experts.num={'null' if num is None else num} must be the number of groups for {len(names)} annotators of "
            f"dataset={dataset.name}, from 1 to {len(names)}."
        )
    labels = dataset.train.labels.numpy()  # [N]
    given = np.array([_count(dataset, name) for name in names])
    right = np.array([np.count_nonzero(dataset.annotators[name]["train"] == labels) for name in names])
    order = np.argsort(-right / given, kind="stable")
    total = given[order].cumsum()
    ends = [0]
    for g in range(1, num):  # at least one annotator in every group
        nearest = int(np.abs(total - total[-1] * g / num).argmin()) + 1
        ends.append(min(max(nearest, ends[-1] + 1), len(names) - num + g))
    return {f"group_{g}": [names[i] for i in members] for g, members in enumerate(np.split(order, ends[1:]))}


def _groups_by_table(names: list[str], num: int | None, table: str) -> dict[str, list[str]]:
    """Groups in the order of the table; annotators without one are left out."""
    path = Path(table).expanduser()
    if not path.is_file():
        raise UserError(f"experts.table={table} is no file; name a table with the columns annotator and group.")
    have, group_of = dict.fromkeys(names), dict[str, str]()
    for row in read_rows(path, ["annotator", "group"]):
        name, group = _match(cell_text(row["annotator"]), have), cell_text(row["group"])
        if name and group and group_of.setdefault(name, group) != group:
            raise UserError(f"{path} has annotator {name} in the groups {group_of[name]} and {group}; keep one.")
    if not group_of:
        raise UserError(f"experts.table={table} has a group for none of the annotators, such as {names[0]}.")
    if len(group_of) < len(names):
        notify(f"{len(names) - len(group_of)} of {len(names)} annotators have no group in {path} and are left out.")
    groups: dict[str, list[str]] = {group: [] for group in group_of.values()}
    for name, group in group_of.items():
        groups[group].append(name)
    if num not in (None, len(groups)):
        raise UserError(
            f"experts.num={num} does not fit the {len(groups)} groups of experts.table={table} ({_some(list(groups))}); set it to "
            "null or to their number."
        )
    return groups


def _one_of(members: list[str], dataset: Dataset, split: str, rng: np.random.Generator) -> np.ndarray:
    """The answer [N] of one member to each sample, every one who answered being equally likely; MISSING where nobody did."""
    said = np.full(len(dataset.splits()[split]), MISSING, table_dtype(dataset.num_classes))
    count = np.zeros(len(said), np.int32)  # who answered so far
    for name in members:
        answers = dataset.annotators[name][split]
        rows = np.flatnonzero(answers != MISSING)
        count[rows] += 1
        rows = rows[
            rng.random(len(rows)) * count[rows] < 1
        ]  # the n-th takes the place of those before with probability 1/n
        said[rows] = answers[rows]
    return said


def _people(dataset: Dataset, names: list[str], num: int | None, named: bool) -> ExpertPanel:
    """The first `num` of these annotators; of those that the user named, all."""
    num = len(names) if num is None else num
    if named and num != len(names):
        raise UserError(
            f"experts.num={num} does not fit the {len(names)} annotators that experts.annotators names (those with "
            "experts.min_answers); set it to null or to their number."
        )
    if not 1 <= num <= len(names):
        raise UserError(
            f"experts.num={num}: dataset={dataset.name} has {len(names)} annotators, so choose 1 to {len(names)}, "
            "or let experts=mixed add simulated ones."
        )
    return ExpertPanel(names[:num], recorded=_recorded(dataset, names[:num]))


def _recorded(dataset: Dataset, names: list[str]) -> dict[str, np.ndarray]:
    """split -> answers [N, J], filled column by column: a crowd's answers are not held twice."""
    tables = {}
    for split, samples in dataset.splits().items():
        tables[split] = np.empty((len(samples), len(names)), table_dtype(dataset.num_classes))
        for j, name in enumerate(names):
            tables[split][:, j] = dataset.annotators[name][split]
    return tables


def _chosen(dataset: Dataset, annotators: Ids | None, min_answers: int) -> list[str]:
    """The annotators that are named, or all, without those who gave fewer answers to the training split."""
    names = _annotator_names(dataset, annotators)
    counts = {name: _count(dataset, name) for name in names}
    kept = [name for name in names if counts[name] >= min_answers]
    if not kept:
        raise UserError(
            f"experts.min_answers={min_answers} leaves nobody: the most that one of {len(names)} annotators gave to the training "
            f"split of dataset={dataset.name} is {max(counts.values())} answers."
        )
    if len(kept) < len(names):
        notify(
            f"{len(names) - len(kept)} of {len(names)} annotators are left out, with fewer than {min_answers} answers in the "
            "training split (experts.min_answers)."
        )
    return kept


def _count(dataset: Dataset, name: str) -> int:
    return int(np.count_nonzero(dataset.annotators[name]["train"] != MISSING))


def _annotator_names(dataset: Dataset, annotators: Ids | None) -> list[str]:
    have = dataset.annotators
    if not have:
        raise UserError(
            f"experts=human, mixed and grouped need recorded answers, and dataset={dataset.name} has none; add them "
            "(dataset.annotators=FILE, or for dataset=folder a manifest that has them, dataset.manifest=FILE), or choose "
            "simulated experts, for example experts=specialist."
        )
    if annotators is None:
        return list(have)
    annotators = annotators if isinstance(annotators, list) else [annotators]
    names = [_match(wanted, have) for wanted in annotators]
    if not names or None in names or len(set(names)) < len(names):
        raise UserError(
            f"experts.annotators={annotators} must name annotators of dataset={dataset.name}, each once: "
            f"{_some(list(have), 20)}."
        )
    return [name for name in names if name]


def _match(wanted: str | int, have: Collection[str]) -> str | None:
    """The annotator meant by 047, which YAML may have read as 47, or as 39 (octal)."""
    spellings = [str(wanted), str(wanted).zfill(3)] + ([f"0{wanted:o}"] if isinstance(wanted, int) else [])
    return next((name for name in spellings if name in have), None)


def _some(names: list[str], shown: int = 5) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
