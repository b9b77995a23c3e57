"""From a system and a split to everything that a run reports."""

from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any, NamedTuple

from omegaconf import DictConfig

from l2d.config import bind, build
from l2d.data import Batch, Loader
from l2d.decisions import Deployment, best
from l2d.errors import UserError
from l2d.evaluation.bayes import bayes_optimum
from l2d.evaluation.metrics import METRICS, Metric, measure
from l2d.evaluation.outcome import Outcome, observe
from l2d.evaluation.presence import present
from l2d.evaluation.rules import (
    RULE_OFFERS,
    check_callable,
    check_rule,
    deployment_of,
    notify_of_guesses,
    rule_needs,
    rule_of,
)
from l2d.identity import evaluated_with
from l2d.place import Place
from l2d.place.place import convolves
from l2d.systems import System
from l2d.task import Task, Truth, hold_out
from l2d.training.loop import Predicted, forward, predict

PROBE_SIZE = 64  # training samples on which underfitting is looked at after every epoch
EVALUATION_OFFERS = ("outcome", "held_out", "system")


class Known(NamedTuple):
    """What is known about the test samples beside what the system says about them."""

    class_names: list[str]
    expert_names: list[str]
    ids: Sequence[str] | None = None  # of the samples
    truth: Truth | None = None

    @classmethod
    def of(cls, task: Task) -> "Known":
        return cls(task.class_names, task.expert_names, task.test.inputs.ids(), task.truth)


class Evaluated(NamedTuple):
    """The outcomes of a system, and what result.json says about them."""

    outcomes: dict[str, Outcome]  # test, and held_out if there is one
    result: dict[str, Any]  # metrics, bayes, evaluation, and under which settings


def evaluate(cfg: DictConfig, system: System, predicted: dict[str, Predicted], known: Known) -> Evaluated:
    """Everything that a run reports, from the outputs of `test` and, where it exists, `held_out`."""
    outcomes, truth = decided(cfg, system, predicted, known), known.truth
    outcome, held_out = outcomes["test"], outcomes.get("held_out")
    notify_of_guesses(cfg, system)
    single = outcome.decision.answer is None  # several opinions may do better than the best single one
    full = None
    if cfg.evaluation._target_:
        full = build(cfg, "evaluation", dict, outcome=outcome, held_out=held_out, system=system)
    result = {
        "metrics": measure(outcome, chosen_metrics(cfg)),
        "held_out": measure(held_out, METRICS) if held_out else None,
        "bayes": bayes_optimum(truth, outcome.costs) if truth and single else None,
        "decision": outcome.decision.facts,
        "evaluation": full,
        "own_metrics": [{**metric._asdict(), "of": None} for metric in own_metrics(cfg)],
        "evaluated_with": evaluated_with(cfg),
    }
    return Evaluated(outcomes, result)


def decided(cfg: DictConfig, system: System, predicted: dict[str, Predicted], known: Known) -> dict[str, Outcome]:
    """The outcome on `test` under the rule of the config, and on `held_out`, where it exists, without one."""
    deployment = deployment_of(cfg, known.expert_names, known.class_names)
    check_rule(cfg, system, deployment, "held_out" in predicted)
    outcomes = {}
    if "held_out" in predicted:
        outcomes["held_out"] = observe_held_out(system, predicted["held_out"], deployment)
    ids, samples = known.ids, predicted["test"].samples
    if ids is not None and len(ids) != len(samples):  # some images could not be read
        ids = [ids[i] for i in samples.tolist()]
    there, rule = present(cfg, known.expert_names, len(samples), ids), rule_of(cfg, outcomes.get("held_out"))
    among = lambda cases: rule(replace(cases, available=cases.available & there))  # noqa: E731
    test = observe(system, predicted["test"], among, known.truth, deployment)
    outcomes["test"] = replace(test, ids=ids)
    return outcomes


def observe_held_out(system: System, predicted: Predicted, deployment: Deployment) -> Outcome:
    """The outcome on held-out data, which rules are fitted on: without a rule."""
    without = lambda cases: best(replace(cases, held_out=replace(cases, labels=predicted.labels)))  # noqa: E731
    return observe(system, predicted, without, deployment=deployment)


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
    rows = evaluation_batch_size(cfg.trainer, system, place)
    return {name: Loader(split, place, rows, cfg.seed) for name, split in splits.items()}


def evaluation_batch_size(trainer: DictConfig, system: System, place: Place) -> int:
    """That of training, for which shapes are compiled and tuned; else, for matrix products alone, four times as much: larger ones are
    faster, and without gradients they take no more memory."""
    fixed = trainer.compile or place.device.type != "cpu" or convolves(system)
    return int(trainer.batch_size * (1 if fixed else 4))


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
    check_callable(cfg)
    if cfg.evaluation._target_:
        bind(cfg, "evaluation", dict.fromkeys(EVALUATION_OFFERS))


def check_system(cfg: DictConfig, system: System, task: Task) -> None:
    """Refuse a rule or costs that a system cannot serve, and a system that needs held-out data where there are none."""
    deployment = deployment_of(cfg, task.expert_names, task.class_names)
    check_rule(cfg, system, deployment, task.held_out is not None)
    present(cfg, task.expert_names, len(task.test), task.test.inputs.ids())  # refuses who cannot be meant
    if system.fitted_on_held_out and task.held_out is None:
        raise UserError(
            f"held_out={cfg.held_out:g}: system={cfg.system.get('name')} is fitted on held-out data after training; set held_out=0.2."
        )


class Evaluator:
    """Evaluates one system on a task while it is trained."""

    def __init__(self, cfg: DictConfig, system: System, task: Task, place: Place, train: Loader):
        self.cfg, self.system, self.task, self.place = cfg, system, task, place
        check_evaluation(cfg)
        self.known = Known.of(task)
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
            self.evaluated = evaluate(self.cfg, self.system, predicted, self.known)
            row |= self.evaluated.result["metrics"]
        elif every and epoch % every == 0:
            row |= measure(self._observed(), chosen_metrics(self.cfg))
        if self.probe_batch is not None:
            outputs = forward(self.system, self.probe_batch.inputs, self.place)
            row |= self.system.underfitting(outputs, self.probe_batch.labels, self.probe_batch.answers)
        return row

    def _observed(self) -> Outcome:
        """The outcome on the test split as the system is now; held-out data are predicted only for a rule that uses them."""
        arguments = bind(self.cfg, "rule", dict.fromkeys(RULE_OFFERS))[1]
        uses = self.system.fitted_on_held_out or rule_needs(self.cfg).held_out or "held_out" in arguments
        loaders = {name: loader for name, loader in self.loaders.items() if uses or name != "held_out"}
        predicted = predict_splits(self.system, loaders, self.cfg.seed, settle=True)
        return decided(self.cfg, self.system, predicted, self.known)["test"]
