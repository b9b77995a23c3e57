"""A panel: the predictions of the experts on every split, simulated or recorded."""

from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor, from_numpy

from l2d.data.dataset import MISSING, Dataset
from l2d.errors import UserError, notify
from l2d.experts.simulator import Drawing, draw

STREAMS = {"test": 0, "train": 1, "held_out": 1 << 40}  # training epoch e (resample=per_epoch) uses stream 1 + e


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
    drawing: Drawing = field(default_factory=Drawing)  # the run's, for those simulated; `make_panel` sets it
    test_matrix: np.ndarray | None = None  # [J, K], where accuracies on the test split are others (`drawing.shift`)
    part_of: "tuple[ExpertPanel, slice] | None" = None  # the panel that answers, and these experts' columns in it

    @property
    def num(self) -> int:
        return len(self.names)

    @property
    def simulated(self) -> np.ndarray | None:
        """The accuracies [J, K] or confusions [.., K, K] that answers are drawn from; None where all are recorded."""
        return self.confusion if self.matrix is None else self.matrix

    @property
    def redraws(self) -> bool:
        """Whether the answers to the training split are drawn again in every epoch."""
        return self.drawing.resample == "per_epoch" and self.simulated is not None

    def accuracies(self, split: str) -> np.ndarray | None:
        """[J, K] what answers to a split are drawn from; None where not every expert is simulated from accuracies."""
        return self.test_matrix if split == "test" and self.test_matrix is not None else self.matrix

    def part(self, columns: slice) -> "ExpertPanel":
        """Some of the experts, who answer as they do in the whole panel."""
        matrix, test_matrix = _rows(self.matrix, columns), _rows(self.test_matrix, columns)
        names = self.names[columns]
        return replace(self, names=names, matrix=matrix, test_matrix=test_matrix, part_of=(self, columns))

    def answers(self, split: str, labels: Tensor, epoch: int = 0) -> Tensor:
        """The table [N, J] of a split with these labels; training epochs differ only if `resample` is `per_epoch`."""
        if self.part_of:
            whole, columns = self.part_of
            return whole.answers(split, labels, epoch)[:, columns]
        tables = [self.recorded[split]] if self.recorded else []
        source = self.confusion if self.matrix is None else self.accuracies(split)
        if source is not None:
            again = epoch if split == "train" and self.redraws else 0
            tables.append(draw(source, labels.numpy(), self.drawing, STREAMS[split], again))
        return from_numpy(tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1))  # [N, J]


def make_panel(experts: "ExpertPanel | np.ndarray", dataset: Dataset, drawing: Drawing) -> ExpertPanel:
    """The panel of what an `experts=` target returned: an accuracy matrix [J, K], which is simulated, or a panel."""
    if isinstance(experts, ExpertPanel):
        _check_recorded(experts, dataset)
        if experts.simulated is None and (drawing.correlation or drawing.answer_rate < 1 or drawing.distinct):
            notify(
                f"experts.correlation={drawing.correlation:g}, experts.answer_rate={drawing.answer_rate:g} and "
                f"experts.distinct={drawing.distinct or 'null'} are about simulated experts, and there are none here."
            )
        return _with_copies(_with_shift(replace(experts, drawing=drawing)))
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
    panel = ExpertPanel([f"expert_{j}" for j in range(len(matrix))], matrix, drawing=drawing)
    return _with_copies(_with_shift(panel))


def _with_shift(panel: ExpertPanel) -> ExpertPanel:
    """The panel with the accuracies on the test split that `experts.shift` asks for."""
    shift = panel.drawing.shift
    if not shift:
        return panel
    known = [] if panel.matrix is None else panel.names[: panel.drawing.distinct]  # a copy shifts with its original
    if panel.matrix is None or not shift.keys() <= set(known):
        raise UserError(
            f"experts.shift={shift} must name experts who are simulated from accuracies: {', '.join(known) or 'nobody here'}."
        )
    factors = np.array([shift.get(name, 1.0) for name in panel.names])  # [J]
    return replace(panel, test_matrix=panel.matrix * factors[:, None])


def _with_copies(panel: ExpertPanel) -> ExpertPanel:
    """The panel in which `experts.distinct` of the simulated experts differ, and the others are copies of them in turn."""
    distinct, simulated = panel.drawing.distinct, panel.simulated
    if distinct is None or simulated is None or distinct >= len(simulated):
        return panel
    recorded, originals = panel.num - len(simulated), panel.drawing.originals(len(simulated))
    names = panel.names[: recorded + distinct]
    for j in range(distinct, len(simulated)):
        names.append(f"{panel.names[recorded + originals[j]]}_copy_{j // distinct + 1}")
    return replace(
        panel,
        names=names,
        matrix=_rows(panel.matrix, originals),
        test_matrix=_rows(panel.test_matrix, originals),
        confusion=_rows(panel.confusion, originals),
    )


def _rows(matrix: np.ndarray | None, rows: "slice | np.ndarray") -> np.ndarray | None:
    return None if matrix is None else matrix[rows]


def _check_recorded(panel: ExpertPanel, dataset: Dataset) -> None:
    """UserError where recorded answers do not fit the dataset's samples and classes."""
    absent = [split for split in dataset.splits() if panel.recorded and split not in panel.recorded]
    if absent:
        raise UserError(
            f"The experts have recorded answers on {', '.join(panel.recorded)} and none on {', '.join(absent)}."
        )
    for split, table in panel.recorded.items():
        wanted = (len(dataset.splits()[split]), panel.num - (0 if panel.confusion is None else len(panel.confusion)))
        low, high = table.min(initial=MISSING), table.max(initial=MISSING)
        if table.shape != wanted or not (low >= MISSING and high < dataset.num_classes):
            raise UserError(
                f"The experts' recorded answers on {split} have shape {table.shape}; they must be [{wanted[0]} samples, "
                f"{wanted[1]} experts] with classes from 0 to {dataset.num_classes - 1}, or -1 for no answer."
            )
