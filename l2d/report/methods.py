"""How the report names, orders and compares the losses of runs. A method is a loss, by its name, and how it was trained."""

from typing import Any

import pandas as pd

from l2d.errors import UserError
from l2d.identity import method_parts

BASES = {"ce": "CE", "ova": "OvA"}
FORMULATIONS = {"vanilla": "Vanilla", "picce": "PiCCE", "pice": "PiCE"}


def loss_name(formulation: str, base: str) -> str:
    """The `name` in conf/loss of a formulation with a base.

    >>> loss_name("vanilla", "ce"), loss_name("picce", "ova")
    ('ce', 'picce_ova')
    """
    return base if formulation == "vanilla" else f"{formulation}_{base}"


KNOWN = {loss_name(formulation, base): (formulation, base) for base in BASES for formulation in FORMULATIONS}


def method_name(chosen: dict[str, Any]) -> str:
    """The loss's name where one is chosen, and the system's where it is not the usual one.

    A known loss whose parts were overridden (loss=ce loss.base=ova) is named by its parts.
    """
    loss, formulation, base = (str(chosen.get(key) or "") for key in ("loss", "formulation", "base"))
    if loss in KNOWN and KNOWN[loss] != (formulation, base):
        loss = loss_name(formulation, base)
    return " ".join(method_parts({**chosen, "loss": loss}))


def label(method: str) -> str:
    """The name of a method in figures and sentences: `CE PiCCE` for picce_ce, otherwise the method itself."""
    loss, _, more = method.partition(" ")
    if loss not in KNOWN:
        return method
    formulation, base = KNOWN[loss]
    return f"{BASES[base]} {FORMULATIONS[formulation]} {more}".strip()


def column(method: str) -> tuple[int, str]:
    """The place and heading of a method's columns: the known losses share those of their formulation."""
    loss, _, more = method.partition(" ")
    if loss not in KNOWN:
        return len(FORMULATIONS), method
    formulation, _ = KNOWN[loss]
    return list(FORMULATIONS).index(formulation), f"{FORMULATIONS[formulation]} {more}".strip()


def base_order(base: str) -> tuple[int, str]:
    """The known bases first, then others by name, then losses without a base."""
    return (list(BASES).index(base) if base in BASES else len(BASES) + (not base)), base


def methods_of(frame: pd.DataFrame) -> list[str]:
    """The methods of a block's runs or cells, in the order of its table."""
    bases = dict(zip(frame["method"], frame["base"], strict=True))
    return sorted(bases, key=lambda method: (base_order(bases[method]), column(method)))


def baselines(runs: pd.DataFrame, chosen: str | None) -> dict[str, str]:
    """method -> the method it is compared with, for a block's runs.

    That is the chosen one, or by default the vanilla loss of the same base with the standard system, if it was run.
    """
    methods = methods_of(runs)
    if chosen:
        return {method: chosen for method in methods if method != chosen} if chosen in methods else {}
    standard = runs[(runs["formulation"] == "vanilla") & (runs["system"] == "score")]
    vanilla = {base: methods_of(group)[0] for base, group in standard.groupby("base")}
    base_of = dict(zip(runs["method"], runs["base"], strict=True))
    compared = {method: vanilla[base_of[method]] for method in methods if base_of[method] in vanilla}
    return {method: other for method, other in compared.items() if method not in set(standard["method"])}


def check_baseline(runs: pd.DataFrame, chosen: str | None) -> None:
    """UserError for a baseline that no run has."""
    if chosen and chosen not in set(runs["method"]):
        raise UserError(f"--baseline={chosen} is not among the losses of these runs: {', '.join(methods_of(runs))}.")
