"""Read this first: run(cfg) takes a config through the whole package, data -> experts -> model -> loss -> loop -> record."""

import json
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2d.config import bind, build, check, choices, fingerprint, plain, run_name
from l2d.data import Batch, Dataset, Loader, make_loader
from l2d.data.dataset import hold_out
from l2d.errors import UserError
from l2d.evaluation import bayes_optimum, evaluate
from l2d.evaluation.underfitting import underfitting
from l2d.experts import ExpertPanel, make_panel
from l2d.tracking.console import Console
from l2d.tracking.record import RunFolder, Spectator, environment
from l2d.tracking.trackers import FilesOnly, ending
from l2d.training.checkpoint import latest_checkpoint, load_checkpoint, remove_checkpoints
from l2d.training.device import Device, seed_everything
from l2d.training.loop import fit, predict, score
from l2d.training.ranks import Ranks
from l2d.training.schedule import make_schedule
from l2d.training.signals import StopSignal
from l2d.training.state import TrainingState

WATCHED = 64  # training samples on which underfitting is looked at after every epoch


class Outcome(NamedTuple):
    """What an evaluation starts from."""

    scores: Tensor  # [N, K+J]
    labels: Tensor  # [N]
    expert_predictions: Tensor  # [N, J]


# What a `_target_` of evaluation may ask for by name; the last two only where the truth is known.
OFFERED = (*Outcome._fields, "loss", "num_classes", "held_out", "eta", "accuracy")


def run(cfg: DictConfig) -> dict[str, Any]:
    """Train and evaluate what `cfg` describes, unless that was done before; return the metrics on the test set."""
    ranks = Ranks()
    with StopSignal() as stop:
        with (RunFolder if ranks.first else Spectator)(run_folder(cfg), cfg) as folder:
            check(cfg)
            console = Console(cfg.verbose)
            console.terminal.quiet = not ranks.first
            result = folder.finished()
            if result and not cfg.force:
                console.finished_before(folder.path, result)
            else:
                with ranks:
                    result = train(cfg, folder, console, ranks, stop)
        if stop.received:  # while the finished model was evaluated: obeyed now, before the next cell of a sweep
            stop.leave()
    return result["metrics"]


def train(cfg: DictConfig, folder: RunFolder, console: Console, ranks: Ranks, stop: StopSignal) -> dict[str, Any]:
    """The whole way of one run, from the config to result.json."""
    started = time.perf_counter()
    seed_everything(cfg.seed, cfg.trainer.deterministic)
    device = Device.choose(cfg.trainer.device, cfg.trainer.precision, ranks.local)
    device.reset_peak_memory()
    ranks.start(device.device)

    dataset = load_dataset(cfg)
    panel = load_panel(cfg, dataset)
    model = build(cfg, "backbone", num_outputs=dataset.num_classes + panel.num, image_shape=dataset.image_shape)
    loss_fn = build(cfg, "loss", num_classes=dataset.num_classes)
    tracker = build(cfg, "logger") if ranks.first else FilesOnly()

    layout = memory_format(cfg, model)
    model = model.to(device.device, memory_format=layout)
    trained, _ = hold_out(len(dataset.train), cfg.evaluation.holdout, cfg.seed)
    train_batches = batches(cfg, dataset, panel, "train", device, layout, ranks, trained)
    test_batches = batches(cfg, dataset, panel, "test", device, layout, ranks)
    if train_batches.batch_size == 1 and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise UserError(
            "A batch of one sample leaves batch norm nothing to compare; use a trainer.batch_size of at least 2."
        )
    fused = device.device.type == "cuda" or device.precision != "fp16"  # the CPU's kernels know no gradient scaler
    optimizer = build(cfg, "optim", params=model.parameters(), fused=fused)
    steps, epochs = len(train_batches), cfg.trainer.epochs
    schedule = make_schedule(optimizer, cfg.optim.schedule, steps, epochs, cfg.optim.warmup_epochs)
    if cfg.trainer.compile:
        model.compile()
        if isinstance(loss_fn, nn.Module):  # one's own may be a function
            loss_fn.compile()
    forward = ranks.wrap(model, cfg.trainer.sync_batchnorm, device.device)

    facts = run_facts(cfg, device, model, panel, dataset, ranks)
    watch = None
    if cfg.evaluation._target_:
        watched = train_batches.batch_size if cfg.trainer.compile else WATCHED  # a shape that is compiled anyway
        watch = Batch(*(part[:watched] for part in next(train_batches.epoch())))
        bind(cfg, "evaluation", dict.fromkeys(OFFERED))  # refused now, not after the training
    with ending(tracker):
        with console.progress(facts, epochs, steps, cfg.trainer.batch_size):
            stop.patiently()
            state = TrainingState(folder, model, optimizer, schedule, steps, cfg.trainer, device, ranks, stop)
            folder.start(facts, resumed=restore(cfg, state))
            tracker.start(folder.path.name, plain(cfg), folder.path)
            for row in fit(forward, loss_fn, train_batches, state, console.step):
                if row["epoch"] == epochs or is_due(row["epoch"], cfg.trainer.eval_every):
                    ranks.share_buffers(model)
                    outcome = scored(model, test_batches, device, ranks)
                    metrics = evaluate(*outcome, dataset.num_classes)
                    row |= metrics
                if watch:
                    row |= underfitting(*Outcome(*score(model, watch, device)), dataset.num_classes, loss_fn)
                folder.add_epoch(row)
                console.epoch(row)
                tracker.log(row)

        beyond = beyond_metrics(cfg, model, loss_fn, dataset, panel, outcome, device, layout, ranks)
        folder.write_weights(lambda file: torch.save(model.state_dict(), file))
        result = folder.write_result(
            {
                "status": "finished",
                "metrics": metrics,
                **beyond,
                "seconds": time.perf_counter() - started,
                "peak_memory_mb": device.peak_memory_mb(),
            }
        )
        if ranks.first:
            remove_checkpoints(folder.path)
        tracker.finish(result)
    console.final(folder.path, result)
    return result


