"""Judgements as text: Markdown tables that can also be read on a terminal, and the worst joint for checking by hand."""

from fractions import Fraction
from typing import Any

from l2d.theory.check import Judgement, summary, verdict
from l2d.theory.judge import Finding


def one_loss(judgement: Judgement) -> str:
    """A table with a row per family, the other findings, the worst case and the verdict."""
    rows = [_family_row(name, summary(members), judgement) for name, members in judgement.families().items()]
    total = summary(judgement.findings)
    infinity = f"; in {total['at_infinity']} of {total['joints']} joints it is approached at infinity"
    settled = f"; no minimum found in {total['not_settled']}" if total["not_settled"] else ""
    parts = [
        markdown([FAMILY_COLUMNS, *rows]),
        "\n".join(
            [
                f"Minimum: largest remaining slope {total['largest_slope']:.1e}{infinity if total['at_infinity'] else ''}{settled}.",
                f"Continuity: {_jumps(judgement.continuity)}.",
                f"Convexity: {_convexity(judgement.convexity)}.",
                _pull(judgement.pull),
            ]
        ),
    ]
    if judgement.worst:
        parts.append(_worst(judgement.worst))
    return "\n\n".join([*parts, f"{judgement.name}: {verdict(judgement)}."])


def several_losses(judgements: list[Judgement]) -> str:
    """A table with a row per loss, and a verdict each."""
    rows = []
    for judgement in judgements:
        total = summary(judgement.findings)
        share = judgement.pull["class_gradient_share"]
        jumps = judgement.continuity["lines_with_a_jump"]
        rows.append(
            [
                f"`{judgement.name}`",
                f"{total['missed']} of {total['joints']}",
                f"{total['mean_regret']:.4f}",
                *_belief_errors(total, judgement),
                f"{total['best_expert_first']} of {total['ranked']}",
                "no" if jumps else "yes",
                "no" if judgement.convexity["violated"] else "yes",
                f"{judgement.growth:.1f}",
                f"{100 * share[0]:.0f} -> {100 * share[-1]:.0f}",
            ]
        )
    lines = "\n".join(f"- `{judgement.name}`: {verdict(judgement)}." for judgement in judgements)
    return f"{markdown([LOSS_COLUMNS, *rows])}\n\n{lines}"


FAMILY_COLUMNS = [
    "family", "joints", "Bayes missed", "mean regret", "largest", "belief error, all", "top expert", "best expert first", "worst first",
]  # fmt: skip
LOSS_COLUMNS = [
    "loss", "Bayes missed", "mean regret", "belief error, all", "top expert", "best expert first", "continuous", "convex",
    "experts' pull, 16 : 1", "class share (%), 1 -> 16",
]  # fmt: skip


def markdown(rows: list[list[str]]) -> str:
    """A table whose first row is the heading; the first column to the left, the others to the right.

    >>> print(markdown([["loss", "n"], ["ce", "10"]]))
    | loss |  n |
    |------|---:|
    | ce   | 10 |
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append(f"| {' | '.join(cells)} |")
    rule = ["-" * (widths[0] + 2), *(f"{'-' * (width + 1)}:" for width in widths[1:])]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


def _family_row(name: str, found: dict[str, Any], judgement: Judgement) -> list[str]:
    ranked = [f"{found[key]} of {found['ranked']}" for key in ("best_expert_first", "worst_expert_first")]
    return [
        name,
        str(found["joints"]),
        str(found["missed"]),
        f"{found['mean_regret']:.4f}",
        f"{found['largest_regret']:.3f}",
        *_belief_errors(found, judgement),
        *(ranked if found["ranked"] else ["-", "-"]),
    ]


def _belief_errors(found: dict[str, Any], judgement: Judgement) -> list[str]:
    if not judgement.has_beliefs:
        return ["-", "-"]
    return [f"{found[key]:.4f}" for key in ("belief_error_all", "belief_error_top")]


def _jumps(found: dict[str, Any]) -> str:
    if not found["lines_with_a_jump"]:
        return f"no jump on {found['lines']} random lines"
    example = found["example"]
    return (
        f"jumps on {found['lines_with_a_jump']} of {found['lines']} random lines, for example from {example['from']:.3f} to "
        f"{example['to']:.3f} at {_sample(example)}"
    )


def _convexity(found: dict[str, Any]) -> str:
    if not found["violated"]:
        return f"not violated by {found['pairs']:,} random pairs"
    example = found["example"]
    return (
        f"violated by {found['violated']:,} of {found['pairs']:,} random pairs, for example {example['middle']:.3f} in the "
        f"middle and {example['mean_of_ends']:.3f} on average at {_sample(example)} and scores "
        f"({_numbers(example['other_scores'])})"
    )


def _pull(found: dict[str, Any]) -> str:
    return (
        f"Experts' pull with {', '.join(map(str, found['experts']))} experts: {_numbers(found['upward'])}; share of the class "
        f"columns in all slopes: {', '.join(f'{100 * value:.0f} %' for value in found['class_gradient_share'])}."
    )


def _sample(example: dict[str, Any]) -> str:
    answers = ", ".join("none" if answer < 0 else str(1 + answer) for answer in example["answers"])
    return f"label {1 + example['label']}, answers ({answers}), scores ({_numbers(example['scores'])})"


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _worst(finding: Finding) -> str:
    """The joint with its masses as fractions, and what is decided there; classes and experts are counted from 1."""
    case, utility = finding.case, finding.case.utility.tolist()
    total = case.mass.sum().item()
    head = ["mass", "label", *(f"expert {1 + j}" for j in range(case.num_experts))]
    rows = [
        [_fraction(mass, total), str(1 + label), *(f"{1 + answer}{' right' * (answer == label)}" for answer in answers)]
        for (label, *answers), mass in zip(case.cells.tolist(), case.mass.tolist(), strict=True)
    ]
    best = max(range(len(utility)), key=utility.__getitem__)

    def action(column: int) -> str:
        own = column < case.num_classes
        what = f"answer class {1 + column}" if own else f"ask expert {1 + column - case.num_classes}"
        return f"{what}, right with probability {_fraction(utility[column], 1.0)}"

    rates = ", ".join(f"{rate:g}" for rate in case.rates.tolist())
    lines = [
        f"A case of the worst, made small (regret {finding.regret:.3f}; classes and experts are counted from 1):",
        markdown([head, *rows]),
        *([f"The experts answer with probability {rates}."] if (case.rates < 1).any() else []),
        f"Best: {action(best)}. At the least risk, {finding.minima.risk:.6f}: {action(finding.decision)}.",
        f"Scores there: {_numbers(finding.minima.scores[0].tolist())}.",
    ]
    return "\n".join(lines)


def _fraction(part: float, whole: float) -> str:
    """As a fraction if its denominator is small."""
    exact = Fraction(part / whole).limit_denominator(1000)
    return str(exact) if abs(float(exact) - part / whole) < 1e-9 else f"{part / whole:.4f}"
