"""The judgement of one loss: what it decides and believes at its minimum, its shape, and a sentence that sums it up."""

from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

from torch import Tensor

from l2d.theory.families import FAMILIES, Case
from l2d.theory.joints import condition_holds
from l2d.theory.judge import Finding, judge
from l2d.theory.per_sample import PerSample
from l2d.theory.properties import continuity, convexity, pull
from l2d.theory.simplify import simplify

LEVELS = ["none", "top", "all"]
RIGHT = 0.01  # beliefs with a smaller error are right: some minima are at infinity, where they are only approached
LOOKED_AT = (3, 3)  # K and J of the loss whose jumps and convexity are looked for


class Judgement(NamedTuple):
    """All that was found about a loss."""

    name: str
    vouches_for: str  # what the loss itself says of its beliefs: all, top or none
    has_beliefs: bool
    exact: bool  # computed in float64
    findings: list[Finding]
    continuity: dict[str, Any]
    convexity: dict[str, Any]
    pull: dict[str, Any]
    worst: Finding | None

    def families(self) -> dict[str, list[Finding]]:
        """The findings by family, and all of them."""
        found = {name: [f for f in self.findings if f.case.family == name] for name in FAMILIES}
        return {name: members for name, members in found.items() if members} | {"all": self.findings}

    @property
    def growth(self) -> float:
        """How many times as strongly the expert columns are pulled up with the most experts as with one."""
        upward = self.pull["upward"]
        return float(upward[-1] / max(upward[0], 1e-300))


def check_loss(
    name: str, build: Callable[[int, int], PerSample], cases: list[Case], seed: int, done: Callable[[int], None]
) -> Judgement:
    """Judge the loss that `build(K, J)` makes, on these joints; `done` hears how many more are finished."""
    findings = judge(build, cases, seed, done)
    loss = build(*LOOKED_AT)
    vouches_for = loss.system.vouches_for
    return Judgement(
        name=name,
        vouches_for=vouches_for if vouches_for in LEVELS else "none",
        has_beliefs=loss.has_beliefs,
        exact=loss.exact,
        findings=findings,
        continuity=continuity(loss, seed),
        convexity=convexity(loss, seed),
        pull=pull(build, seed),
        worst=simplify(findings, lambda smaller: judge(build, smaller, seed, lambda _: None)),
    )


def summary(findings: list[Finding]) -> dict[str, Any]:
    """The numbers of some joints."""
    ranks = [finding.first_rank for finding in findings]
    missed = [finding for finding in findings if finding.missed]
    return {
        "joints": len(findings),
        "missed": len(missed),
        "missed_by_some_minima_only": sum(not finding.always for finding in missed),
        "mean_regret": fmean(finding.regret for finding in findings),
        "largest_regret": max(finding.regret for finding in findings),
        "belief_error_all": max(finding.error_all for finding in findings),
        "belief_error_top": max(finding.error_top for finding in findings),
        "ranked": sum(rank is not None for rank in ranks),
        "best_expert_first": ranks.count("best"),
        "worst_expert_first": ranks.count("worst"),
        "largest_slope": max(finding.minima.slope for finding in findings),
        "not_settled": sum(not finding.minima.settled for finding in findings),
        "at_infinity": sum(finding.minima.at_infinity for finding in findings),
    }


def verdict(judgement: Judgement) -> str:
    """One sentence in plain English, which claims no more than was tested."""
    total = summary(judgement.findings)
    parts = [_consistency(judgement, total), *_beliefs(judgement, total)]
    jumps = judgement.continuity["lines_with_a_jump"]
    parts.append(f"jumps on {jumps} of {judgement.continuity['lines']} lines" if jumps else "continuous")
    parts.append("not convex" if judgement.convexity["violated"] else "convex")
    if judgement.growth > 4:
        most = judgement.pull["experts"][-1]
        parts.append(f"{most} experts pull {judgement.growth:.0f} times as much as one")
    if not judgement.exact:
        parts.append("computed in float32, as the loss does")
    return "; ".join(parts)


