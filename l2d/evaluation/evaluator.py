"""From a system and a split to everything that a run reports."""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from l2d.config import bind, build, plain
from l2d.data import Batch, Loader
from l2d.decisions import Decision
from l2d.errors import UserError
from l2d.evaluation.bayes import bayes_optimum
from l2d.evaluation.metrics import METRICS, Metric, measure
from l2d.evaluation.outcome import Outcome, observe
from l2d.identity import evaluated_with
from l2d.place import Place
from l2d.systems import System
from l2d.task import Task, Truth, hold_out
from l2d.training.loop import Predicted, forward, predict

PROBE_SIZE = 64  # training samples on which underfitting is looked at after every epoch
# What a target of `rule` or `evaluation` may ask for by name.
RULE_OFFERS = ("beliefs", "num_classes", "available", "order", "held_out", "costs")
EVALUATION_OFFERS = ("outcome", "held_out", "system")


class Evaluated(NamedTuple):
    """The outcomes of a system, and what result.json says about them."""

    outcomes: dict[str, Outcome]  # test, and held_out if there is one
    result: dict[str, Any]  # metrics, bayes, evaluation, and under which settings


def evaluate(cfg: DictConfig, system: System, predicted: dict[str, Predicted], truth: Truth | None) -> Evaluated:
    """Everything that a run reports, from the outputs of `test` and, where it exists, `held_out`."""
    outcomes = {}
    check_costs(cfg, system, predicted["test"].answers.shape[1])
    if "held_out" in predicted:
        outcomes["held_out"] = observe(system, predicted["held_out"])
    held_out = outcomes.get("held_out")
    outcome = observe(system, predicted["test"], chosen_rule(cfg), truth, held_out=held_out)
    outcomes["test"] = outcome
    full = None
    if cfg.evaluation._target_:
        full = build(cfg, "evaluation", dict, outcome=outcome, held_out=held_out, system=system)
    result = {
        "metrics": measure(outcome, chosen_metrics(cfg)),
        "bayes": bayes_optimum(truth) if truth else None,
        "evaluation": full,
        "own_metrics": [{**metric._asdict(), "of": None} for metric in own_metrics(cfg)],
        "evaluated_with": evaluated_with(cfg),
    }
    return Evaluated(outcomes, result)


def chosen_rule(cfg: DictConfig) -> Callable[..., Decision]:
    """`rule`, to be called with what RULE_OFFERS names; `experts.costs` are among it already."""

    def decided(**offered: Any) -> Decision:
        if cfg.experts.get("costs") is not None:
            offered["costs"] = expert_costs(cfg, offered["beliefs"].shape[1] - offered["num_classes"])
        return build(cfg, "rule", Decision, **offered)

    return decided


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


def check_costs(cfg: DictConfig, system: System, num_experts: int) -> None:
    """Refuse costs that the system's beliefs are not good enough for."""
    costs = expert_costs(cfg, num_experts)
    if costs is None or not costs.any() or system.vouches_for == "all":
        return
    unequal = bool((costs != costs[0]).any())
    if unequal or system.vouches_for == "none":
        what = "one cost for all experts" if system.vouches_for == "top" else "no cost"
        raise UserError(
            f"experts.costs={plain(cfg.experts.costs)}: loss={cfg.loss.get('name')} with system={cfg.system.get('name')} can weigh {what}, "
            "because its beliefs about the experts are no estimates; choose loss=ova or balanced_ova."
        )


def predict_splits(system: System, loaders: dict[str, Loader], seed: int, settle: bool) -> dict[str, Predicted]:
    """The outputs of every split. Of the held-out data a system that is fitted on them gets half, and the other half remains:
    no sample is used for two things. A system that describes its experts by a `context` sees that one first."""
    if "context" in loaders:
        system.meet(*predict(system.backbone, loaders["context"])[:3])
    predicted = {name: predict(system, loader) for name, loader in loaders.items() if name != "context"}
    held_out = predicted.get("held_out")
    if not system.fitted_on_held_out or held_out is None:
        return predicted
    rest, fitted_on = hold_out(len(held_out.labels), 0.5, seed)
    if fitted_on is None:
        raise UserError(f"held_out has {len(held_out.labels)} samples, too few to fit anything on; hold out more.")
    if settle:
        system.settle(*(part[fitted_on] for part in held_out[:3]))
    return {**predicted, "held_out": Predicted(*(part[rest] for part in held_out))}


def evaluation_loaders(cfg: DictConfig, system: System, task: Task, place: Place) -> dict[str, Loader]:
    """All that `predict_splits` needs: every split but `train`, and the `context` of a system that describes experts by one."""
    splits = {name: split for name, split in task.splits().items() if name != "train"}
    if system.about_panel:
        splits["context"] = task.context(system.context, cfg.seed)
    return {name: Loader(split, place, cfg.trainer.batch_size, cfg.seed) for name, split in splits.items()}


