"""What can be seen of a loss without minimising it: jumps, convexity, and how the experts' pull grows with their number."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from l2d.theory.per_sample import PerSample

LINES, GRID, REFINED, HALVINGS = 400, 64, 2, 36
ONE_BY_ONE = 10  # times fewer lines and pairs where samples are computed one by one
JUMP = 1e-4  # a step that stays larger than this however short the interval
PAIRS = 20_000
EXPERTS = (1, 2, 4, 8, 16)
PULL_CLASSES, PULL_SAMPLES, PULL_ACCURACY = 4, 1000, 0.6


def continuity(loss: PerSample, seed: int) -> dict[str, Any]:
    """Look for jumps of the loss of one sample along random lines through the scores.

    Where a step on a grid differs most from its neighbours the interval is halved again and again, towards the larger step:
    of a continuous function that step shrinks to nothing, at a jump it stays.
    """
    generator = torch.Generator().manual_seed(seed)
    width = loss.num_classes + loss.num_experts
    lines = LINES if loss.vectorised else LINES // ONE_BY_ONE
    labels, answers = _samples(loss, lines, generator)
    start, way = (2 * torch.randn(lines, width, dtype=torch.float64, generator=generator) for _ in range(2))

    def values(line: Tensor, position: Tensor) -> Tensor:
        """At positions [n] on the lines [n]."""
        return loss.values(start[line] + position[:, None] * way[line], labels[line], answers[line])

    grid = torch.linspace(-1, 1, GRID + 1, dtype=torch.float64)
    every = torch.arange(lines)
    steps = values(every.repeat_interleave(len(grid)), grid.repeat(lines)).view(lines, -1).diff()  # [lines, GRID]
    around = torch.cat([steps[:, :1], steps, steps[:, -1:]], dim=1)
    odd = (steps - (around[:, :-2] + around[:, 2:]) / 2).abs()
    interval = odd.topk(REFINED).indices.flatten()  # [lines * REFINED]
    line, low, high = every.repeat_interleave(REFINED), grid[interval], grid[interval + 1]
    at_low, at_high = values(line, low), values(line, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        value = values(line, middle)
        left = (value - at_low).abs() > (at_high - value).abs()
        low, at_low = torch.where(left, low, middle), torch.where(left, at_low, value)
        high, at_high = torch.where(left, middle, high), torch.where(left, value, at_high)
    jumps = (at_high - at_low).abs()
    found: dict[str, Any] = {"lines": lines, "lines_with_a_jump": len(line[jumps > JUMP].unique())}
    largest = int(jumps.argmax())
    if jumps[largest] > JUMP:
        row = int(line[largest])
        scores = start[row] + low[largest] * way[row]
        found["example"] = {
            "jump": float(jumps[largest]),
            "from": float(at_low[largest]),
            "to": float(at_high[largest]),
            **_sample(scores, labels[row], answers[row]),
        }
    return found


def convexity(loss: PerSample, seed: int) -> dict[str, Any]:
    """Compare the loss of one sample in the middle of random pairs of scores with the mean of the two ends."""
    generator = torch.Generator().manual_seed(seed)
    width = loss.num_classes + loss.num_experts
    pairs = PAIRS if loss.vectorised else PAIRS // ONE_BY_ONE
    labels, answers = _samples(loss, pairs, generator)
    first, second = (3 * torch.randn(pairs, width, dtype=torch.float64, generator=generator) for _ in range(2))
    second = torch.where(torch.rand(pairs, 1, generator=generator) < 0.5, second, first + second / 10)  # near ones too
    ends = [loss.values(scores, labels, answers) for scores in (first, second)]
    middle = loss.values((first + second) / 2, labels, answers)
    above = middle - (ends[0] + ends[1]) / 2
    allowed = (1e-9 if loss.exact else 1e-4) * (1 + middle.abs())
    found: dict[str, Any] = {"pairs": pairs, "violated": int((above > allowed).sum())}
    if found["violated"]:
        row = int(above.argmax())
        found["example"] = {
            "middle": float(middle[row]),
            "mean_of_ends": float(middle[row] - above[row]),
            "other_scores": second[row].tolist(),
            **_sample(first[row], labels[row], answers[row]),
        }
    return found


def pull(build: Callable[[int, int], PerSample], seed: int) -> dict[str, Any]:
    """For more and more experts: how strongly a sample pulls their columns up (the implied weight of what they are taught),
    sum_j max(0, -d loss / d theta_{K+j}); all their slopes, sum_j |d loss / d theta_{K+j}|; and the class columns' share of
    all slopes. A mean over random scores (standard normal) and experts who are right with one probability.
    """
    up, size, share = [], [], []
    for number in EXPERTS:
        generator = torch.Generator().manual_seed(seed)
        loss = build(PULL_CLASSES, number)
        labels = torch.randint(PULL_CLASSES, (PULL_SAMPLES,), generator=generator)
        right = torch.rand(PULL_SAMPLES, number, generator=generator) < PULL_ACCURACY
        answers = torch.where(right, labels[:, None], (labels[:, None] + 1) % PULL_CLASSES)
        scores = torch.randn(PULL_SAMPLES, PULL_CLASSES + number, dtype=torch.float64, generator=generator)
        classes, experts = loss.slopes(scores, labels, answers).split([PULL_CLASSES, number], dim=1)  # [B, K], [B, J]
        up.append(float((-experts).clamp(min=0).sum(dim=1).mean()))
        size.append(float(experts.abs().sum(dim=1).mean()))
        own = float(classes.abs().sum(dim=1).mean())
        share.append(own / max(own + size[-1], 1e-300))
    return {"experts": list(EXPERTS), "upward": up, "slopes": size, "class_gradient_share": share}


def _samples(loss: PerSample, number: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Random labels [n] and answers [n, J]; half of the answers are right, a few are missing."""
    labels = torch.randint(loss.num_classes, (number,), generator=generator)
    chance = torch.rand(number, loss.num_experts, generator=generator)
    wrong = torch.randint(loss.num_classes, (number, loss.num_experts), generator=generator)
    return labels, torch.where(chance < 0.5, labels[:, None], wrong).masked_fill(chance > 0.95, -1)


def _sample(scores: Tensor, label: Tensor, answers: Tensor) -> dict[str, Any]:
    return {"scores": scores.tolist(), "label": int(label), "answers": answers.tolist()}
