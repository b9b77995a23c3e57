"""Weights of a finished run: written with the names they mean, read without running anything."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn
from yaml import YAMLError

from l2d.atomic import read_bytes
from l2d.data.load import data_digest
from l2d.errors import UserError, notify
from l2d.tensors import unpack

NAME = "model.safetensors"
FORMAT = "l2d system 1"


class Weights(NamedTuple):
    """Tensors by name, and what is known about them."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # class_names, expert_names, preprocessing, data, fingerprint; empty for files of version 0.1


def weight_facts(facts: dict[str, Any]) -> dict[str, str]:
    """What the weights mean, from the facts of their run, as the metadata of a safetensors file."""
    meaning = {
        "class_names": facts["class_names"],
        "expert_names": [expert["name"] for expert in facts["experts"]],
        "preprocessing": facts["preprocessing"],
        "data": facts["data"]["digest"],
    }
    return {"format": FORMAT, **{name: json.dumps(value) for name, value in meaning.items()}}


def read_weights(path: Path) -> Weights:
    """The weights in model.safetensors, or in the model.pt of version 0.1. Nothing in the file is run."""
    if path.suffix == ".pt":
        return Weights({f"backbone.{name}": tensor for name, tensor in _read_pickled(path).items()}, {})
    tensors, metadata = unpack(path)
    if metadata.pop("format", None) != FORMAT:
        raise UserError(f"{path} does not hold the weights of a system; give the model.safetensors of a run.")
    return Weights(tensors, {name: json.loads(value) for name, value in metadata.items()})


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        content = io.BytesIO(read_bytes(path))
        with zipfile.ZipFile(content) as archive:  # torch.load does not look at its checksums
            if archive.testzip():
                raise zipfile.BadZipFile
        content.seek(0)
        tensors = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} is damaged, or holds more than tensors and is refused (nothing in it was run)."
        ) from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise UserError(f"{path} is no model.pt: it must hold the tensors of a model by name.")
    return tensors


def start_from(system: nn.Module, run: Path, class_names: list[str]) -> set[str]:
    """Give a new system the weights of a finished run where names and shapes fit, and return these names. Of the last layer
    the columns of the classes are taken, if they are the same classes; the columns of experts stay new."""
    path = run / NAME
    if not path.exists():
        raise UserError(f"init={run} has no {NAME}; give the folder of a finished run.")
    weights = read_weights(path)
    own = system.state_dict()
    head = _last_layer(own)
    same_classes = weights.facts.get("class_names") == class_names
    taken: set[str] = set()
    for name, tensor in own.items():
        theirs = weights.tensors.get(name) if name.startswith(getattr(system, "taken_over", "")) else None
        if theirs is None or theirs.shape[1:] != tensor.shape[1:] or theirs.dim() != tensor.dim():
            continue
        if name in head:
            if same_classes:
                tensor[: len(class_names)] = theirs[: len(class_names)].to(tensor)
                taken.add(name)
        elif theirs.shape == tensor.shape:
            tensor.copy_(theirs)
            taken.add(name)
    if not taken:
        raise UserError(
            f"init={run}: no weight of that run has a name and shape of this system; choose the same backbone."
        )
    kept = "its class columns too" if same_classes else "not its last layer, whose classes are others"
    notify(f"Started from {run}: {len(taken)} of {len(own)} tensors, {kept}.")
    return taken


def refuse_seen_held_out(cfg: DictConfig, start: Path) -> None:
    """What a run holds out must not have been trained on by the run that it starts from, nor by the one before that."""
    if not cfg.held_out:
        return
    try:
        theirs = OmegaConf.load(start / "config.yaml")
        assert isinstance(theirs, DictConfig)
        before = (theirs.held_out, theirs.seed, theirs.dataset.get("num_train"))
        same_dataset = theirs.dataset.name == cfg.dataset.name
    except (OSError, YAMLError, OmegaConfBaseException, AssertionError) as error:
        raise UserError(
            f"init={start}: its config.yaml does not say what that run held out, so held_out={cfg.held_out:g} may have been trained on; "
            "restore it, or leave held_out=0."
        ) from error
    known = read_weights(start / NAME).facts.get("data") if (start / NAME).exists() else None
    if (
        same_dataset
        and known in (None, data_digest(cfg))
        and before != (cfg.held_out, cfg.seed, cfg.dataset.get("num_train"))
    ):
        raise UserError(
            f"init={start} was trained with held_out={before[0]:g} and seed={before[1]}, so it has seen what held_out={cfg.held_out:g} "
            f"with seed={cfg.seed} holds out; start from a run with the same of both, or leave held_out=0."
        )
    if theirs.get("init"):
        refuse_seen_held_out(cfg, Path(theirs.init))


def _last_layer(tensors: dict[str, Tensor]) -> set[str]:
    """The names of the tensors of the backbone's last layer, which has one row per output."""
    names = [name for name in tensors if name.startswith("backbone.")]
    layer = names[-1].rpartition(".")[0] if names else ""
    return {name for name in names if name.rpartition(".")[0] == layer}
