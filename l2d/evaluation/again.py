"""A finished run evaluated once more, from the outcome that it kept: no backbone, no inputs."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from l2d.errors import UserError
from l2d.evaluation.evaluator import Evaluated, Known, evaluate
from l2d.evaluation.kept import Kept, read_kept
from l2d.systems import Sizes, System, make_system, read_weights
from l2d.systems.weights import NAME
from l2d.task import load_task


def evaluate_kept(cfg: DictConfig, folder: Path, result: dict[str, Any]) -> Evaluated | None:
    """Everything that a run reports, under the rule and evaluation of `cfg`; None where the run kept no scores.

    `result` is its result.json. Where the truth is known it is computed again, from data that follow from their settings.
    """
    kept = read_kept(folder, result.get("fingerprint")) if result.get("status") == "finished" else None
    if kept is None or any(result.get(name) is None for name in ("data", "class_names", "experts")):
        return None
    sizes = Sizes(len(result["class_names"]), len(result["experts"]), (), result["data"]["complete"])
    system = make_system(cfg, sizes, with_backbone=False)
    if system.state_dict():  # a loss with parameters of its own
        system.load_state_dict(read_weights(folder / NAME).tensors, strict=False)
    refuse_other_sizes(kept, system, sizes, folder / "result.json")
    truth = load_task(cfg).truth if result["data"]["truth"] else None
    experts = [expert["name"] for expert in result["experts"]]
    known = Known(result["class_names"], experts, kept["test"].ids, truth)
    return evaluate(cfg, system, {name: split.predicted for name, split in kept.items()}, known)


def refuse_other_sizes(kept: dict[str, Kept], system: System, sizes: Sizes, path: Path) -> None:
    """The classes and experts that a result.json names must be those of the scores: columns would be mistaken."""
    for split in kept.values():
        predicted = split.predicted
        try:
            columns = system.beliefs(predicted.outputs[:1]).shape[1]
        except RuntimeError:  # fewer outputs than the system needs
            columns = None
        if columns != sizes.num_classes + sizes.num_experts or predicted.answers.shape[1] != sizes.num_experts:
            raise UserError(
                f"{path} names {sizes.num_classes} class_names and {sizes.num_experts} experts, and the kept scores have others; "
                "restore it."
            )
