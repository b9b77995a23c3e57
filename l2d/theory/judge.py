"""What the minimiser of a loss decides and believes on a joint, against the truth."""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from l2d.decisions import decide
from l2d.theory.descend import Minima, find_minima
from l2d.theory.families import TIE, Case
from l2d.theory.per_sample import PerSample

SAME_SCORE = 1e-3  # actions this close in score, and within TIE in belief, are equally good to the minimiser


class Finding(NamedTuple):
    """One joint. Where several minima have the same risk, `decision` and `regret` are those of the worst."""

    case: Case
    minima: Minima
    decision: int  # the column: a class, or K + expert
    regret: float  # utility of the best action minus that of the decision
    always: bool  # every one of the minima decides worse than Bayes
    beliefs: Tensor  # [K+J] at the lowest minimum
    error: Tensor  # [K+J] of them, against the truth; a minimum at infinity is followed as far as float64 can tell
    first: int  # the expert it believes in most

    @property
    def missed(self) -> bool:
        return self.regret > TIE

    @property
    def error_all(self) -> float:
        """Largest error of the beliefs: class probabilities and the accuracy of every expert."""
        return float(self.error.max())

    @property
    def error_top(self) -> float:
        """The same, of the experts the first alone."""
        classes, experts = self.error.split([self.case.num_classes, self.case.num_experts])
        return float(torch.maximum(classes.max(), experts[self.first]))

    @property
    def first_rank(self) -> str | None:
        """Whether the first expert is the `best`, the `worst` or `between`; None where all are equally good."""
        accuracy = self.case.utility[self.case.num_classes :]
        if accuracy.max() - accuracy.min() < TIE:
            return None
        own = accuracy[self.first]
        return "best" if own > accuracy.max() - TIE else "worst" if own < accuracy.min() + TIE else "between"


def judge(
    build: Callable[[int, int], PerSample], cases: list[Case], seed: int, done: Callable[[int], None]
) -> list[Finding]:
    """Minimise the risk on every case and compare; `build` makes the loss for K and J, `done` hears of cases finished."""
    shapes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        shapes[case.num_classes, case.num_experts].append(index)
    found: dict[int, Finding] = {}
    for shape, members in shapes.items():
        loss = build(*shape)
        minima = find_minima(loss, [cases[index] for index in members], seed)
        found |= {i: _compare(loss, cases[i], lowest) for i, lowest in zip(members, minima, strict=True)}
        done(len(members))
    return [found[index] for index in range(len(cases))]


def _compare(loss: PerSample, case: Case, minima: Minima) -> Finding:
    beliefs, further = loss.beliefs(torch.cat([minima.scores, minima.further])).split(
        [len(minima.scores), len(minima.further)]
    )  # [M, K+J], [A, K+J]
    decision = decide(beliefs, case.num_classes, order=minima.scores)
    chosen = torch.where(decision.deferred, case.num_classes + decision.expert, decision.predicted)[:, None]  # [M, 1]
    near = (beliefs - beliefs.gather(1, chosen)).abs() < TIE
    near &= (minima.scores - minima.scores.gather(1, chosen)).abs() < SAME_SCORE
    near.scatter_(1, chosen, True)  # [M, K+J] the decision, and what it is tied with
    regret = torch.where(near, case.utility.max() - case.utility, -1.0)  # [M, K+J]
    worst = int(regret.argmax())
    return Finding(
        case=case,
        minima=minima,
        decision=worst % beliefs.shape[1],
        regret=float(regret.max().clamp(min=0)),
        always=bool((regret.amax(dim=1) > TIE).all()),
        beliefs=beliefs[0],
        error=(torch.cat([beliefs[:1], further]) - case.utility).abs().amin(dim=0),
        first=int(decision.expert[0]),
    )
