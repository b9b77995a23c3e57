"""From a config to a system."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from torch import nn

from l2d.config import bind, build
from l2d.data import Preprocessing
from l2d.errors import UserError
from l2d.models.standardise import Standardise
from l2d.systems.system import System
from l2d.systems.weights import refuse_seen_held_out, start_from
from l2d.task import Task

# What the target of `system` may ask for by name.
OFFERS = ("num_classes", "num_experts", "backbone", "loss", "num_train", "seed")


class Sizes(NamedTuple):
    """What a system has to know about a task to be built."""

    num_classes: int
    num_experts: int
    input_shape: tuple[int, ...]  # of one input
    complete: bool  # no answer is missing
    statistics: tuple[Sequence[float], Sequence[float]] | None = None  # mean and deviation of inputs that are vectors
    num_train: int = 0  # training samples

    @classmethod
    def seeing(
        cls, given: Preprocessing, num_classes: int, num_experts: int, complete: bool, num_train: int
    ) -> "Sizes":
        """The sizes of a system that sees inputs with this preprocessing."""
        statistics = (given.mean, given.std) if given.mean and len(given.shape) == 1 else None
        return cls(num_classes, num_experts, given.shape, complete, statistics, num_train)


def load_system(cfg: DictConfig, task: Task) -> System:
    """The system of a config for a task: new, or started from the run that `init` names; `freeze` keeps parts fixed."""
    sizes = Sizes.seeing(task.preprocessing, task.num_classes, task.num_experts, task.complete, len(task.train))
    system = make_system(cfg, sizes)
    if task.population and not system.about_panel:
        raise UserError(
            f"experts.population={task.population.num}: system={cfg.system.get('name')} can only ask the experts it is trained "
            "with; choose system=population, or experts.population=null."
        )
    if system.about_panel:
        task.context(system.context, cfg.seed)  # refuses experts about whom nothing is known
        system.train_with(task.train.labels, task.train.answers)
    if cfg.init:
        refuse_seen_held_out(cfg, Path(cfg.init))
        system.started_from(start_from(system, Path(cfg.init), task.class_names))
    freeze(system, list(cfg.freeze))
    return system


def make_system(cfg: DictConfig, sizes: Sizes, with_backbone: bool = True) -> System:
    """The system of a config. Without its backbone it cannot see inputs, but still knows what its outputs mean."""

    def backbone(num_outputs: int) -> nn.Module:
        if not with_backbone:
            return nn.Identity()
        body: nn.Module = build(cfg, "backbone", nn.Module, num_outputs=num_outputs, image_shape=sizes.input_shape)
        if sizes.statistics is None:
            return body
        return nn.Sequential(OrderedDict(standardise=Standardise(*sizes.statistics), body=body))

    offered = {"num_classes": sizes.num_classes, "num_experts": sizes.num_experts}
    uses_loss = uses_a_loss(cfg)
    if uses_loss and cfg.loss.get("name") == "none":
        raise UserError(f"loss=none: system={cfg.system.get('name')} needs a loss; choose one, such as loss=picce_ce.")
    loss = build(cfg, "loss", **offered, complete=sizes.complete) if uses_loss else None
    if uses_loss and not callable(loss):
        raise UserError(
            f"loss._target_={cfg.loss._target_} makes an object of type {type(loss).__name__}; name what makes a function."
        )
    more = {"backbone": backbone, "loss": loss, "num_train": sizes.num_train, "seed": cfg.seed}
    system: System = build(cfg, "system", System, **offered, **more)
    return system


def uses_a_loss(cfg: DictConfig) -> bool:
    """Whether the system of a config asks for the loss of `loss`."""
    return "loss" in bind(cfg, "system", dict.fromkeys(OFFERS))[1]


def check_loss(cfg: DictConfig) -> None:
    """Refuse a loss that the system does not use: the run would be named by it, and its settings would change nothing."""
    if cfg.loss.get("name") != "none" and not uses_a_loss(cfg):
        raise UserError(
            f"loss={cfg.loss.get('name')}: system={cfg.system.get('name')} does not use it; leave it out, or set loss=none."
        )


def freeze(system: nn.Module, names: list[str]) -> None:
    """Keep the parameters below these names (`backbone.blocks.0`) as they are; a name that fits nothing is refused."""
    for name in names:
        found = [p for own, p in system.named_parameters() if own == name or own.startswith(f"{name}.")]
        if not found:
            known = ", ".join(dict.fromkeys(".".join(own.split(".")[:2]) for own, _ in system.named_parameters()))
            raise UserError(f"freeze={name} is the name of no parameter; those of this system begin with {known}.")
        for parameter in found:
            parameter.requires_grad_(False)
