"""The rule of a config, with what it is offered: costs, who is there, held-out cases. Refusals come before the training."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from l2d.config import bind, build, plain
from l2d.decisions import Cases, Decision, Deployment, Needs
from l2d.errors import UserError, notify
from l2d.evaluation.outcome import Outcome
from l2d.evaluation.presence import present
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


def rule_of(cfg: DictConfig, held_out: Outcome | None) -> Callable[[Cases], Decision]:
    """`rule`, as a function of cases that say who is available; those to fit on are the same in every call."""
    fitted_on = None if held_out is None else held_out.cases()
    if fitted_on is not None:
        there = present(cfg, fitted_on.deployment.expert_names, len(fitted_on.answers), ids=None, table=False)
        fitted_on = replace(fitted_on, available=fitted_on.available & there)

    def decided(cases: Cases) -> Decision:
        offered = replace(cases, held_out=fitted_on).offers()
        decision: Decision = build(cfg, "rule", Decision, **{**offered, "held_out": held_out})
        return decision

    return decided


def rule_needs(cfg: DictConfig) -> Needs:
    """What the rule says that it needs; a rule of one's own that says nothing needs nothing. A loss matrix needs the errors of
    every expert."""
    function, _ = bind(cfg, "rule", dict.fromkeys(RULE_OFFERS))
    wanted: Needs = getattr(function, "needs", Needs("none", False))
    return wanted if cfg.rule.get("loss_matrix") is None else wanted._replace(vouches_for="all", held_out=True)


def check_rule(cfg: DictConfig, system: System, deployment: Deployment, held_out: bool) -> None:
    """Refuse a rule or costs that this system cannot serve."""
    wanted = rule_needs(cfg)
    rule = f"rule={cfg.rule.get('name')}" + (" with rule.loss_matrix" if deployment.loss_matrix is not None else "")
    if wanted.held_out and not held_out:
        raise UserError(f"{rule} is fitted on held-out data, and held_out=0; train with held_out=0.2.")
    vouches, costs = (
        system.vouches_for,
        deployment.costs,
    )  # a rule on `classes` alone does not compare costs with beliefs
    if vouches not in ENOUGH[wanted.vouches_for]:
        raise UserError(
            f"{rule} needs estimates of {_whose(wanted.vouches_for)}, which {method_of(cfg)} does not give; {_what_would(cfg)}"
        )
    if costs is not None and costs.any() and wanted.vouches_for != "classes":
        unequal = bool((costs != costs[0]).any())
        if vouches not in ENOUGH["all" if unequal else "top"]:
            raise UserError(
                f"experts.costs={plain(cfg.experts.costs)} need estimates of {_whose('all' if unequal else 'top')}, which {method_of(cfg)} "
                f"does not give; {_what_would(cfg)}"
            )
    if wanted.check:
        wanted.check(deployment, plain(cfg.rule))


def notify_of_guesses(cfg: DictConfig, system: System) -> None:
    """Experts may be absent under any method, and not every method knows about those who are left."""
    absent = [key for key in ("available", "absence") if cfg.rule.get(key) is not None]
    if absent and system.vouches_for != "all" and rule_needs(cfg).vouches_for != "classes":
        notify(
            f"rule.{absent[0]}={plain(cfg.rule[absent[0]])}: {method_of(cfg)} gives no estimates of every expert's accuracy, so who is "
            f"asked in the place of an absent one is a guess; {_what_would(cfg)}"
        )


def _what_would(cfg: DictConfig) -> str:
    """What gives estimates of every expert: these losses do with every system that uses a loss."""
    return "choose loss=ova or balanced_ova." if uses_a_loss(cfg) else "choose system=compare_confidence."


def method_of(cfg: DictConfig) -> str:
    """The loss and the system, for a sentence."""
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
