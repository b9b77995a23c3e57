"""A panel: the predictions of the experts on every split, simulated or recorded."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, from_numpy

from l2d.data.dataset import MISSING, Dataset
from l2d.errors import UserError
from l2d.experts.simulator import confusion_matrix, simulate, table_dtype, uniform_confusion

Ids = list[str | int] | str | int  # names of annotators; YAML reads some as numbers
_STREAMS = {"test": 0, "train": 1, "held_out": 1 << 40}  # training epoch e (resample=per_epoch) uses stream 1 + e


@dataclass
class ExpertPanel:
    """J experts: the `recorded` ones first, then those simulated from accuracies or from confusions.

    A panel of recorded answers alone is ExpertPanel(names, recorded={"train": [N, J], "test": [N, J]}), with -1 where an
    expert did not answer.
    """

    names: list[str]
    matrix: np.ndarray | None = None  # [J, K], where every expert is simulated from it
    recorded: dict[str, np.ndarray] = field(default_factory=dict)  # split -> [N, number of recorded]
    confusion: np.ndarray | None = None  # [number of simulated, K, K]
    resample: str = "once"
    seed: int = 0

    @property
    def num(self) -> int:
        return len(self.names)

    @property
    def redraws(self) -> bool:
        """Whether the answers to the training split are drawn again in every epoch."""
        return self.resample == "per_epoch"

    def answers(self, split: str, labels: Tensor, epoch: int = 0) -> Tensor:
        """The table [N, J] of a split with these labels; training epochs differ only if `resample` is `per_epoch`."""
        stream = _STREAMS[split] + (epoch if split == "train" and self.redraws else 0)
        simulated = self.confusion if self.matrix is None else self.matrix
        tables = [self.recorded[split]] if self.recorded else []
        if simulated is not None:
            tables.append(simulate(simulated, labels.numpy(), self.seed, stream))
        return from_numpy(tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1))  # [N, J]


def make_panel(experts: "ExpertPanel | np.ndarray", dataset: Dataset, resample: str, seed: int) -> ExpertPanel:
    """The panel of what an `experts=` target returned: an accuracy matrix [J, K], which is simulated, or a panel."""
    if isinstance(experts, ExpertPanel):
        _check_recorded(experts, dataset)
        return experts
    try:
        matrix = np.asarray(experts, dtype=float)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"experts._target_ makes an object of type {type(experts).__name__}; name what makes an accuracy matrix or an ExpertPanel."
        ) from error
    if matrix.ndim != 2 or matrix.shape[1] != dataset.num_classes or not ((matrix >= 0) & (matrix <= 1)).all():
        raise UserError(
            f"The experts' accuracy matrix has shape {matrix.shape}; it must be [number of experts, "
            f"{dataset.num_classes} classes] with entries between 0 and 1."
        )
    return ExpertPanel([f"expert_{j}" for j in range(len(matrix))], matrix, resample=resample, seed=seed)


def _check_recorded(panel: ExpertPanel, dataset: Dataset) -> None:
    """UserError where recorded answers do not fit the dataset's samples and classes."""
    absent = [split for split in dataset.splits() if panel.recorded and split not in panel.recorded]
    if absent:
        raise UserError(
            f"The experts have recorded answers on {', '.join(panel.recorded)} and none on {', '.join(absent)}."
        )
    for split, table in panel.recorded.items():
        wanted = (len(dataset.splits()[split]), panel.num - (0 if panel.confusion is None else len(panel.confusion)))
        if table.shape != wanted or not ((table >= MISSING) & (table < dataset.num_classes)).all():
            raise UserError(
                f"The experts' recorded answers on {split} have shape {table.shape}; they must be [{wanted[0]} samples, "
                f"{wanted[1]} experts] with classes from 0 to {dataset.num_classes - 1}, or -1 for no answer."
            )


def human(dataset: Dataset, num: int | None, annotators: Ids | None = None) -> ExpertPanel:
    """The dataset's own annotators: the first `num` of them (all if null), or those that `annotators` names."""
    names = _annotator_names(dataset, annotators)
    num = len(names) if num is None else num
    if annotators is not None and num != len(names):
        raise UserError(
            f"experts.num={num} does not fit the {len(names)} annotators that experts.annotators names; "
            "set it to null or to their number."
        )
    if not 1 <= num <= len(names):
        raise UserError(
            f"experts.num={num}: dataset={dataset.name} has {len(names)} annotators, so choose 1 to {len(names)}, "
            "or let experts=mixed add simulated ones."
        )
    return ExpertPanel(names[:num], recorded=_recorded(dataset, names[:num]))


def mixed(
    dataset: Dataset, num: int | None, annotators: Ids | None, extra: str, resample: str, seed: int
) -> ExpertPanel:
    """Annotators first, then simulated experts up to `num`, each modelled on one annotator, in turn.

    A simulated expert answers independently, with its annotator's confusion matrix on the training split
    (`extra: confusion`), or with its overall accuracy there and uniform wrong answers (`extra: accuracy`).
    """
    if extra not in ("confusion", "accuracy"):
        raise UserError(f"experts.extra={extra} must be confusion or accuracy.")
    names = _annotator_names(dataset, annotators)
    if num is None or num <= len(names):
        return human(dataset, num, annotators)
    models, extras = {}, [names[i % len(names)] for i in range(num - len(names))]
    labels, num_classes = dataset.train.labels.numpy(), dataset.num_classes
    for name in dict.fromkeys(extras):
        answers = dataset.annotators[name]["train"]
        given = answers != MISSING
        if not given.any():
            raise UserError(
                f"Annotator {name} has no answer in the training split, so no expert can be modelled on it."
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
        resample=resample,
        seed=seed,
    )


def _recorded(dataset: Dataset, names: list[str]) -> dict[str, np.ndarray]:
    dtype = table_dtype(dataset.num_classes)
    return {
        split: np.stack([dataset.annotators[name][split] for name in names], axis=1).astype(dtype)  # [N, J]
        for split in dataset.splits()
    }


def _annotator_names(dataset: Dataset, annotators: Ids | None) -> list[str]:
    have = list(dataset.annotators)
    if not have:
        raise UserError(
            f"experts=human and experts=mixed need recorded annotators, and dataset={dataset.name} has none; "
            "use simulated experts (for example experts=specialist), or a dataset with annotators (micebone, chaoyang, folder)."
        )
    if annotators is None:
        return have
    annotators = annotators if isinstance(annotators, list) else [annotators]
    names = [_match(wanted, have) for wanted in annotators]
    if not names or None in names or len(set(names)) < len(names):
        raise UserError(
            f"experts.annotators={annotators} must name annotators of dataset={dataset.name}, each once: {', '.join(have)}."
        )
    return [name for name in names if name]


def _match(wanted: str | int, have: list[str]) -> str | None:
    """The annotator meant by 047, which YAML may have read as 47, or as 39 (octal)."""
    spellings = [str(wanted), str(wanted).zfill(3)] + ([f"0{wanted:o}"] if isinstance(wanted, int) else [])
    return next((name for name in spellings if name in have), None)
