"""The rule of a config, with what it is offered: costs, who is there, held-out cases. Refusals come before the training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from l2d.config import bind, build, plain
from l2d.data.manifest import cell_text
from l2d.data.seeds import mix
from l2d.data.tables import read_rows
from l2d.decisions import Cases, Decision, Deployment, Needs
from l2d.errors import UserError, notify
from l2d.evaluation.outcome import Outcome
from l2d.settings import NonNegative, validate
from l2d.systems import System
from l2d.systems.build import uses_a_loss

# What a target of `rule` may ask for by name.
RULE_OFFERS = ("cases", "beliefs", "num_classes", "available", "order", "costs", "expert_names", "held_out")
ENOUGH = {"all": ("all",), "top": ("all", "top"), "classes": ("all", "top"), "none": ("all", "top", "none")}


def deployment_of(cfg: DictConfig, expert_names: list[str], class_names: list[str]) -> Deployment:
    """The experts of a run, what asking them costs (`experts.costs`), and what errors cost (`rule.loss_matrix`)."""
    costs, matrix = expert_costs(cfg, len(expert_names)), loss_matrix(cfg, len(class_names))
    return Deployment(expert_names, costs, class_names, matrix)


def expert_costs(cfg: DictConfig, num_experts: int) -> Tensor | None:
    """[J] what asking each expert costs, in units of a right answer; None where it costs nothing."""
    costs = plain(cfg.experts.get("costs"))
    if costs is None:
        return None
    if isinstance(costs, list) and len(costs) != num_experts:
        raise UserError(
            f"experts.costs={costs} has {len(costs)} entries for {num_experts} experts; give one each, or one for all."
        )
    return torch.tensor(costs, dtype=torch.float64).expand(num_experts)


def loss_matrix(cfg: DictConfig, num_classes: int) -> Tensor | None:
    """[K, K] what answering column k costs where row y is true; None: 1 for every error."""
    given = plain(cfg.rule.get("loss_matrix"))
    if given is None:
        return None
    validate(list[list[NonNegative]], given, "rule.loss_matrix")
    square = [len(row) for row in given] == [num_classes] * num_classes
    matrix = torch.tensor(given if square else [], dtype=torch.float64)
    if not square or matrix.diagonal().any():
        raise UserError(
            f"rule.loss_matrix={given} must be {num_classes} lists of {num_classes} numbers, with 0 for the right answers."
        )
    return matrix


def rule_of(cfg: DictConfig, held_out: Outcome | None, ids: Sequence[str] | None) -> Callable[[Cases], Decision]:
    """`rule`, as a function of cases; `ids` are the names of the samples it will decide about."""

    def decided(cases: Cases) -> Decision:
        names = cases.deployment.expert_names
        cases = replace(cases, available=cases.available & present(cfg, names, len(cases.answers), ids))
        if held_out is not None:
            fitted_on = held_out.cases()
            there = present(cfg, names, len(fitted_on.answers), ids=None, table=False)
            cases = replace(cases, held_out=replace(fitted_on, available=fitted_on.available & there))
        return build(cfg, "rule", Decision, **{**cases.offers(), "held_out": held_out})

    return decided


def present(cfg: DictConfig, names: list[str], count: int, ids: Sequence[str] | None, table: bool = True) -> Tensor:
    """[N, J] who is there: all but those whom `rule.available` leaves out (names, or a file with a column per expert), and but
    a share `rule.absence` of all (case, expert) at random. Held-out cases stand in no table."""
    available, absence = plain(cfg.rule.get("available")), plain(cfg.rule.get("absence"))
    there = torch.ones(count, len(names), dtype=torch.bool)
    if isinstance(available, list):
        unknown = [name for name in available if name not in names]
        if unknown or not available:
            raise UserError(f"rule.available={available}: the experts are {', '.join(names)}.")
        there &= torch.tensor([name in available for name in names])
    elif isinstance(available, str) and table:
        there &= _listed(available, names, ids, count)
    elif available is not None and not isinstance(available, str):
        raise UserError(f"rule.available={available} must be a list of experts, or the path of a table.")
    if absence is not None:
        if isinstance(absence, bool) or not isinstance(absence, int | float) or not 0 <= absence <= 1:
            raise UserError(f"rule.absence={absence} must be a share between 0 and 1.")
        generator = torch.Generator().manual_seed(mix(cfg.seed, 7, count))
        there &= torch.rand(count, len(names), generator=generator) >= absence
    return there


def _listed(path: str, names: list[str], ids: Sequence[str] | None, count: int) -> Tensor:
    """[N, J] from a table: a row per case, by its `id` or in the order of the test set, and a column per expert (1 or 0)."""
    if not Path(path).is_file():
        raise UserError(
            f"rule.available={path} is no file; give a table with a column per expert, or a list of their names."
        )
    rows = read_rows(Path(path), names)
    if rows and "id" in rows[0]:
        by_id = {str(row.get("id")): row for row in rows}
        absent = [name for name in ids or () if name not in by_id]
        if ids is None or absent:
            which = f"{absent[0]} is not in it" if absent else "the samples of this dataset have no ids"
            raise UserError(f"rule.available={path} has a column id, and {which}; give a row for each test sample.")
        rows = [by_id[name] for name in ids]
    if len(rows) != count:
        raise UserError(
            f"rule.available={path} has {len(rows)} rows for {count} test samples; give one each, or a column id."
        )
    for number, row in enumerate(rows, start=1):
        for name in names:
            if cell_text(row[name]) not in ("0", "1"):
                raise UserError(f"rule.available={path}, row {number}, {name}={row[name]} must be 1 (is there) or 0.")
    return torch.tensor([[cell_text(row[name]) == "1" for name in names] for row in rows])


def rule_needs(cfg: DictConfig) -> Needs:
    """What the rule says that it needs; a rule of one's own that says nothing needs nothing. A loss matrix needs the errors of
    every expert."""
    function, _ = bind(cfg, "rule", dict.fromkeys(RULE_OFFERS))
    wanted: Needs = getattr(function, "needs", Needs("none", False))
    return wanted if cfg.rule.get("loss_matrix") is None else wanted._replace(vouches_for="all", held_out=True)


def check_rule(cfg: DictConfig, system: System, deployment: Deployment, held_out: bool) -> None:
    """Refuse a rule or costs that this system cannot serve."""
    wanted = rule_needs(cfg)
    method = _method(cfg)
    rule = f"rule={cfg.rule.get('name')}" + (" with rule.loss_matrix" if deployment.loss_matrix is not None else "")
    if wanted.held_out and not held_out:
        raise UserError(f"{rule} is fitted on held-out data, and held_out=0; train with held_out=0.2.")
    vouches, costs = (
        system.vouches_for,
        deployment.costs,
    )  # a rule on `classes` alone does not compare costs with beliefs
    if vouches not in ENOUGH[wanted.vouches_for]:
        raise UserError(
            f"{rule} needs estimates of {_whose(wanted.vouches_for)}, which {method} does not give; {_what_would(cfg)}"
        )
    if costs is not None and costs.any() and wanted.vouches_for != "classes":
        unequal = bool((costs != costs[0]).any())
        if vouches not in ENOUGH["all" if unequal else "top"]:
            raise UserError(
                f"experts.costs={plain(cfg.experts.costs)} need estimates of {_whose('all' if unequal else 'top')}, which {method} "
                f"does not give; {_what_would(cfg)}"
            )
    if wanted.check:
        wanted.check(deployment, plain(cfg.rule))


def notify_of_guesses(cfg: DictConfig, system: System) -> None:
    """Experts may be absent under any method, and not every method knows about those who are left."""
    absent = [key for key in ("available", "absence") if cfg.rule.get(key) is not None]
    if absent and system.vouches_for != "all" and rule_needs(cfg).vouches_for != "classes":
        notify(
            f"rule.{absent[0]}={plain(cfg.rule[absent[0]])}: {_method(cfg)} gives no estimates of every expert's accuracy, so who is "
            f"asked in the place of an absent one is a guess; {_what_would(cfg)}"
        )


def _what_would(cfg: DictConfig) -> str:
    """What gives estimates of every expert: these losses do with every system that uses a loss."""
    return "choose loss=ova or balanced_ova." if uses_a_loss(cfg) else "choose system=compare_confidence."


def _method(cfg: DictConfig) -> str:
    system = f"system={cfg.system.get('name')}"
    return f"loss={cfg.loss.get('name')} with {system}" if uses_a_loss(cfg) else system


def _whose(vouches_for: str) -> str:
    whose = {"all": "every expert's accuracy", "top": "the best expert's accuracy", "classes": "class probabilities"}
    return whose[vouches_for]


def check_callable(cfg: DictConfig) -> None:
    """Refuse a rule that cannot be called, before the training instead of after it."""
    arguments: dict[str, Any] = bind(cfg, "rule", dict.fromkeys(RULE_OFFERS))[1]
    if not {"beliefs", "cases"} & set(arguments):
        raise UserError(
            f"rule._target_={cfg.rule._target_} has no parameter `beliefs` or `cases`, by which a rule decides."
        )
    if cfg.experts.get("costs") is not None and not {"costs", "cases"} & set(arguments):
        raise UserError(
            f"experts.costs={plain(cfg.experts.costs)}: rule={cfg.rule.get('name')} does not weigh costs; choose rule=best."
        )
