"""How sure a run is of itself and of each expert by name, against what happened."""

from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from l2d.report.statistics import share_interval
from l2d.report.style import MANY, STYLE, add_legend, height, short

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from l2d.evaluation.outcome import Outcome

BINS, LEAST = 10, 5  # of the reliability diagram, and the answers in a bin that is drawn
SYSTEM = "the system itself"


class Belief(NamedTuple):
    """What the system believed about somebody's answers, and how they turned out; percent."""

    who: str
    answers: int  # that were used
    believed: float | None  # mean over these
    realised: float | None
    interval: tuple[float, float] | None  # 95%, of the realised one
    ece: float | None  # over all answers, used or not


def beliefs_of(outcome: "Outcome", expert_names: list[str]) -> list[Belief]:
    """Of the system and of every expert; none where its beliefs are no estimates."""
    if not outcome.believes:
        return []
    kept, asked = ~outcome.decision.deferred, outcome.decision.asked
    rows = []
    for j, who in enumerate([SYSTEM, *expert_names], start=-1):
        believed, right, known = _compared(outcome, j)  # [N] each
        rows.append(_belief(who, believed, right, known, known & (kept if j < 0 else asked[:, j])))
    return rows


def reliability_figure(outcome: "Outcome", expert_names: list[str], with_system: bool) -> Figure:
    """Accuracy against believed accuracy, a line for each expert, of many for those who are asked most."""
    from l2d.evaluation.calibration import reliability

    often = outcome.decision.asked.sum(dim=0).argsort(descending=True, stable=True).tolist()  # [J]
    shown = sorted(often[:MANY])
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, height(3.6, [str(j) for j in shown])))
        ax = figure.subplots()
        ax.plot([0, 100], [0, 100], color="0.6", linewidth=1)
        for j in [*([-1] if with_system else []), *shown]:
            believed, right, known = _compared(outcome, j)
            bins = reliability(believed[known], right[known], BINS)
            columns = zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True)
            points = [(x, y) for count, x, y in columns if count >= LEAST]
            if points:
                style: dict[str, Any] = {"color": "0.1", "linestyle": "--"} if j < 0 else {}
                ax.plot(
                    *zip(*points, strict=True), marker="o", label=SYSTEM if j < 0 else short(expert_names[j]), **style
                )
        ax.set_xlabel("Believed accuracy (%)")
        ax.set_ylabel("Accuracy (%)")
        add_legend(ax, ax)
    return figure


def _compared(outcome: "Outcome", j: int) -> "tuple[Tensor, Tensor, Tensor]":
    """Of expert j, or for -1 of the system: what it believes, whether that is right, and where this can be compared; [N] each."""
    import torch

    from l2d.decisions import pick
    from l2d.evaluation.calibration import estimated

    if j < 0:
        right = outcome.classifier_right
        return pick(outcome.beliefs, outcome.decision.predicted), right, torch.ones_like(right)
    return outcome.beliefs[:, outcome.num_classes + j], outcome.experts_right[:, j], estimated(outcome)[:, j]


def _belief(who: str, believed: "Tensor", right: "Tensor", known: "Tensor", used: "Tensor") -> Belief:
    from l2d.evaluation.calibration import reliability

    count, ece = int(used.sum()), reliability(believed[known], right[known], BINS)["ece"]
    if not count:
        return Belief(who, 0, None, None, None, ece)
    hits = int(right[used].sum())
    return Belief(who, count, 100 * believed[used].mean().item(), 100 * hits / count, share_interval(hits, count), ece)
