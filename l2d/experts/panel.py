"""A panel: the experts' predictions on every split, whichever way they came about."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, from_numpy

from l2d.data.dataset import Dataset
from l2d.errors import UserError
from l2d.experts.simulator import simulate

_STREAMS = {"test": 0, "train": 1}  # training epoch e (resample=per_epoch) uses stream 1 + e


@dataclass
class ExpertPanel:
    """J experts: `matrix` [J, K] of those that are simulated, `recorded` answers per split of those that are not."""

    names: list[str]
    matrix: np.ndarray | None = None
    recorded: dict[str, np.ndarray] = field(default_factory=dict)  # split -> [N, J]
    resample: str = "once"
    seed: int = 0

    @property
    def num(self) -> int:
        return len(self.names)

    def predictions(self, split: str, labels: Tensor, epoch: int = 0) -> Tensor:
        """The table [N, J]; redrawn for every training epoch only if `resample` is `per_epoch`."""
        if self.matrix is None:
            return from_numpy(self.recorded[split])
        again = epoch if split == "train" and self.resample == "per_epoch" else 0
        return from_numpy(simulate(self.matrix, labels.numpy(), self.seed, _STREAMS[split] + again))


def make_panel(experts: "ExpertPanel | np.ndarray", dataset: Dataset, resample: str, seed: int) -> ExpertPanel:
    """What an `experts=` target returned, as a panel: an accuracy matrix [J, K] is simulated, a panel stays itself."""
    if isinstance(experts, ExpertPanel):
        return experts
    matrix = np.asarray(experts, dtype=float)
    if matrix.ndim != 2 or matrix.shape[1] != dataset.num_classes or not ((matrix >= 0) & (matrix <= 1)).all():
        raise UserError(
            f"The experts' accuracy matrix has shape {matrix.shape}; it must be [number of experts, "
            f"{dataset.num_classes} classes] with entries between 0 and 1."
        )
    if resample not in ("once", "per_epoch"):
        raise UserError(f"experts.resample={resample} must be once or per_epoch.")
    return ExpertPanel([f"expert_{j}" for j in range(len(matrix))], matrix, resample=resample, seed=seed)


def human(dataset: Dataset, num: int) -> ExpertPanel:
    """The dataset's own annotators, the first `num` of them."""
    have = list(dataset.annotators)
    if not have:
        raise UserError(
            f"experts=human needs recorded annotators, and dataset={dataset.name} has none; "
            "use simulated experts (for example experts=specialist), or a dataset with annotators (micebone, chaoyang, folder)."
        )
    if not 1 <= num <= len(have):
        raise UserError(
            f"experts.num={num}: dataset={dataset.name} has {len(have)} annotators, so choose 1 to {len(have)}."
        )
    names = have[:num]
    recorded = {
        split: np.stack([dataset.annotators[name][split] for name in names], axis=1) for split in ("train", "test")
    }
    return ExpertPanel(names, recorded=recorded)
