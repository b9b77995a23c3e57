"""l2d-evaluate: the metrics of trained weights, on the run's own test set or on another that fits them."""

import argparse
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from l2d.atomic import atomic_write
from l2d.config import check, choices, config_dir, fingerprint, identity, register_resolvers
from l2d.errors import UserError, errors_as_sentences
from l2d.tracking.run_folder import environment, read_result

DESCRIPTION = """\
Evaluate trained weights again and write the metrics to evaluation.json beside them (or to out=FILE).

  l2d-evaluate ckpt=outputs/synthetic/RUN
  l2d-evaluate ckpt=RUN/model.pt dataset=folder dataset.root=images experts=specialist experts.num=8

The setting is the config.yaml beside the weights. dataset=..., experts=... and evaluation=full replace that choice by
another; any key of the setting can be given another value. Without such changes the metrics are those that training wrote."""
WEIGHTS = ("model.pt", "checkpoint.pt", "checkpoint.previous.pt")


def main(arguments: list[str] | None = None) -> None:
    """l2d evaluate RUN KEY=VALUE ..."""
    parser = argparse.ArgumentParser(
        "l2d evaluate", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE", help="ckpt=RUN_FOLDER or ckpt=FILE, and changes")
    settings = parser.parse_args(arguments).settings
    if "=" not in settings[0] or Path(settings[0]).exists():
        settings[0] = f"ckpt={settings[0]}"
    with errors_as_sentences():
        register_resolvers()
        own = dict(text.split("=", 1) for text in settings if text.startswith(("ckpt=", "out=")))
        path = weights_file(own.get("ckpt", ""))
        out = Path(own.get("out") or path.with_name("evaluation.json"))
        changes = [text for text in settings if not text.startswith(("ckpt=", "out="))]
        evaluate_weights(path, saved_config(path), changes, out)


def weights_file(ckpt: str) -> Path:
    """The file itself, or the best that a run's folder has: the final weights, else a checkpoint."""
    path = Path(ckpt)
    candidates = [path / name for name in WEIGHTS] if path.is_dir() else [path]
    found = next((file for file in candidates if ckpt and file.is_file()), None)
    if found is None:
        raise UserError(
            f"ckpt={ckpt} has no weights; give a run's folder, or the model.pt or checkpoint.pt in one, with its config.yaml beside it."
        )
    return found


def saved_config(path: Path) -> dict[str, Any]:
    """The config.yaml beside the weights, as plain values."""
    file = path.with_name("config.yaml")
    try:
        saved = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing; keep the weights beside the config.yaml of their run.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as YAML; it must be the one that the run wrote.") from error
    groups = {"dataset", "experts", "backbone", "loss", "trainer"}
    if not isinstance(saved, dict) or not all(isinstance(saved.get(group), dict) for group in groups):
        raise UserError(f"{file} is not a run's: it must have {', '.join(sorted(groups))}.")
    return {str(key): value for key, value in saved.items()}


def changed(saved: dict[str, Any], changes: list[str]) -> DictConfig:
    """The saved setting with `changes`: a group's name takes that choice as l2d-train composes it, any other key a value."""
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(changes)
    for change in parsed:
        if change.is_add() or change.is_delete() or change.is_sweep_override():
            raise UserError(f"{change.input_line} is not possible here; give key=value.")
    groups = [change for change in parsed if Path(config_dir(), change.key_or_group).is_dir()]
    with initialize_config_dir(config_dir(), version_base="1.3"):
        composed = compose("train", [str(change.input_line) for change in groups])
    chosen = {change.key_or_group: composed[change.key_or_group] for change in groups}
    if "experts" in chosen and "num" in chosen["experts"]:
        chosen["experts"].num = saved["experts"].get("num")  # the weights have so many columns
    defaults = {str(key): value for key, value in composed.items()}  # for what the run did not know yet
    cfg = DictConfig(defaults | saved | chosen)
    if "pretrained" in cfg.backbone:
        cfg.backbone.pretrained = False  # nothing to download: the weights come from the file
    OmegaConf.set_struct(cfg, True)
    for change in parsed:
        if change not in groups:
            OmegaConf.update(cfg, change.key_or_group, change.value())
    trained, asked = identity(DictConfig(saved)), identity(cfg)
    same = all(trained.get(key) == asked[key] for key in ("dataset", "seed"))
    # Held out is only what the weights are known not to have been trained on.
    cfg.evaluation.holdout = (saved.get("evaluation") or {}).get("holdout", 0) if same else 0
    check(cfg)
    return cfg


def evaluate_weights(path: Path, saved: dict[str, Any], changes: list[str], out: Path) -> dict[str, Any]:
    """Predict the test set of the changed setting with the weights in `path`; print and write the metrics."""
    started = time.perf_counter()
    cfg = changed(saved, changes)

    from l2d import train
    from l2d.config import build
    from l2d.evaluation import evaluate
    from l2d.tracking.progress import ProgressReporter
    from l2d.training.device import Device, seed_everything
    from l2d.training.ranks import Ranks

    ranks = Ranks()
    if ranks.count > 1:
        raise UserError("l2d-evaluate works in one process; start it without torchrun.")
    weights = read_weights(path, fingerprint(DictConfig(saved)))
    seed_everything(cfg.seed, cfg.trainer.deterministic)
    device = Device.choose(cfg.trainer.device, cfg.trainer.precision)
    dataset = train.load_dataset(cfg)
    panel = train.load_panel(cfg, dataset)
    model = build(cfg, "backbone", num_outputs=dataset.num_classes + panel.num, image_shape=dataset.image_shape)
    here = f"{dataset.num_classes} classes and {panel.num} experts"
    trained = trained_experts(path.parent, saved)
    if trained not in (None, panel.num):  # as many outputs in all may still mean other things
        raise UserError(f"{path} was trained for {trained} experts, and this setting has {here}.")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        difference = str(error).splitlines()[1:2] or [str(error)]
        raise UserError(
            f"{path} does not fit backbone={cfg.backbone.name} with {here}: {difference[0].strip()}"
        ) from error

    layout = train.memory_format(cfg, model)
    model = model.to(device.device, memory_format=layout)
    if cfg.trainer.compile:
        model.compile()
    test_batches = train.batches(cfg, dataset, panel, "test", device, layout, ranks)
    loss_fn = build(cfg, "loss", num_classes=dataset.num_classes)
    outcome = train.scored(model, test_batches, device, ranks)
    result = {
        "metrics": evaluate(*outcome, dataset.num_classes),
        **train.beyond_metrics(cfg, model, loss_fn, dataset, panel, outcome, device, layout, ranks),
        "weights": str(path),
        "changes": changes,
        "choices": choices(cfg),
        "device": str(device.device),
        "precision": device.precision,
        "seconds": time.perf_counter() - started,
        **environment(),
    }
    atomic_write(out, lambda file: file.write((json.dumps(result, indent=2, allow_nan=False) + "\n").encode()))
    ProgressReporter(verbose=True).final(out, result)
    return result


def trained_experts(folder: Path, saved: dict[str, Any]) -> int | None:
    """How many experts the weights were trained for, if the run's record or its setting tells."""
    experts = (read_result(folder) or {}).get("experts")
    return len(experts) if isinstance(experts, list) else choices(DictConfig(saved))["num_experts"]


def read_weights(path: Path, setting: str) -> dict[str, Any]:
    """The model's tensors from model.pt or from a checkpoint of this setting. Nothing in the file is run."""
    import torch

    from l2d.training.checkpoint import load_checkpoint

    with open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"  # as torch.save writes it; a checkpoint begins with its checksum
    if not is_archive:
        return load_checkpoint(path, setting)["model"]
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not look at its checksums
            if archive.testzip():
                raise zipfile.BadZipFile
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} is damaged, or holds more than tensors and is refused (nothing in it was run)."
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise UserError(f"{path} is no model.pt: it must hold the tensors of a model by name.")
    return weights


if __name__ == "__main__":
    main()
