"""The least exact risk of any loss, in float64, for many joints of one shape and many starts at once."""

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from l2d.theory.families import Case
from l2d.theory.per_sample import PerSample

STEPS = 240
FIRST_STEP, LAST_STEP = 0.5, 1e-3  # Adam's moves are about this long, however flat the risk: it also gets to infinity
KEPT = 6  # starts per joint that are polished
POLISH = 20  # rounds of Newton's method
FLAT = 1e-13  # least curvature to divide by: nothing changes when all scores of a softmax are shifted
SAME_RISK = 1e-7  # minima whose risks differ by less are equally good
SETTLED = 1e-4  # largest slope of a minimum
IN_A_KINK = 1e-5  # with a larger slope, a point still counts as a minimum if nothing near it is lower by more than this
FURTHER = (-40.0, -10.0, 10.0)  # moves of one column that may change beliefs and not the risk
NOTHING = 1e-10  # a change of the risk that is none
FAR = 12.0  # scores further apart than this are on their way to infinity


class Minima(NamedTuple):
    """The best points found for one joint, all of the same risk."""

    scores: Tensor  # [M, K+J], the lowest first
    further: Tensor  # [A, K+J] the lowest with one column further out, where the risk in float64 stays what it is
    risk: float
    slope: float  # largest |d risk / d score| at the lowest
    settled: bool  # that slope is small, or nothing nearby is lower (a minimum in a kink)
    at_infinity: bool


class _Risk:
    """The exact risks of P joints of one shape at scores [P, S, K+J]."""

    def __init__(self, loss: PerSample, cases: list[Case]):
        self.loss, self.joints = loss, len(cases)
        rows = [case.rows() for case in cases]
        self.labels, self.answers, self.mass = (torch.cat(parts) for parts in zip(*rows, strict=True))
        self.owner = torch.tensor([len(labels) for labels, _, _ in rows]).cumsum(0)  # [P]
        self.owner = torch.bucketize(torch.arange(len(self.labels)), self.owner, right=True)  # [R] the joint of a row

    def __call__(self, scores: Tensor) -> Tensor:
        """Risks, [P, S]; infinite where the loss is no number."""
        losses = self.loss.values(*self._flat(scores)).view(len(self.owner), -1)  # [R, S]
        return self._sum(losses).nan_to_num(math.inf, math.inf)

    def slope(self, scores: Tensor) -> Tensor:
        """Their gradients, [P, S, K+J]."""
        return self._sum(self.loss.slopes(*self._flat(scores)).view(len(self.owner), *scores.shape[1:]))

    def curvature(self, scores: Tensor, width: float = 1e-4) -> Tensor:
        """Their Hessians by differences of slopes, [P, S, K+J, K+J]."""
        moves = width * torch.eye(scores.shape[-1], dtype=torch.float64)
        columns = [(self.slope(scores + move) - self.slope(scores - move)) / (2 * width) for move in moves]
        found = torch.stack(columns, dim=-1)
        return (found + found.mT) / 2

    def _flat(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        starts = scores.shape[1]
        flat = scores[self.owner].flatten(0, 1)  # [R * S, K+J]
        return flat, self.labels.repeat_interleave(starts), self.answers.repeat_interleave(starts, dim=0)

    def _sum(self, per_row: Tensor) -> Tensor:
        weighted = per_row * self.mass.view(-1, *[1] * (per_row.dim() - 1))
        return per_row.new_zeros(self.joints, *per_row.shape[1:]).index_add(0, self.owner, weighted)


def find_minima(loss: PerSample, cases: list[Case], seed: int) -> list[Minima]:
    """Minima of the exact risk of each case; all have the loss's K and J."""
    risk = _Risk(loss, cases)
    scores = _starts(risk, torch.Generator().manual_seed(seed))
    scores = _descend(risk, scores)
    best = risk(scores).topk(KEPT, dim=1, largest=False).indices  # [P, KEPT]
    scores = _polish(risk, scores.gather(1, best[..., None].expand(-1, -1, scores.shape[2])))
    return _sorted(risk, scores)


def _starts(risk: _Risk, generator: Generator) -> Tensor:
    """[P, S, K+J]: all scores equal, each column ahead of the others, and random ones."""
    width = risk.loss.num_classes + risk.loss.num_experts
    ahead = 3 * torch.eye(width, dtype=torch.float64)
    noise = torch.randn(width + 2 + 3 * risk.loss.num_experts, width, dtype=torch.float64, generator=generator)
    starts = torch.cat([torch.zeros(1, width), ahead + 0.5 * noise[:width], 2 * noise[width:]])
    return starts.expand(risk.joints, -1, -1).contiguous()


def _descend(risk: _Risk, scores: Tensor) -> Tensor:
    """Adam with a falling step length. Its steps do not shrink with the slope, which vanishes where MAE and GCE begin."""
    mean, square = torch.zeros_like(scores), torch.zeros_like(scores)
    for step in range(1, STEPS + 1):
        slope = risk.slope(scores)
        mean = 0.9 * mean + 0.1 * slope
        square = 0.95 * square + 0.05 * slope**2
        length = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / STEPS)
        move = (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-100)
        scores = scores - length * move.clamp(-3, 3)
    return scores


