"""The part of result.json that is known before the training: choices, data, device and versions."""

from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig

from l2d.data.load import data_digest
from l2d.identity import choices, settings
from l2d.place import Place
from l2d.source import code_digests
from l2d.systems import System
from l2d.task import Task
from l2d.tracking.run_folder import environment


def run_facts(cfg: DictConfig, task: Task, system: System, place: Place) -> dict[str, Any]:
    """Choices, names of classes and experts, preprocessing, data, device, versions: ready for JSON."""
    sizes = {name: len(split) for name, split in task.splits().items()}
    return {
        "choices": {**choices(cfg), "num_experts": task.num_experts},
        "seed": cfg.seed,
        "device": str(place.device),
        "precision": place.precision,
        "parameters": sum(p.numel() for p in system.parameters()),
        "class_names": task.class_names,
        "experts": task.experts(),
        **({"population": task.experts(task.population)} if task.population else {}),
        "preprocessing": asdict(task.preprocessing),
        "data": {"digest": data_digest(cfg), **sizes, "complete": task.complete, "truth": task.truth is not None},
        "code": code_digests(settings(cfg)),
        "vouches_for": system.vouches_for,
        "ranks": place.ranks.count,
        **environment(),
    }