def chosen_metrics(cfg: DictConfig) -> list[Metric]:
    """METRICS, and those that `evaluation.metrics` names as package.module.METRIC."""
    return [*METRICS, *own_metrics(cfg)]


def own_metrics(cfg: DictConfig) -> list[Metric]:
    """The metrics that are not the package's own."""
    own: list[Metric] = []
    for path in cfg.evaluation.get("metrics") or []:
        module, _, name = str(path).rpartition(".")
        try:
            metric = resolve_name(f"{module}:{name}")
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"evaluation.metrics={path} cannot be imported: {reason}") from error
        if not isinstance(metric, Metric):
            raise UserError(f"evaluation.metrics={path} is not a Metric; make one with l2d.evaluation.Metric(...).")
        if any(metric.name == known.name for known in [*METRICS, *own]):
            raise UserError(
                f"evaluation.metrics={path} is called {metric.name}, as another metric is; choose another name."
            )
        own.append(metric)
    return own


def check_evaluation(cfg: DictConfig) -> None:
    """Refuse metrics, a rule or an evaluation that cannot be called, before the training instead of after it."""
    chosen_metrics(cfg)
    if "beliefs" not in bind(cfg, "rule", dict.fromkeys(RULE_OFFERS))[1]:
        raise UserError(f"rule._target_={cfg.rule._target_} has no parameter `beliefs`, by which a rule decides.")
    if cfg.experts.get("costs") is not None and "costs" not in bind(cfg, "rule", dict.fromkeys(RULE_OFFERS))[1]:
        raise UserError(
            f"experts.costs={plain(cfg.experts.costs)}: rule={cfg.rule.get('name')} does not weigh costs; choose rule=best."
        )
    if cfg.evaluation._target_:
        bind(cfg, "evaluation", dict.fromkeys(EVALUATION_OFFERS))


def check_system(cfg: DictConfig, system: System, task: Task) -> None:
    """Refuse costs that a system cannot weigh, and a system that needs held-out data where there are none."""
    check_costs(cfg, system, task.num_experts)
    if system.fitted_on_held_out and task.held_out is None:
        raise UserError(
            f"held_out={cfg.held_out:g}: system={cfg.system.get('name')} is fitted on held-out data after training; set held_out=0.2."
        )


class Evaluator:
    """Evaluates one system on a task while it is trained."""

    def __init__(self, cfg: DictConfig, system: System, task: Task, place: Place, train: Loader):
        self.cfg, self.system, self.task, self.place = cfg, system, task, place
        check_evaluation(cfg)
        check_system(cfg, system, task)
        self.loaders = evaluation_loaders(cfg, system, task, place)
        self.probe_batch: Batch | None = None
        if cfg.evaluation._target_:
            # a compiled system reuses the batch shape of training
            size = train.batch_size if cfg.trainer.compile else PROBE_SIZE
            self.probe_batch = Batch(*(part[:size] for part in next(train.epoch())))

    def row(self, epoch: int, final: bool) -> dict[str, Any]:
        """What metrics.csv says about an epoch beside its loss. The final one is evaluated completely: `evaluated`."""
        row: dict[str, Any] = {}
        every = self.cfg.trainer.eval_every
        if final or (every and epoch % every == 0):
            self.place.ranks.broadcast_buffers(self.system)
        if final:
            predicted = predict_splits(self.system, self.loaders, self.cfg.seed, settle=True)
            self.evaluated = evaluate(self.cfg, self.system, predicted, self.task.truth)
            row |= self.evaluated.result["metrics"]
        elif every and epoch % every == 0:
            row |= measure(self._observed(), chosen_metrics(self.cfg))
        if self.probe_batch is not None:
            outputs = forward(self.system, self.probe_batch, self.place)
            row |= self.system.underfitting(outputs, self.probe_batch.labels, self.probe_batch.answers)
        return row

    def _observed(self) -> Outcome:
        """The outcome on the test split as the system is now; held-out data are predicted only for a rule that uses them."""
        uses = self.system.fitted_on_held_out or "held_out" in bind(self.cfg, "rule", dict.fromkeys(RULE_OFFERS))[1]
        loaders = {name: loader for name, loader in self.loaders.items() if uses or name != "held_out"}
        predicted = predict_splits(self.system, loaders, self.cfg.seed, settle=True)
        held_out = observe(self.system, predicted["held_out"]) if "held_out" in predicted else None
        return observe(self.system, predicted["test"], chosen_rule(self.cfg), held_out=held_out)