def _consistency(judgement: Judgement, total: dict[str, Any]) -> str:
    joints, missed = total["joints"], total["missed"]
    if total["not_settled"]:
        unsettled = f"no minimum found in {total['not_settled']} of {joints} joints"
        return unsettled + (f", Bayes decision missed in {missed}" if missed else "")
    if not missed:
        return f"consistent in all {joints} joints" if joints > 1 else "consistent in the one joint"
    where = [name for name, members in judgement.families().items() if any(f.missed for f in members)][:-1]
    only = f", all in the family '{where[0]}'" if len(where) == 1 and len(judgement.families()) > 2 else ""
    text = f"misses the Bayes decision in {missed} of {joints} joints (mean regret {total['mean_regret']:.4f}{only})"
    some = total["missed_by_some_minima_only"]
    return text + (f", in {some} of them by some of its minima only" if some else "")


def _beliefs(judgement: Judgement, total: dict[str, Any]) -> list[str]:
    parts = []
    if total["worst_expert_first"] > total["ranked"] / 2:
        parts.append(
            f"puts the least accurate expert first in {total['worst_expert_first']} of {total['ranked']} joints"
        )
    if not judgement.has_beliefs:
        return [*parts, "has no beliefs"]
    level, where = _right(judgement)
    if level == judgement.vouches_for == "none":
        said = "vouches for no expert"
    elif level == "none":
        said = f"beliefs wrong by up to {total['belief_error_top']:.2f} even for the top expert"
    else:
        said = f"beliefs right for {'every' if level == 'all' else 'the top'} expert"
        said += f", except in the family '{where}'" if where else ""
    if LEVELS.index(judgement.vouches_for) > LEVELS.index(level):
        said += f", though it vouches for {'every' if judgement.vouches_for == 'all' else 'the top'} expert"
    return [*parts, said]


def _right(judgement: Judgement) -> tuple[str, str]:
    """For whom the beliefs are right, all, top or none, and the family that is an exception, if there is just one."""
    families = {name: summary(members) for name, members in judgement.families().items() if name != "all"}
    found = "none", ""
    for level in ("top", "all"):
        wrong = [name for name, numbers in families.items() if numbers[f"belief_error_{level}"] > RIGHT]
        if len(wrong) <= min(1, len(families) - 1):
            found = level, "".join(wrong)
    return found


def as_json(judgement: Judgement) -> dict[str, Any]:
    """All numbers, as dicts, lists and scalars; joints are given by their position in the list of joints."""
    return {
        "verdict": verdict(judgement),
        "vouches_for": judgement.vouches_for,
        "has_beliefs": judgement.has_beliefs,
        "float64": judgement.exact,
        "families": {name: summary(members) for name, members in judgement.families().items()},
        "continuity": judgement.continuity,
        "convexity": judgement.convexity,
        "pull": judgement.pull,
        "joints": [_finding(finding) for finding in judgement.findings],
        "worst": judgement.worst and {**case_json(judgement.worst.case), **_finding(judgement.worst)},
    }


def case_json(case: Case) -> dict[str, Any]:
    """A joint: a row per cell with its label, the answers and the mass."""
    return {
        "family": case.family,
        "num_classes": case.num_classes,
        "num_experts": case.num_experts,
        "cells": [[*cell, mass] for cell, mass in zip(case.cells.tolist(), case.mass.tolist(), strict=True)],
        "answer_rates": case.rates.tolist(),
        "utility": case.utility.tolist(),
        "condition_1": condition_holds(case.dense),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    def rounded(values: Tensor) -> list[float]:
        return [float(f"{value:.9g}") for value in values.tolist()]

    return {
        "decision": finding.decision,
        "missed": finding.missed,
        "missed_by_all_minima": finding.missed and finding.always,
        "regret": finding.regret,
        "beliefs": rounded(finding.beliefs),
        "first_expert": finding.first,
        "scores": rounded(finding.minima.scores[0]),
        "risk": finding.minima.risk,
        "slope": finding.minima.slope,
        "settled": finding.minima.settled,
        "at_infinity": finding.minima.at_infinity,
    }
