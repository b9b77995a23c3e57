"""The types that all datasets are made of: Split, Dataset, Batch, Source. Importing this does not import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from l2d.place import Place

MISSING = -1  # the answer of an expert who did not answer


class Batch(NamedTuple):
    """The samples of one step, on the device."""

    inputs: Tensor  # [B, ...] float32
    labels: Tensor  # [B]
    answers: Tensor  # [B, J]; MISSING where nobody answered
    samples: Tensor  # [B] their indices in the split


@dataclass(frozen=True)
class Preprocessing:
    """How a stored input becomes a model's; enough to do the same to a new one.

    Images are normalised on their way to the device. Vectors [D] are given as they are: the system standardises them.
    """

    shape: tuple[int, ...]  # [C, H, W] of what the model sees; evaluation takes the centre of larger images; or [D]
    mean: tuple[
        float, ...
    ] = ()  # of pixels in [0, 1], per channel, or of every feature; empty: inputs are used as they are
    std: tuple[float, ...] = ()
    resize: int | None = None  # the shorter side of an image file before the centre is taken
    augment: str = "none"  # of training images; see l2d.data.augment
    # The next two do not change what the model sees of a stored input, so they are no part of what identifies the data.
    stored: str = field(default="", repr=False, compare=False)  # as bytes, floats or files; '': a source of one's own
    columns: tuple[str, ...] = field(
        default=(), repr=False, compare=False
    )  # names of the features, where a table has them


class Feed(Protocol):
    """The inputs of one split on their way to one device.

    A feed with `leaves_none_out = True` promises that every step has exactly the samples that were asked for.
    """

    def epoch(self, order: Sequence[Tensor], epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """From step `start` on: the inputs [B, ...] of the samples `order[step]`, and which samples they are [B]."""


class Source(Protocol):
    """Where the inputs of a split come from: images in memory, files on disk, or any class with these methods."""

    preprocessing: Preprocessing

    def __len__(self) -> int: ...
    def take(self, rows: Tensor) -> Source: ...
    def ids(self) -> Sequence[str] | None: ...
    def digest(self) -> str: ...  # identifies the inputs, in their order, wherever they are
    def feed(self, place: Place, seed: int, train: bool) -> Feed: ...


@dataclass
class Split:
    """Inputs, labels and answers of the same samples. A tensor of inputs [N, C, H, W] becomes `Images`."""

    inputs: Source | Any
    labels: Tensor  # [N] int64
    answers: Tensor = None  # type: ignore[assignment]  # [N, J]; MISSING where nobody answered; J = 0 before experts join
    redraw: Callable[[int], Tensor] | None = None  # epoch -> answers [N, J], where they are drawn again in every epoch

    def __post_init__(self) -> None:
        if not hasattr(self.inputs, "feed"):
            from l2d.data.resident import Images

            self.inputs = Images(cast("Tensor", self.inputs))
        if self.answers is None:
            self.answers = self.labels.new_zeros((len(self.labels), 0))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Split:
        """A split of these rows [n] only."""
        redraw = self.redraw
        return Split(
            self.inputs.take(rows),
            self.labels[rows],
            self.answers[rows],
            None if redraw is None else lambda epoch: redraw(epoch)[rows],
        )


@dataclass
class Dataset:
    """The splits, their classes, and the recorded answers of their annotators."""

    name: str
    class_names: list[str]
    train: Split
    test: Split
    groups: dict[str, list[int]] = field(default_factory=dict)  # group -> its classes, in order
    annotators: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # name -> split -> answers [N]
    posterior: Callable[[Tensor], Tensor] | None = None  # inputs [B, ...] -> eta [B, K], where it is known
    held_out: Split | None = None  # neither trained on nor reported: for what is fitted after training

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def preprocessing(self) -> Preprocessing:
        return self.train.inputs.preprocessing

    @cached_property
    def eta(self) -> Tensor | None:
        """The posterior [N, K] of the test split, where it is known; the runs of a process share it, as they share the dataset."""
        pixels = getattr(self.test.inputs, "pixels", None)
        return None if self.posterior is None or pixels is None else self.posterior(pixels)

    def splits(self) -> dict[str, Split]:
        """By name; held_out only where there is one."""
        splits = {"train": self.train, "test": self.test, "held_out": self.held_out}
        return {name: split for name, split in splits.items() if split is not None}


class Identified(Protocol):
    """A listing of data with a digest that identifies the data."""

    def digest(self) -> str: ...


Function = TypeVar("Function", bound=Callable[..., Dataset])


def listed_by(lister: Callable[..., Identified]) -> Callable[[Function], Function]:
    """Mark a dataset target: `lister`, called with those of its settings that it names, lists the data without decoding an
    input, and the listing's digest identifies it. A dataset without a lister is built and identified by its content."""

    def mark(function: Function) -> Function:
        function.lister = lister  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class Generated:
    """The listing of generated data, which the settings identify completely."""

    def digest(self) -> str:
        return ""


def content_digest(dataset: Dataset) -> str:
    """Identifies a dataset by what it holds: names, labels, answers and inputs (files by their names and contents)."""
    digest = hashlib.sha256(repr((dataset.class_names, dataset.groups, dataset.preprocessing)).encode())
    for split in dataset.splits().values():
        digest.update(split.labels.numpy().tobytes())
        digest.update(split.inputs.digest().encode())
    for name, answers in dataset.annotators.items():
        digest.update(name.encode())
        for split_name in dataset.splits():
            digest.update(answers[split_name].tobytes())
    return digest.hexdigest()
