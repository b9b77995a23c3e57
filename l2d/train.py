"""Read this first: run(cfg) takes a config through the whole package, data -> experts -> model -> loss -> loop -> record."""

import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from l2d.config import build, check, choices, fingerprint, run_name
from l2d.data import Dataset, Loader, make_loader
from l2d.evaluation import bayes_optimum, evaluate
from l2d.experts import ExpertPanel, make_panel
from l2d.tracking import Console, RunFolder
from l2d.tracking.record import environment
from l2d.training import Device, fit, make_schedule, predict, seed_everything


def run(cfg: DictConfig) -> dict[str, Any]:
    """Train and evaluate what `cfg` describes; return the metrics of the final epoch on the test set."""
    check(cfg)
    started = time.perf_counter()
    seed_everything(cfg.seed, cfg.trainer.deterministic)
    device = Device.choose(cfg.trainer.device, cfg.trainer.precision)

    dataset = load_dataset(cfg)
    experts = build(
        cfg, "experts", dataset=dataset, num_classes=dataset.num_classes, groups=dataset.groups, seed=cfg.seed
    )
    panel = make_panel(experts, dataset, cfg.experts.resample, cfg.seed)
    model = build(cfg, "backbone", num_outputs=dataset.num_classes + panel.num, image_shape=dataset.image_shape)
    loss_fn = build(cfg, "loss", num_classes=dataset.num_classes)
    tracker = build(cfg, "logger")

    model = model.to(device.device, memory_format=memory_format(cfg))
    train, test = (loader(cfg, dataset, panel, split, device) for split in ("train", "test"))
    optimizer = build(cfg, "optim", params=model.parameters(), fused=device.device.type == "cuda")
    warmup_steps = round(cfg.optim.warmup_epochs * len(train))
    schedule = make_schedule(optimizer, cfg.optim.schedule, cfg.trainer.epochs * len(train), warmup_steps)
    if cfg.trainer.compile:
        model.compile()

    def test_metrics() -> dict[str, Any]:
        scores, labels, expert_predictions = predict(model, test, device)
        return evaluate(scores, labels, expert_predictions, dataset.num_classes)

    folder = RunFolder(run_folder(cfg))
    folder.write_config(cfg)
    chosen, bayes = choices(cfg), best_achievable(dataset, panel)
    console = Console(cfg.verbose)
    console.header(
        {**chosen, "device": device.device, "precision": device.precision, "parameters": f"{count(model):,}"}
    )
    console.start(cfg.trainer.epochs, len(train))
    tracker.start(folder.path.name, OmegaConf.to_container(cfg, resolve=True), folder.path)
    settings = cfg.trainer
    epochs = fit(
        model,
        loss_fn,
        optimizer,
        schedule,
        train,
        device,
        settings.epochs,
        settings.clip_grad,
        settings.log_every,
        console.step,
    )
    try:
        for row in epochs:
            last = row["epoch"] == settings.epochs
            if last or (settings.eval_every and row["epoch"] % settings.eval_every == 0):
                row |= test_metrics()
            folder.add_epoch(row)
            console.epoch(row)
            tracker.log(row)
    finally:
        console.close()

    metrics = {key: value for key, value in row.items() if key not in ("epoch", "loss", "lr", "images_per_second")}
    seconds = time.perf_counter() - started
    result = {
        "status": "finished",
        "metrics": metrics,
        "bayes": bayes,
        "choices": chosen,
        "seed": cfg.seed,
        "fingerprint": fingerprint(cfg),
        "experts": expert_facts(panel, dataset),
        "parameters": count(model),
        "device": str(device.device),
        "precision": device.precision,
        "seconds": seconds,
        "peak_memory_mb": device.peak_memory_mb(),
        **environment(),
    }
    folder.write_weights(lambda file: torch.save(model.state_dict(), file))
    folder.write_result(result)
    tracker.finish(result)
    console.final(f"{chosen['loss']}, {panel.num} experts, seed {cfg.seed}", metrics, bayes, str(folder.path), seconds)
    return metrics


def load_dataset(cfg: DictConfig) -> Dataset:
    """The dataset of the config; the jobs of a multirun share one copy."""
    return _load(json.dumps(OmegaConf.to_container(cfg.dataset, resolve=True)))


@lru_cache(maxsize=1)
def _load(settings: str) -> Dataset:
    return build(OmegaConf.create({"dataset": json.loads(settings)}), "dataset")


def loader(cfg: DictConfig, dataset: Dataset, panel: ExpertPanel, split: str, device: Device) -> Loader:
    labels = getattr(dataset, split).labels
    return make_loader(
        dataset,
        split,
        lambda epoch: panel.predictions(split, labels, epoch),
        cfg.trainer.batch_size,
        device.device,
        cfg.seed,
        memory_format(cfg),
    )


def memory_format(cfg: DictConfig) -> torch.memory_format:
    return torch.channels_last if cfg.trainer.channels_last else torch.contiguous_format


def run_folder(cfg: DictConfig) -> Path:
    """Where Hydra put the run; the same place where there is no Hydra application around."""
    return Path(
        HydraConfig.get().runtime.output_dir if HydraConfig.initialized() else f"{cfg.output_dir}/{run_name(cfg)}"
    )


def best_achievable(dataset: Dataset, panel: ExpertPanel) -> dict[str, float] | None:
    """The Bayes optimum on the test points, where the dataset's posterior and the experts' accuracies are known."""
    if dataset.posterior is None or panel.matrix is None or not isinstance(dataset.test.images, torch.Tensor):
        return None
    return bayes_optimum(dataset.posterior(dataset.test.images), torch.from_numpy(panel.matrix))


def expert_facts(panel: ExpertPanel, dataset: Dataset) -> list[dict[str, Any]]:
    """Each expert's realised accuracy on both splits."""
    right = {
        split: (panel.predictions(split, data.labels) == data.labels[:, None]).double().mean(0).tolist()
        for split, data in (("train", dataset.train), ("test", dataset.test))
    }
    return [
        {"name": name, "train_accuracy": 100 * train, "test_accuracy": 100 * test}
        for name, train, test in zip(panel.names, right["train"], right["test"], strict=True)
    ]


def count(model: torch.nn.Module) -> int:
    return int(np.sum([p.numel() for p in model.parameters()]))


if __name__ == "__main__":
    from l2d.cli import train

    train()