def _polish(risk: _Risk, scores: Tensor) -> Tensor:
    """Newton's method with the sizes of the curvatures, so that it goes down also where the risk curves downwards. A step
    counts only if it lowers the risk; after one that does not, shorter ones are tried."""
    value = risk(scores)  # [P, S]
    reach = torch.ones_like(value)
    for _ in range(POLISH if risk.loss.vectorised else POLISH // 4):
        slope = risk.slope(scores)
        curved, directions = torch.linalg.eigh(risk.curvature(scores))  # [P, S, K+J], [P, S, K+J, K+J]
        along = (directions.mT @ slope[..., None]).squeeze(-1) / curved.abs().clamp(min=FLAT)
        step = reach[..., None] * (directions @ along[..., None]).squeeze(-1).clamp(-2, 2)
        moved = risk(scores - step)
        better = moved < value
        scores = torch.where(better[..., None], scores - step, scores)
        value = torch.where(better, moved, value)
        reach = torch.where(better, (2 * reach).clamp(max=1), 0.25 * reach)
    return scores


def _sorted(risk: _Risk, scores: Tensor) -> list[Minima]:
    values, order = risk(scores).sort(dim=1)  # [P, S]
    scores = scores.gather(1, order[..., None].expand_as(scores))
    slopes = risk.slope(scores[:, :1]).abs().amax(dim=(1, 2))  # [P]
    settled = slopes < SETTLED  # [P]
    if not settled.all():
        settled |= _lower_nearby(risk, scores[:, :1]) >= values[:, 0] - IN_A_KINK
    further = _further(risk, scores[:, :1], values[:, :1] + NOTHING)
    found = []
    for p in range(risk.joints):
        same = scores[p][values[p] <= values[p, 0] + SAME_RISK * (1 + values[p, 0].abs())]
        apart = float(same[0].max() - same[0].min())
        found.append(Minima(same, further[p], float(values[p, 0]), float(slopes[p]), bool(settled[p]), apart > FAR))
    return found


def _lower_nearby(risk: _Risk, scores: Tensor) -> Tensor:
    """The least risk at random points near scores [P, 1, K+J] and against the slope, [P]."""
    noise = torch.randn(32, scores.shape[2], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slope = risk.slope(scores)
    down = slope / slope.norm(dim=2, keepdim=True).clamp(min=1e-300)
    near = [scores + width * noise for width in (1e-3, 0.1)] + [scores - width * down for width in (1e-3, 0.1, 3.0)]
    return risk(torch.cat(near, dim=1)).amin(dim=1)


def _further(risk: _Risk, scores: Tensor, most: Tensor) -> list[Tensor]:
    """Of scores [P, 1, K+J] with one column moved far, those whose risk is at `most` [P, 1] at most: [A, K+J] for each joint."""
    if not risk.loss.has_beliefs:  # nobody asks
        return [joint[:0] for joint in scores]
    moves = torch.cat([width * torch.eye(scores.shape[2], dtype=torch.float64) for width in FURTHER])  # [A, K+J]
    moved = scores + moves  # [P, A, K+J]
    return [points[flat] for points, flat in zip(moved, risk(moved) <= most, strict=True)]
