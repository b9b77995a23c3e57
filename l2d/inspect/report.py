"""The report of `l2d data check` on the data and experts of a configuration."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.optim import Optimizer

from l2d.config import build, check
from l2d.data import MISSING, Dataset, ImageFiles, Images
from l2d.data.files import open_image
from l2d.data.load import load_dataset
from l2d.errors import UserError, drop_output, visible
from l2d.evaluation.evaluator import check_evaluation
from l2d.inspect.sheet import draw_sheet, spread
from l2d.place import Place, Ranks
from l2d.place.memory import available_memory
from l2d.systems import System, load_system
from l2d.task import Task, make_task
from l2d.tracking.trackers import Tracker
from l2d.training.schedule import make_schedule

Answers = dict[str, dict[str, np.ndarray]]  # name -> split -> answers [N]
SPLITS = ("train", "test")
FULL_TABLE = 20  # classes
# The paper's Table 3: accuracy of MiceBone's annotators on train and test.
PUBLISHED = {
    "047": (84.64, 84.64), "290": (85.01, 84.71), "533": (87.43, 86.33), "534": (88.13, 85.68),
    "580": (81.73, 79.59), "581": (85.96, 84.64), "966": (87.05, 87.88), "745": (85.45, 84.90),
}  # fmt: skip


class Output(Console):
    """Prints names of classes, annotators and files in a safe form; once the reader of a pipe is gone, output is dropped."""

    def print(self, *objects: Any, **options: Any) -> None:
        safe = ("\n".join(map(visible, o.split("\n"))) if isinstance(o, str) else o for o in objects)
        super().print(*safe, **options)

    def on_broken_pipe(self) -> None:
        drop_output()


def check_data(cfg: DictConfig, sheet: Path, decode: int | None) -> None:
    """Print the report and draw the sheet; all that would stop a training is raised at the end, as one UserError."""
    check(cfg)
    out = Output(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = 120
    place = Place.choose(cfg.trainer.device, cfg.trainer.precision, Ranks.alone())
    problems: list[str] = []
    dataset, load_error = _load(cfg)

    sizes = f"{len(dataset.train):,} training and {len(dataset.test):,} test images"
    out.print(f"{dataset.name}: {dataset.num_classes} classes, {sizes}", style="bold")
    _classes(out, dataset)
    _groups(out, dataset)
    opened, damaged = zip(*(_images(out, dataset, split, decode) for split in SPLITS), strict=True)
    if sum(damaged) and cfg.dataset.get("on_error") != "skip":
        problems.append(
            f"{sum(damaged)} damaged image file(s), named above; replace or remove them, "
            "or leave them out with dataset.on_error=skip."
        )
    elif load_error:
        problems.append(load_error)
    published = PUBLISHED if str(cfg.dataset.get("_target_")).endswith(".micebone") else {}
    if dataset.annotators:
        _accuracies(out, "annotator", dataset.annotators, dataset, published)

    task = _try(problems, lambda: make_task(cfg, dataset))
    experts: Answers = {}
    if task:
        tables = {s: task.panel.answers(s, getattr(dataset, s).labels).numpy() for s in SPLITS}  # [N, J] each
        experts = {name: {s: t[:, j] for s, t in tables.items()} for j, name in enumerate(task.expert_names)}
        _accuracies(out, "expert", experts, dataset, published)
        system = _try(problems, lambda: _build_system(cfg, task))
        if not load_error:
            _memory(out, dataset, place, sum(table.nbytes for table in tables.values()), system)

    answers = {name: by_split["train"] for name, by_split in {**experts, **dataset.annotators}.items()}
    chosen = spread(_labels(dataset, "train"), opened[0], cfg.seed)
    if chosen:
        title = f"{dataset.name}: {len(chosen)} of {len(dataset.train):,} training images"
        draw_sheet(sheet, title, dataset.train, dataset.class_names, answers, chosen)
        out.print(f"\nContact sheet: {sheet}", soft_wrap=True)
    if problems:
        raise UserError(" ".join(problems))
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


def _classes(out: Console, dataset: Dataset) -> None:
    """Images per class: a row per class if there are few; otherwise the range, and the classes at its ends."""
    counts = {s: np.bincount(_labels(dataset, s), minlength=dataset.num_classes) for s in SPLITS}  # [K]
    if dataset.num_classes <= FULL_TABLE:
        _table(out, ["class", *SPLITS], zip(dataset.class_names, counts["train"], counts["test"], strict=True))
        return
    rows = []
    for split, n in counts.items():
        ends = (
            [f"{end} ({_named(dataset, n == end)})" for end in (n.min(), n.max())]
            if n.min() < n.max()
            else ["all equal"]
        )
        rows.append((split, n.min(), f"{np.median(n):g}", n.max(), ", ".join(ends)))
    _table(out, ["images per class", "min", "median", "max", "extremes"], rows)


def _named(dataset: Dataset, chosen: np.ndarray) -> str:
    names = [dataset.class_names[k] for k in np.flatnonzero(chosen)]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _groups(out: Console, dataset: Dataset) -> None:
    sizes = ", ".join(f"{name} {len(members)}" for name, members in dataset.groups.items())
    out.print(f"\nClass groups, with their number of classes: {sizes or 'none'}")


def _images(out: Console, dataset: Dataset, split: str, decode: int | None) -> tuple[np.ndarray, int]:
    """How large the images are; which ones can be shown, as a mask [N], and how many are damaged."""
    images, seen = getattr(dataset, split).inputs, "x".join(map(str, dataset.preprocessing.shape))
    if isinstance(images, Images):
        size, kind = "x".join(map(str, images.pixels.shape[1:])), str(images.pixels.dtype).removeprefix("torch.")
        out.print(f"{split} images: {size} {kind}, all decoded; the model sees {seen}")
        return np.ones(len(images), dtype=bool), 0
    chosen = np.linspace(0, len(images) - 1, min(decode or len(images), len(images))).round().astype(int)
    found = list(_open_all(out, split, images, chosen))
    sizes = Counter(size for size in found if not isinstance(size, str))
    damaged = [problem for problem in found if isinstance(problem, str)]
    out.print(f"{split} images: opened {len(found):,} of {len(images):,} files; the model sees {seen}")
    common = [(f"{width}x{height}", f"{number:,}") for (width, height), number in sizes.most_common(5)]
    rest = [(f"{len(sizes) - 5:,} other sizes", f"{sizes.total() - sum(n for _, n in sizes.most_common(5)):,}")]
    _table(out, ["width x height", "images"], [*common, *(rest if len(sizes) > 5 else [])])
    out.print(f"Damaged: {len(damaged) or 'none'}")
    for problem in damaged:
        out.print(f"  {problem}", style="red", soft_wrap=True)
    usable = np.zeros(len(images), dtype=bool)
    usable[[i for i, size in zip(chosen, found, strict=True) if not isinstance(size, str)]] = True
    return usable, len(damaged)


def _open_all(out: Console, split: str, images: ImageFiles, chosen: np.ndarray) -> Iterable[tuple[int, int] | str]:
    """The size of each image, or what is wrong with it."""

    def size_or_problem(i: int) -> tuple[int, int] | str:
        try:
            return open_image(images.root / images.paths[i]).size
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        chunks = [chosen[start : start + 256] for start in range(0, len(chosen), 256)]  # bounds the queue
        for chunk in track(chunks, f"opening {split} files", console=out, transient=True, disable=not out.is_terminal):
            yield from pool.map(size_or_problem, chunk)


def _accuracies(
    out: Console, kind: str, answers: Answers, dataset: Dataset, published: dict[str, tuple[float, float]]
) -> None:
    """Accuracy of the answers that were given, and the percentage of missing ones, on both splits."""
    labels = {split: _labels(dataset, split) for split in SPLITS}
    missing = any((by_split[s] == MISSING).any() for by_split in answers.values() for s in SPLITS)
    shown = [name for name in answers if name in published]
    rows = []
    for name, by_split in answers.items():
        given = {s: by_split[s] != MISSING for s in SPLITS}  # [N]
        right = {s: 100 * (by_split[s] == labels[s])[given[s]].mean() if given[s].any() else np.nan for s in SPLITS}
        rows.append([name, *(f"{right[s]:.2f}" for s in SPLITS)])
        rows[-1] += [f"{100 * (1 - given[s].mean()):.2f}" for s in SPLITS] if missing else []
        rows[-1] += [f"{value:.2f}" for value in published.get(name, ())] if shown else []
    columns = [kind, "train accuracy", "test accuracy"]
    columns += ["train missing", "test missing"] if missing else []
    columns += ["Table 3 train", "Table 3 test"] if shown else []
    _table(out, columns, rows)
    if missing and (kind == "annotator" or not dataset.annotators):  # print it once
        out.print(
            "Accuracy is that of the answers given. A missing answer is left out of the training, and no test image is "
            "deferred to an expert who gave none, because that could not be scored."
        )
    if kind == "expert":
        any_right = (np.any([a[s] == labels[s] for a in answers.values()], axis=0) for s in SPLITS)
        out.print(
            "At least one expert is right on {:.2f} of train and {:.2f} of test.".format(
                *(100 * r.mean() for r in any_right)
            )
        )


def _memory(out: Console, dataset: Dataset, place: Place, expert_bytes: int, system: System | None) -> None:
    resident = {s: i.pixels.nbytes for s in SPLITS if isinstance(i := getattr(dataset, s).inputs, Images)}
    feed = {s: "resident" if s in resident else "stream" for s in SPLITS}
    rows = [(f"{s} images ({feed[s]})", _size(resident[s]) if s in resident else "a few batches") for s in SPLITS]
    rows.append(("expert tables", _size(expert_bytes)))
    if system:
        weights = sum(p.nbytes for p in system.parameters())
        rows.append((f"model ({sum(p.numel() for p in system.parameters()):,} parameters)", _size(weights)))
        rows.append(("its gradients", _size(weights)))
    rows.append(("free now", _size(available_memory())))
    _table(out, [f"memory on {place.device}", ""], rows)
    out.print("The optimiser's state and the activations of a batch come on top.")


def _labels(dataset: Dataset, split: str) -> np.ndarray:
    return getattr(dataset, split).labels.numpy()


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _table(out: Console, columns: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Columns of text, the first to the left and the others to the right; readable in a file as on a terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position and column != "extremes" else "left")
    for row in rows:
        table.add_row(*(visible(str(cell)) for cell in row))
    out.print()
    out.print(table)
