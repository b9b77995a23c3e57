"""One number for a whole curve of prices, on the test samples or on resamples of them: area and AUGRC."""

import torch
import torch.nn.functional as F
from torch import Tensor

from l2d.evaluation.intervals import interval, resampled_counts
from l2d.evaluation.outcome import Outcome

AREAS = ("area", "augrc")


def areas(outcome: Outcome, counts: Tensor) -> Tensor:
    """Area and AUGRC, [R, 2] on the 0-100 scale, where sample i is there counts[r, i] times, [R, N]; ones: the test set.

    area: the mean height of accuracy against coverage. AUGRC, the area under the generalised risk-coverage curve: the mean over
    k of the share of all cases that are among the k last to be asked about and that the classifier gets wrong. It rewards
    asking first where the classifier errs.
    """
    margin = outcome.decision.margin  # [N]
    return torch.stack([_area(outcome, margin, counts.double()), _augrc(outcome, margin, counts.double())], dim=1)


def _area(outcome: Outcome, margin: Tensor, counts: Tensor) -> Tensor:
    """[R]; trapezoids between the prices at which a case is asked about, cases of equal gain together."""
    margin, order = margin.sort(descending=True, stable=True)
    counts, total = counts[:, order], counts.sum(dim=1)  # [R, N], [R]
    first = margin.new_ones(1).bool()
    attained = torch.cat([first, margin[:-1] > margin[1:], margin[-1:] > -torch.inf])  # [N+1]: after so many cases
    gain = (outcome.expert_right.double() - outcome.classifier_right.double())[order]  # [N]: of asking about one more
    asked = F.pad(counts.cumsum(dim=1), (1, 0))[:, attained]  # [R, P]
    alone = counts @ outcome.classifier_right.double()[order]  # [R]
    right = alone[:, None] + F.pad((counts * gain).cumsum(dim=1), (1, 0))[:, attained]  # [R, P]
    width = asked[:, -1]
    height = torch.where(width > 0, torch.trapezoid(right, asked, dim=1) / width.clamp(min=1), alone)  # [R]
    return 100 * height / total


def _augrc(outcome: Outcome, margin: Tensor, counts: Tensor) -> Tensor:
    """[R]; a case that is there twice counts once with and once without itself before it."""
    order = margin.argsort(stable=True)  # [N], the surest first
    counts, total = counts[:, order], counts.sum(dim=1)  # [R, N], [R]
    lost = counts * (~outcome.classifier_right).double()[order]  # [R, N]
    before = lost.cumsum(dim=1) - lost  # [R, N]
    return 100 * (counts * before + lost * (counts + 1) / 2).sum(dim=1) / total**2


def resampled_areas(outcome: Outcome) -> Tensor:
    """Area and AUGRC of resamples of the test set, [resamples, 2]; the same resamples for all outcomes of as many samples."""
    return torch.cat([areas(outcome, counts) for counts in resampled_counts(len(outcome.labels))])


def area_summary(outcome: Outcome) -> dict[str, float | list[float]]:
    """Both numbers, and the ends of their intervals over other test sets."""
    values = areas(outcome, torch.ones(1, len(outcome.labels)))[0].tolist()
    ends = torch.stack(interval(resampled_areas(outcome)), dim=1).tolist()  # [2, 2]
    summary: dict[str, float | list[float]] = dict(zip(AREAS, values, strict=True))
    return summary | {f"{name}_interval": pair for name, pair in zip(AREAS, ends, strict=True)}
