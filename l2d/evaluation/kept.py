"""The kept outcome: outcome.safetensors holds what a later evaluation needs, so that no model and no input is read again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from l2d.atomic import atomic_write
from l2d.errors import UserError, notify
from l2d.evaluation.evaluator import Known, decided
from l2d.evaluation.outcome import Outcome
from l2d.systems import System
from l2d.tensors import pack, unpack
from l2d.training.loop import Predicted

NAME = "outcome.safetensors"
FORMAT = "l2d outcome 1"


class Kept(NamedTuple):
    """What was kept of one split."""

    predicted: Predicted
    ids: list[str] | None  # of the samples; None: they have none but their number


def keep(
    folder: Path,
    fingerprint: str,
    system: System,
    splits: dict[str, Outcome],
    ids: dict[str, Sequence[str] | None],
    cfg: DictConfig,
) -> str:
    """Write the outcomes of these splits as `record` says (scores, decisions or none), and return what was kept. The file names the
    `fingerprint` of the run.

    Scores are float32; above `record_mb` float16, if every decision stays the same; else the decisions alone.
    """
    path = folder / NAME
    path.unlink(missing_ok=True)
    kind = str(cfg.record)
    if kind == "scores":
        needed = sum(outcome.outputs.numel() * 4 for outcome in splits.values()) / 1e6
        if needed > cfg.record_mb:
            fits = needed / 2 <= cfg.record_mb and _same_in_half(cfg, system, splits, ids.get("test"))
            kind = "half" if fits else "decisions"
        if kind == "decisions":
            notify(
                f"The scores of this run take {needed:.3g} MB and record_mb={cfg.record_mb:g}: its decisions alone are kept, "
                "so a later evaluation=full reads the model and the data again (or raise record_mb)."
            )
    if kind == "none":
        return kind
    tensors: dict[str, Tensor] = {}
    for split, outcome in splits.items():
        parts: dict[str, Tensor] = {"labels": outcome.labels, "answers": outcome.answers}
        if kind == "decisions":
            decision = outcome.decision
            parts |= {"predicted": decision.predicted, "expert": decision.expert, "asked": decision.asked}
            parts |= {"margin": decision.margin.float()}
            parts |= {"answer": decision.answer} if decision.answer is not None else {}
        else:
            parts["outputs"] = outcome.outputs.half() if kind == "half" else outcome.outputs
        if outcome.samples is not None:
            parts["samples"] = outcome.samples
        names = ids.get(split)
        if names is not None:
            chosen = names if outcome.samples is None else [names[i] for i in outcome.samples.tolist()]
            parts["ids"] = torch.frombuffer(bytearray(json.dumps(chosen).encode()), dtype=torch.uint8)
        tensors |= {f"{split}.{name}": part for name, part in parts.items()}
    content = pack(tensors, {"format": FORMAT, "kept": kind, "fingerprint": fingerprint})
    atomic_write(path, lambda file: file.write(content))
    return kind


def read_kept(folder: Path, run: str | None) -> dict[str, Kept] | None:
    """The scores kept of every split; None where a run kept none. Nothing in the file is run. `run` is its fingerprint."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        tensors, metadata = unpack(path)
    except UserError as error:
        raise UserError(f"{error} Remove it to evaluate with the model.") from error
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path} is not an outcome that this version reads; remove it to evaluate with the model.")
    if metadata.get("fingerprint") != run:
        raise UserError(
            f"{path} is the outcome of another run than the result.json beside it; remove it, or restore it."
        )
    if metadata.get("kept") == "decisions":
        return None
    splits: dict[str, Kept] = {}
    for split in sorted({name.partition(".")[0] for name in tensors}):
        part = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{split}.")}
        samples = part.get("samples", torch.arange(len(part["labels"])))
        ids = json.loads(part["ids"].numpy().tobytes()) if "ids" in part else None
        splits[split] = Kept(Predicted(part["outputs"].float(), part["labels"], part["answers"], samples), ids)
    return splits


def _same_in_half(cfg: DictConfig, system: System, splits: dict[str, Outcome], ids: Sequence[str] | None) -> bool:
    """Whether the outputs decide the same in float16, under the rule of the config."""
    rounded = {
        name: Predicted(outcome.outputs.half().float(), outcome.labels, outcome.answers, outcome.labels)
        for name, outcome in splits.items()
    }
    test = splits["test"]
    known = Known([""] * test.num_classes, test.cases().deployment.expert_names, ids)
    again = decided(cfg, system, rounded, known)
    return all(
        torch.equal(outcome.answer, again[name].answer)
        and torch.equal(outcome.decision.asked, again[name].decision.asked)
        and torch.equal(outcome.decision.predicted, again[name].decision.predicted)
        for name, outcome in splits.items()
    )
