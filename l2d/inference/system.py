"""A trained system from the folder of its run: what it believes about new inputs, and what it decides."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from l2d.config import check
from l2d.data.resident import ImageFeed
from l2d.data.unlabelled import Columns
from l2d.errors import UserError
from l2d.evaluation.again import refuse_other_sizes
from l2d.evaluation.kept import read_kept
from l2d.evaluation.outcome import believed
from l2d.evaluation.presence import Rota
from l2d.evaluation.rules import rule_needs
from l2d.inference.decide import Decider, Seen
from l2d.inference.inputs import Intake
from l2d.inference.restore import check_finished, give_weights, preprocessing_of, weights_of
from l2d.inference.table import Predictions
from l2d.place import Place, Ranks
from l2d.systems import Sizes, make_system
from l2d.tracking.trained import Run, find_run, setting_of
from l2d.training.loop import Predicted, forward


def load(run: str | os.PathLike[str], trust: bool = False, device: str = "cpu") -> "TrainedSystem":
    """The trained system of a finished run, from its folder, on a device (`cpu`, `cuda`, `cuda:1`, `auto`).

    Only tensors and plain values are read. Code that the folder names and that is not l2d's own is run only with `trust`.
    Returns a `TrainedSystem`; docs/use.md has an example.
    """
    found = find_run(os.fspath(run), trust)
    cfg = setting_of(found)
    cfg.trainer.compile = False  # compiling takes longer than the few inputs that are the usual case
    return TrainedSystem(found, cfg, Place.choose(device, cfg.trainer.precision, Ranks.alone()))


class TrainedSystem:
    """A trained system. Inputs are those of its run: paths of images, a folder, Pillow images, uint8 arrays [N, H, W, 3] or
    tensors [N, 3, H, W]; or floats [N, ...] of the shape in `preprocessing`, or a file of them."""

    def __init__(self, run: Run, cfg: DictConfig, place: Place):
        check_finished(run)
        path, weights = weights_of(run)
        self.run, self.cfg = run, cfg
        self.preprocessing = preprocessing_of(run, path, weights.facts)
        self.class_names: list[str] = weights.facts["class_names"]
        self.expert_names: list[str] = weights.facts["expert_names"]
        data, (num_classes, num_experts) = run.result["data"], (len(self.class_names), len(self.expert_names))
        self.sizes = Sizes.seeing(self.preprocessing, num_classes, num_experts, data["complete"], data["train"])
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers are left alone
            self.system = make_system(cfg, self.sizes)
        here = f"backbone={cfg.backbone.get('name')} with {num_classes} classes and {num_experts} experts"
        give_weights(self.system, weights, path, here)
        self.system.forget_training()
        self.system.requires_grad_(False).eval()
        self._move(place)

    def __repr__(self) -> str:
        names = f"{len(self.class_names)} classes, {len(self.expert_names)} experts"
        return f"TrainedSystem({self.run.folder}: {names}, {self.place.device})"

    @property
    def vouches_for(self) -> str:
        """Whose believed accuracy can be relied on: `all` experts, the `top` one alone, or `none`, whose order is all that counts."""
        return self.system.vouches_for

    def to(self, device: str) -> "TrainedSystem":
        """Move the system to a device, and return it."""
        self._move(Place.choose(device, self.cfg.trainer.precision, Ranks.alone()))
        return self

    def beliefs(self, inputs: Any, batch_size: int | None = None) -> Tensor:
        """[N, K+J] in float64: how probable each class is, then how likely each expert is right; NaN for an input that cannot be
        read."""
        parts = []
        for seen in self.see(inputs, batch_size):
            beliefs = torch.full((len(seen.ids), self.sizes.num_classes + self.sizes.num_experts), torch.nan).double()
            if seen.outputs is not None:
                beliefs[seen.read()] = believed(self.system, seen.outputs)
            parts.append(beliefs)
        return torch.cat(parts)

    def predict(
        self, inputs: Any, available: Any = None, costs: Any = None, batch_size: int | None = None
    ) -> Predictions:
        """What to do with every input, under the rule of the run: a table with the columns of `l2d.inference.COLUMNS`.

        available: names of the experts who can be asked, or booleans [N, J]; None: as in the run.
        costs: of asking, in units of a right answer: a number, a list [J] or a mapping by name; None: as in the run.
        """
        cfg, rota = self.cfg.copy(), None
        if costs is not None:
            OmegaConf.update(cfg, "experts.costs", self._costs(costs), force_add=True)
        if isinstance(available, np.ndarray | Tensor):
            rota, available = self._rota(available), []
        if available is not None:
            names = available if isinstance(available, str) else [str(name) for name in available]
            OmegaConf.update(cfg, "rule.available", None if rota else names, merge=False, force_add=True)
        check(cfg)
        return Predictions.joined(list(self.stream(inputs, self.decider(cfg, rota), batch_size)))

    def decider(self, cfg: DictConfig, rota: Rota | None = None) -> Decider:
        """What decides under the rule of a config, fitted on the held-out data that the run kept, where it is fitted."""
        needs = rule_needs(cfg)
        held_out = self.held_out() if needs.held_out or not needs.casewise else None
        if needs.held_out and held_out is None and self.run.result["data"].get("held_out"):
            raise UserError(
                f"rule={cfg.rule.get('name')} is fitted on held-out data, and {self.run.folder} kept no scores of them (record=scores)."
            )
        return Decider(cfg, self.system, (self.class_names, self.expert_names), held_out, rota)

    def held_out(self) -> Predicted | None:
        """What the system said about held-out data, if the run kept it."""
        kept = read_kept(self.run.folder, self.run.result.get("fingerprint")) or {}
        refuse_other_sizes(kept, self.system, self.sizes, self.run.folder / "result.json")
        return kept["held_out"].predicted if "held_out" in kept else None

    def stream(
        self,
        inputs: Any,
        decider: Decider,
        batch_size: int | None = None,
        on_batch: Callable[[int], None] = lambda count: None,
    ) -> Iterator[Predictions]:
        """What `predict` returns, a part at a time, so that any number of inputs can be streamed; `on_batch` is told how many
        inputs have been seen since the last call."""

        def counted() -> Iterator[Seen]:
            for seen in self.see(inputs, batch_size):
                on_batch(len(seen.ids))
                yield seen

        return decider.decided(counted())

    def see(self, inputs: Any, batch_size: int | None = None) -> Iterator[Seen]:
        """The outputs of the system for all inputs, a batch at a time; a GPU computes a batch while the last one is used."""
        size = self.cfg.trainer.batch_size if batch_size is None else batch_size
        rows = size if self.cfg.trainer.compile else 0
        before: Seen | None = None
        for ids, values, errors in self.intake.batches(inputs, size):
            outputs = forward(self.system, self.prepared(values), self.place, rows) if len(values) else None
            if before is not None:
                yield before._replace(outputs=None if before.outputs is None else before.outputs.cpu())
            before = Seen(ids, outputs, errors)
        if before is not None:
            yield before._replace(outputs=None if before.outputs is None else before.outputs.cpu())

    def _move(self, place: Place) -> None:
        self.place = place.take(self.system, self.cfg.trainer)
        dataset = self.cfg.dataset
        columns = Columns(self.preprocessing.columns, dataset.get("columns") or "x", dataset.get("ids") or "id")
        self.intake = Intake(self.preprocessing, columns, dataset.get("workers"), self.place)
        self.feed = None
        if len(self.preprocessing.shape) == 3:
            self.feed = ImageFeed(self.preprocessing, self.place, seed=0, train=False)
            if self.preprocessing.stored != "floats":
                self.feed.normalise_bytes()

    def prepared(self, values: Tensor) -> Tensor:
        """Inputs [b, ...] on the device, as the model sees them."""
        values = values.to(self.place.device, non_blocking=True)
        return values if self.feed is None else self.feed.prepare(values, epoch=0, step=0)

    def _costs(self, costs: Any) -> float | list[float]:
        if isinstance(costs, Mapping):
            unknown = [name for name in costs if name not in self.expert_names]
            if unknown:
                raise UserError(f"costs name {unknown[0]}, and the experts are {', '.join(self.expert_names)}.")
            return [float(costs.get(name, 0)) for name in self.expert_names]
        if isinstance(costs, Sequence | np.ndarray | Tensor):
            return [float(cost) for cost in costs]
        return float(costs)

    def _rota(self, available: np.ndarray | Tensor) -> Rota:
        there = torch.as_tensor(available).cpu()
        if there.dim() != 2 or there.shape[1] != len(self.expert_names) or not ((there == 0) | (there == 1)).all():
            raise UserError(
                f"available is {list(there.shape)}; give names of experts, or true and false [N, {len(self.expert_names)}]."
            )
        return Rota("available", there.bool())
