"""How the report names, orders and compares methods. A method is a loss and a system, by their names and what differs from them."""

from typing import Any

import pandas as pd

from l2d.errors import UserError
from l2d.identity import method_parts
from l2d.report.settings import complete, overridden, packaged

BASES = {"ce": "CE", "ova": "OvA", "gce": "GCE", "decoupled": "Decoupled", "asm": "A-SM"}
FORMULATIONS = {
    "vanilla": "Vanilla", "picce": "PiCCE", "pice": "PiCE", "balanced": "Balanced", "soft_picce": "Soft PiCCE",
}  # fmt: skip
# Losses that are no formulation of a base that others share: columns of their own.
ALONE = {
    "mae": "MAE", "decoupled": "Decoupled", "asm": "A-SM", "rs": "RS", "rs_gce": "RS GCE", "moe": "MoE", "css": "CSS",
    "liu": "Liu et al.",
}  # fmt: skip
MAX_COLUMNS = 4  # of methods in a table; where there are more, methods are rows


def loss_name(formulation: str, base: str) -> str:
    """The `name` in conf/loss of a formulation with a base.

    >>> loss_name("vanilla", "ce"), loss_name("picce", "ova")
    ('ce', 'picce_ova')
    """
    return base if formulation == "vanilla" else f"{formulation}_{base}"


KNOWN = {loss_name(f, base): (f, base) for base in ("ce", "ova", "gce") for f in FORMULATIONS}


def method_name(chosen: dict[str, Any], config: dict[str, Any]) -> str:
    """The loss's name where one is used, and the system's where it is not the usual one, each with what was overridden."""
    names = {"loss": str(chosen.get("loss") or ""), "system": str(chosen.get("system") or "score")}
    return " ".join(method_parts({group: _name(group, name, config) for group, name in names.items()}))


def _name(group: str, name: str, config: dict[str, Any]) -> str:
    """The name in the package's files that the settings are closest to, and what differs: `ce weight=0.3`.

    So loss=ce loss.weight=balanced is balanced_ce. A name that the package does not have is a user's own.
    """
    files, settings = packaged(group), complete(group, name, config)
    if name not in files:
        return name
    similar = [n for n in files if n == name or (group == "loss" and files[n].get("_target_") == settings["_target_"])]
    differing = {other: overridden(group, other, settings, config) for other in similar}
    closest = min(differing, key=lambda other: (len(differing[other]), other != name, len(other)))
    return " ".join([closest, *differing[closest]])


def label(method: str) -> str:
    """The name of a method in figures and sentences: `CE PiCCE` for picce_ce, otherwise the method itself."""
    loss, _, more = method.partition(" ")
    if loss in KNOWN:
        formulation, base = KNOWN[loss]
        loss = f"{BASES[base]} {FORMULATIONS[formulation]}"
    return f"{ALONE.get(loss, loss)} {more}".strip()


def column(method: str) -> tuple[int, str]:
    """The place and heading of a method's columns: losses of several bases share those of their formulation."""
    loss, _, more = method.partition(" ")
    if loss in KNOWN:
        formulation, _ = KNOWN[loss]
        return list(FORMULATIONS).index(formulation), f"{FORMULATIONS[formulation]} {more}".strip()
    alone = list(ALONE).index(loss) if loss in ALONE else len(ALONE)
    return len(FORMULATIONS) + alone, label(method)


def in_rows(methods: list[str]) -> bool:
    """Whether these methods are too many for columns."""
    return len({column(method) for method in methods}) > MAX_COLUMNS


def base_order(base: str) -> tuple[int, str]:
    """The known bases first, then others by name, then losses without a base."""
    return (list(BASES).index(base) if base in BASES else len(BASES) + (not base)), base


def methods_of(frame: pd.DataFrame) -> list[str]:
    """The methods of a block's runs or cells, in the order of its table."""
    bases = dict(zip(frame["method"], frame["base"], strict=True))
    return sorted(bases, key=lambda method: (base_order(bases[method]), column(method)))


def baselines(runs: pd.DataFrame, chosen: str | None) -> dict[str, str]:
    """method -> the method it is compared with, for a block's runs.

    That is the chosen one, or by default the plain vanilla loss of the same base with the standard system, if it was run.
    """
    methods = methods_of(runs)
    if chosen:
        return {method: chosen for method in methods if method != chosen} if chosen in methods else {}
    vanilla = {base: base for base in BASES if base in methods}
    others = runs[~runs["base"].isin(["", *BASES]) & (runs["formulation"] == "vanilla") & (runs["system"] == "score")]
    vanilla |= {str(base): methods_of(group)[0] for base, group in others.groupby("base")}  # bases of a user's own
    base_of = dict(zip(runs["method"], runs["base"], strict=True))
    compared = {method: vanilla[base_of[method]] for method in methods if base_of[method] in vanilla}
    unpaired = {*vanilla.values(), *others["method"]}
    return {method: other for method, other in compared.items() if method not in unpaired}


def check_baseline(runs: pd.DataFrame, chosen: str | None) -> None:
    """UserError for a baseline that no run has."""
    if chosen and chosen not in set(runs["method"]):
        raise UserError(f"--baseline={chosen} is not among the methods of these runs: {', '.join(methods_of(runs))}.")
