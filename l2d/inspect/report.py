"""The report of `l2d data check` on the data and experts of a configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from torch.optim import Optimizer

from l2d.config import build, check
from l2d.data import Dataset, Images
from l2d.data.load import load_dataset
from l2d.data.vectors import Vectors
from l2d.errors import UserError
from l2d.evaluation.evaluator import check_evaluation, check_system
from l2d.inspect.answers import Answers, show_accuracies, show_dependence, show_gaps
from l2d.inspect.inputs import show_inputs
from l2d.inspect.sheet import draw_sheet, spread
from l2d.inspect.tables import FULL_TABLE, Output, memory_size, some
from l2d.place import Place, Ranks
from l2d.place.memory import available_memory
from l2d.systems import System, load_system
from l2d.task import Task, make_task
from l2d.tracking.trackers import Tracker
from l2d.training.schedule import make_schedule

# The paper's Table 3: accuracy of MiceBone's annotators on train and test.
PUBLISHED = {
    "047": (84.64, 84.64), "290": (85.01, 84.71), "533": (87.43, 86.33), "534": (88.13, 85.68),
    "580": (81.73, 79.59), "581": (85.96, 84.64), "966": (87.05, 87.88), "745": (85.45, 84.90),
}  # fmt: skip


def check_data(cfg: DictConfig, sheet: Path, decode: int | None) -> None:
    """Print the report and draw the sheet; all that would stop a training is raised at the end, as one UserError."""
    check(cfg)
    out = Output(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = 120
    place = Place.choose(cfg.trainer.device, cfg.trainer.precision, Ranks.alone())
    problems: list[str] = []
    dataset, load_error = _load(cfg)
    labels = {name: split.labels.numpy() for name, split in dataset.splits().items()}

    what = "samples" if isinstance(dataset.train.inputs, Vectors) else "images"
    sizes = f"{len(dataset.train):,} training and {len(dataset.test):,} test {what}"
    sizes += f", {len(dataset.held_out):,} held out" if dataset.held_out else ""
    out.print(f"{dataset.name}: {dataset.num_classes} classes, {sizes}", style="bold")
    notes = _classes(out, dataset, labels)
    _groups(out, dataset)
    shown = {
        name: show_inputs(out, name, split, cfg.dataset.get("root"), decode) for name, split in dataset.splits().items()
    }
    damaged = sum(number for _, number in shown.values())
    if damaged and cfg.dataset.get("on_error") != "skip":
        problems.append(
            f"{damaged} damaged image file(s), named above; replace or remove them, "
            "or leave them out with dataset.on_error=skip."
        )
    elif load_error:
        problems.append(load_error)
    published = PUBLISHED if str(cfg.dataset.get("_target_")).endswith(".micebone") else {}
    if dataset.annotators:
        show_accuracies(out, "annotator", dataset.annotators, labels, published)
        show_gaps(out, dataset.annotators, labels)

    task = _try(problems, lambda: make_task(cfg, dataset))
    experts: Answers = {}
    if task:
        tables = {s: task.panel.answers(s, dataset.splits()[s].labels).numpy() for s in labels}  # [N, J] each
        experts = {name: {s: t[:, j] for s, t in tables.items()} for j, name in enumerate(task.expert_names)}
        notes += show_accuracies(out, "expert", experts, labels, published)
        if shift := task.panel.drawing.shift:
            factors = ", ".join(f"{name} {factor:g}" for name, factor in shift.items())
            out.print(f"On the test split accuracies are multiplied by a factor (experts.shift): {factors}.")
        if task.population:
            known = [fact["train_accuracy"] for fact in task.experts(task.population) if fact["train_answered"]]
            spread_of = f", right on {min(known):.2f} to {max(known):.2f} of their training answers" if known else ""
            out.print(f"Trained with a population of {task.population.num} other experts{spread_of}.")
        if not dataset.annotators:
            show_gaps(out, experts, labels)
        show_dependence(out, experts, labels)
        system = _try(problems, lambda: _build_system(cfg, task))
        if not load_error:
            _memory(out, dataset, place, sum(table.nbytes for table in tables.values()), system)

    answers = {name: by_split["train"] for name, by_split in {**experts, **dataset.annotators}.items()}
    chosen = spread(labels["train"], shown["train"][0], cfg.seed)
    if chosen:
        title = f"{dataset.name}: {len(chosen)} of {len(dataset.train):,} training images"
        draw_sheet(sheet, title, dataset.train, dataset.class_names, answers, chosen)
        out.print(f"\nContact sheet: {sheet}", soft_wrap=True)
    if problems:
        raise UserError(" ".join(problems))
    if notes:
        out.print(f"Training can start; before it, look at: {'; '.join(notes)}.", style="yellow")
    else:
        out.print("No problem found: training can start.", style="green")


def _load(cfg: DictConfig) -> tuple[Dataset, str | None]:
    """The dataset and None; if it fails to load, the listed files, to name all that are damaged, and the error."""
    try:
        return load_dataset(cfg), None
    except UserError as error:
        if cfg.dataset.get("feed", "stream") == "stream":
            raise
        streamed = cfg.copy()
        streamed.dataset.feed = "stream"
        return load_dataset(streamed), str(error)


def _build_system(cfg: DictConfig, task: Task) -> System:
    """Build everything else that a training builds, so that its errors appear here; return the system."""
    system = load_system(cfg, task)
    build(cfg, "logger", Tracker)
    check_evaluation(cfg)
    check_system(cfg, system, task)
    steps = max(len(task.train) // cfg.trainer.batch_size, 1)
    for stage in system.stages():
        optimizer = build(cfg, "optim", Optimizer, params=stage.parameters, fused=False)
        make_schedule(optimizer, cfg.optim.schedule, steps, stage.epochs or cfg.trainer.epochs, cfg.optim.warmup_epochs)
    return system


def _try(problems: list[str], make: Callable[[], Any]) -> Any:
    try:
        return make()
    except UserError as error:
        problems.append(str(error))


def _classes(out: Output, dataset: Dataset, labels: dict[str, np.ndarray]) -> list[str]:
    """Samples per class: a row per class if there are few; otherwise the range, and the classes at its ends. Returns a note for
    every split that lacks classes."""
    counts = {s: np.bincount(y, minlength=dataset.num_classes) for s, y in labels.items()}  # [K]
    names = np.array(dataset.class_names, dtype=object)
    if dataset.num_classes <= FULL_TABLE:
        out.table(["class", *counts], zip(names, *counts.values(), strict=True))
    else:
        rows = []
        for s, n in counts.items():
            ends = [f"{end} ({some(list(names[n == end]))})" for end in (n.min(), n.max())]
            rows.append(
                (s, n.min(), f"{np.median(n):g}", n.max(), ", ".join(ends) if n.min() < n.max() else "all equal")
            )
        out.table(["samples per class", "min", "median", "max", "extremes"], rows)
    notes = []
    for s, n in counts.items():
        if absent := list(names[n == 0]):
            out.print(f"Absent from {s}: {some(absent, 10)}", style="yellow")
            notes.append(f"{len(absent)} of {len(names)} classes absent from {s}")
    return notes


def _groups(out: Output, dataset: Dataset) -> None:
    sizes = ", ".join(f"{name} {len(members)}" for name, members in dataset.groups.items())
    out.print(f"\nClass groups, with their number of classes: {sizes or 'none'}")


def _memory(out: Output, dataset: Dataset, place: Place, expert_bytes: int, system: System | None) -> None:
    rows = []
    for name, split in dataset.splits().items():
        inputs = split.inputs
        if isinstance(inputs, Images):
            rows.append((f"{name} images (resident)", memory_size(inputs.pixels.nbytes)))
        elif isinstance(inputs, Vectors):
            rows.append((f"{name} vectors (in their file's type)", memory_size(len(inputs) * inputs.values[0].nbytes)))
        else:
            rows.append((f"{name} images (stream)", "a few batches"))
    rows.append(("expert tables", memory_size(expert_bytes)))
    if system:
        weights = sum(p.nbytes for p in system.parameters())
        rows.append((f"model ({sum(p.numel() for p in system.parameters()):,} parameters)", memory_size(weights)))
        rows.append(("its gradients", memory_size(weights)))
    rows.append(("free now", memory_size(available_memory())))
    out.table([f"memory on {place.device}", ""], rows)
    out.print(
        "The optimiser's state and the activations of a batch come on top. Every process of a sweep has all of this for itself: "
        "with hydra.launcher.n_jobs above the number of GPUs it is there several times on each."
    )
