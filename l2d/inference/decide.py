"""From what a system says about inputs to what is done with each: the rule of a run, on one part of the inputs after the other."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from l2d.config import plain
from l2d.decisions import Cases, Decision
from l2d.errors import UserError
from l2d.evaluation.evaluator import observe_held_out
from l2d.evaluation.outcome import believed
from l2d.evaluation.presence import Rota, chosen, read_rota
from l2d.evaluation.rules import check_callable, check_rule, deployment_of, notify_of_guesses, rule_needs, rule_of
from l2d.inference.samples import decided_columns
from l2d.inference.table import COLUMNS, Predictions
from l2d.systems import System
from l2d.training.loop import Predicted

AT_ONCE = 512  # cases that are decided together under a rule that decides about each alone


class Seen(NamedTuple):
    """Inputs, and the system's outputs for those that could be read."""

    ids: list[str]
    outputs: Tensor | None  # [m, *] on the CPU; None: no input could be read
    errors: dict[int, str]  # position among the ids -> why the input could not be read

    def read(self) -> Tensor:
        """[m] the positions of those that could be read."""
        return torch.tensor([i for i in range(len(self.ids)) if i not in self.errors], dtype=torch.int64)


class Decider:
    """Decides under the rule of a config. `rota` says who is there, instead of the table that `rule.available` names."""

    def __init__(
        self,
        cfg: DictConfig,
        system: System,
        names: tuple[list[str], list[str]],
        held_out: Predicted | None,
        rota: Rota | None,
    ):
        self.system, (self.class_names, self.expert_names) = system, names
        check_callable(cfg)
        if cfg.rule.get("absence") is not None:
            raise UserError(
                f"rule.absence={plain(cfg.rule.absence)} draws at random who is absent, for an evaluation; set rule.absence=null, and "
                "say who is there with rule.available."
            )
        self.deployment = deployment_of(cfg, self.expert_names, self.class_names)
        check_rule(cfg, system, self.deployment, held_out is not None)
        notify_of_guesses(cfg, system)
        self.casewise = rule_needs(cfg).casewise
        self.chosen = chosen(cfg, self.expert_names)  # [J]
        self.rota = rota or read_rota(cfg, self.expert_names)
        fitted_on = None if held_out is None else observe_held_out(system, held_out, self.deployment)
        self.rule = rule_of(cfg, fitted_on)
        self.count = 0  # inputs so far

    def decided(self, parts: Iterable[Seen]) -> Iterator[Predictions]:
        """What is done with every input. Under a rule that looks at cases together all of them are one part."""
        for part in merged(parts, AT_ONCE if self.casewise else None):
            yield self.table(part)
        if self.rota and self.rota.row_of is None and self.count != len(self.rota.there):
            raise UserError(
                f"{self.rota.where} has {len(self.rota.there)} rows for {self.count} inputs; give one each."
            )

    def table(self, seen: Seen) -> Predictions:
        """The rows of some inputs."""
        there, errors = self.there(seen.ids), dict(seen.errors)  # [N, J]
        self.count += len(seen.ids)
        columns: dict[str, list[Any]] = {name: [None] * len(seen.ids) for name in COLUMNS}
        if seen.outputs is not None:
            beliefs = believed(self.system, seen.outputs)  # [m, K+J]
            good, rows = beliefs.isfinite().all(dim=1), seen.read()  # [m], [m]
            errors |= dict.fromkeys(rows[~good].tolist(), "The system has no finite beliefs about it.")
            if good.any():
                decided = self.columns(beliefs[good], seen.outputs[good], there[rows[good]])
                for name, values in decided.items():
                    for i, value in zip(rows[good].tolist(), values, strict=True):
                        columns[name][i] = value
        return Predictions({**columns, "id": seen.ids, "error": [errors.get(i) for i in range(len(seen.ids))]})

    def decide(self, beliefs: Tensor, outputs: Tensor, there: Tensor) -> Decision:
        """The decision by beliefs [m, K+J] and outputs [m, *] where these experts [m, J] are there."""
        order = outputs if outputs.shape == beliefs.shape else beliefs
        answers = torch.full(there.shape, -1)  # nobody has been heard yet
        return self.rule(Cases(beliefs, answers, there, order, self.deployment))

    def action(self, decision: Decision) -> Tensor:
        """[m] what is done, as a number, where at most one expert is asked: k to answer class k, K + j to ask expert j."""
        asked = decision.asked.int().argmax(dim=1)  # [m]
        return torch.where(decision.deferred, len(self.class_names) + asked, decision.predicted)

    def columns(self, beliefs: Tensor, outputs: Tensor, there: Tensor) -> dict[str, list[Any]]:
        """The columns of the table for beliefs [m, K+J] and outputs [m, *] where these experts [m, J] are there."""
        decision = self.decide(beliefs, outputs, there)
        return decided_columns(decision, beliefs, self.deployment, there.any(dim=1))

    def there(self, ids: list[str]) -> Tensor:
        """[N, J] who may be asked about the inputs that come next."""
        there = self.chosen.expand(len(ids), -1)
        if self.rota is None:
            return there
        if self.rota.row_of is not None:
            return there & self.rota.of_ids(ids)
        rows = self.rota.there[self.count : self.count + len(ids)]
        if len(rows) < len(ids):
            raise UserError(
                f"{self.rota.where} has {len(self.rota.there)} rows and there are more inputs; give one each."
            )
        return there & rows


def merged(parts: Iterable[Seen], rows: int | None) -> Iterator[Seen]:
    """The parts joined to parts of at least so many inputs; None: to one."""
    waiting: list[Seen] = []
    for part in parts:
        waiting.append(part)
        if rows is not None and sum(len(one.ids) for one in waiting) >= rows:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Seen]) -> Seen:
    ids: list[str] = []
    errors: dict[int, str] = {}
    for part in parts:
        errors |= {len(ids) + i: error for i, error in part.errors.items()}
        ids += part.ids
    outputs = [part.outputs for part in parts if part.outputs is not None]
    return Seen(ids, torch.cat(outputs) if outputs else None, errors)