def scored(model: nn.Module, loader: Loader, device: Device, ranks: Ranks) -> Outcome:
    """Of the whole split, on every rank."""
    return Outcome(*map(ranks.gather, predict(model, loader, device)))


def beyond_metrics(
    cfg: DictConfig,
    model: nn.Module,
    loss_fn: Any,
    dataset: Dataset,
    panel: ExpertPanel,
    outcome: Outcome,
    device: Device,
    layout: torch.memory_format,
    ranks: Ranks,
) -> dict[str, Any]:
    """The best achievable where the truth is known, and what the `evaluation` group adds; None stands for neither."""
    known, full = truth(dataset, panel), None
    if cfg.evaluation._target_:
        offered = {**outcome._asdict(), "loss": loss_fn, "num_classes": dataset.num_classes, **known}
        _, held_back = hold_out(len(dataset.train), cfg.evaluation.holdout, cfg.seed)
        if held_back is not None:
            held = batches(cfg, dataset, panel, "train", device, layout, ranks, held_back, shuffled=False)
            offered["held_out"] = scored(model, held, device, ranks)
        full = build(cfg, "evaluation", **offered)
    best = bayes_optimum(known["eta"], torch.from_numpy(panel.matrix)) if known else None
    return {"bayes": best, "evaluation": full}


def restore(cfg: DictConfig, state: TrainingState) -> bool:
    """Bring `state` to the checkpoint that `resume` means, if there is one."""
    folder = state.folder.path
    if cfg.resume == "never" or cfg.force:
        remove_checkpoints(folder)
        return False
    if cfg.resume == "auto":
        saved = latest_checkpoint(folder, fingerprint(cfg))
    else:
        saved = load_checkpoint(Path(cfg.resume), fingerprint(cfg))
    if saved:
        state.load(saved)
    position = state.epoch * state.steps_per_epoch + state.step
    if state.ranks.agree(position) != -state.ranks.agree(-position):
        raise UserError(
            "The processes do not find the same checkpoints; put output_dir on a disk that all of them share."
        )
    return saved is not None


def load_dataset(cfg: DictConfig) -> Dataset:
    """The dataset of the config; the jobs of a multirun share one copy."""
    return _load(json.dumps(OmegaConf.to_container(cfg.dataset, resolve=True)))


@lru_cache(maxsize=1)
def _load(settings: str) -> Dataset:
    return build(OmegaConf.create({"dataset": json.loads(settings)}), "dataset")


def load_panel(cfg: DictConfig, dataset: Dataset) -> ExpertPanel:
    offered = {"dataset": dataset, "num_classes": dataset.num_classes, "groups": dataset.groups, "seed": cfg.seed}
    return make_panel(build(cfg, "experts", **offered), dataset, cfg.experts.resample, cfg.seed)


def batches(
    cfg: DictConfig,
    dataset: Dataset,
    panel: ExpertPanel,
    split: str,
    device: Device,
    layout: torch.memory_format,
    ranks: Ranks,
    rows: Tensor | None = None,
    shuffled: bool = True,
) -> Loader:
    """The batches of a split, or of these `rows` of it; training's are shuffled and augmented, unless told otherwise."""
    data = getattr(dataset, split)
    count = len(data if rows is None else rows)
    if count < ranks.count:
        raise UserError(
            f"The {split} split has {count} samples for {ranks.count} processes; use at most {count} of them."
        )
    role = split if shuffled else "test"
    return make_loader(
        replace(dataset, **{role: data if rows is None else data.take(rows)}),
        role,
        lambda epoch: panel.predictions(split, data.labels, epoch)[slice(None) if rows is None else rows],
        ranks.share(cfg.trainer.batch_size),
        device.device,
        cfg.seed,
        layout,
        ranks.rank,
        ranks.count,
    )


def memory_format(cfg: DictConfig, model: nn.Module) -> torch.memory_format:
    """Channels last is for convolutions; a model without one would have to turn every image back."""
    convolves = any(p.dim() == 4 for p in model.parameters())
    return torch.channels_last if cfg.trainer.channels_last and convolves else torch.contiguous_format


def run_folder(cfg: DictConfig) -> Path:
    """Where Hydra put the run; the same place where there is no Hydra application around."""
    if HydraConfig.initialized() and not OmegaConf.is_missing(HydraConfig.get().runtime, "output_dir"):
        return Path(HydraConfig.get().runtime.output_dir)
    return Path(cfg.output_dir, run_name(cfg))


def truth(dataset: Dataset, panel: ExpertPanel) -> dict[str, Tensor]:
    """eta [N, K] and Acc [N, J] on the test points, where the posterior and the experts' accuracies are known."""
    if dataset.posterior is None or panel.matrix is None or not isinstance(dataset.test.images, Tensor):
        return {}
    eta = dataset.posterior(dataset.test.images)  # [N, K]
    return {"eta": eta, "accuracy": eta @ torch.from_numpy(panel.matrix).T.to(eta)}


def run_facts(
    cfg: DictConfig, device: Device, model: nn.Module, panel: ExpertPanel, dataset: Dataset, ranks: Ranks
) -> dict[str, Any]:
    """What was chosen and what it runs on: the part of result.json that is known before the training."""
    return {
        "choices": choices(cfg),
        "seed": cfg.seed,
        "device": str(device.device),
        "precision": device.precision,
        "parameters": sum(p.numel() for p in model.parameters()),
        "experts": expert_facts(panel, dataset),
        "ranks": ranks.count,
        **environment(),
    }


def expert_facts(panel: ExpertPanel, dataset: Dataset) -> list[dict[str, Any]]:
    """Each expert's realised accuracy on both splits, over the answers that were given."""
    facts: list[dict[str, Any]] = [{"name": name} for name in panel.names]
    for split in ("train", "test"):
        labels = getattr(dataset, split).labels
        table = panel.predictions(split, labels)  # [N, J]
        right, given = (table == labels[:, None]).sum(0), (table >= 0).sum(0)  # [J], [J]
        for fact, hits, answers in zip(facts, right.tolist(), given.tolist(), strict=True):
            fact[f"{split}_accuracy"] = 100 * hits / answers if answers else None
    return facts


def is_due(epoch: int, every: int) -> bool:
    return every > 0 and epoch % every == 0


if __name__ == "__main__":
    import sys

    from l2d.cli import train as main

    sys.modules.setdefault("l2d.train", sys.modules["__main__"])  # imported again below, and must not be loaded twice
    main()
