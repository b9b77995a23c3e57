"""CIFAR with people's answers: CIFAR-10N and CIFAR-100N (training images), CIFAR-10H (test images). A part of the images that
were answered is the test split, since the other images have no answers."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypedDict, Unpack

import numpy as np
from annotated_types import Ge, Interval

from l2d.data.cifar import CIFAR10, CIFAR100, Files, Part, Release, file_bytes, list_files, load
from l2d.data.dataset import Dataset, listed_by
from l2d.data.features import draw_rows
from l2d.data.pickles import load_torch
from l2d.errors import UserError

CIFAR10N = ("random_label1", "random_label2", "random_label3", "aggre_label", "worse_label")
CIFAR100N = ("noisy_label",)

Answers = dict[str, np.ndarray]  # person -> answers [N]


class PeopleSettings(TypedDict):
    """Settings that the datasets of this module share."""

    root: str
    human: str  # the file of answers, below the root or anywhere
    download: bool
    verify: bool
    test_share: Annotated[float, Interval(gt=0, lt=1)]  # of the images that people answered
    seed: int  # of the split, and of the people that are drawn


def list_people(release: Release, part: Part, root: str, download: bool, human: str) -> Files:
    """The files of the images and that of the answers."""
    return Files([*list_files(release, (part,), root, download).paths, find_human(root, human)])


@listed_by(partial(list_people, CIFAR10, "train"))
def cifar10n(name: str, **settings: Unpack[PeopleSettings]) -> Dataset:
    """CIFAR-10's training images: three people, their majority (`aggre_label`) and the worst of them (`worse_label`)."""
    return _people(name, CIFAR10, "train", settings, partial(read_noisy, CIFAR10N))


@listed_by(partial(list_people, CIFAR100, "train"))
def cifar100n(name: str, **settings: Unpack[PeopleSettings]) -> Dataset:
    """CIFAR-100's training images, and one person's answer to each."""
    return _people(name, CIFAR100, "train", settings, partial(read_noisy, CIFAR100N))


@listed_by(partial(list_people, CIFAR10, "test"))
def cifar10h(name: str, people: Annotated[int, Ge(1)], **settings: Unpack[PeopleSettings]) -> Dataset:
    """CIFAR-10's test images: `people` answers to each, drawn from those that about 50 people gave."""
    return _people(name, CIFAR10, "test", settings, partial(draw_people, people, settings["seed"]))


def _people(
    name: str, release: Release, part: Part, settings: PeopleSettings, read: Callable[[Path, np.ndarray, int], Answers]
) -> Dataset:
    """One part of a release with the answers that `read` finds to its images, split by seed."""
    import torch

    file = find_human(settings["root"], settings["human"])
    loaded = load(release, (part,), settings["root"], settings["download"], settings["verify"])
    whole = loaded.splits[part]
    answers = read(file, whole.labels.numpy(), len(loaded.class_names))
    share = settings["test_share"]
    if not 0 < round(share * len(whole)) < len(whole):
        raise UserError(
            f"dataset.test_share={share:g} of {len(whole)} images leaves one split without any; choose another share."
        )
    rows = draw_rows(len(whole), share, settings["seed"])
    train, test = (whole.take(torch.from_numpy(rows[split])) for split in ("train", "test"))
    annotators = {who: {split: given[index] for split, index in rows.items()} for who, given in answers.items()}
    return Dataset(name, loaded.class_names, train, test, loaded.groups, annotators)


def find_human(root: str, human: str) -> Path:
    """The file of answers, below the root or as it is named."""
    found = next((path for path in (Path(root) / human, Path(human).expanduser()) if path.is_file()), None)
    if found is None:
        raise UserError(
            f"dataset.human={human} is no file, neither below dataset.root={root} nor itself; name the file of answers."
        )
    return found


def read_noisy(people: tuple[str, ...], file: Path, labels: np.ndarray, num_classes: int) -> Answers:
    """The answers [N] of these people to images with these labels [N], from the file that CIFAR-N distributes."""
    try:
        found = load_torch(file_bytes(file))
        columns = {key: np.asarray(found[key]).reshape(-1) for key in ("clean_label", *people)}
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(
            f"dataset.human={file} does not hold clean_label, {', '.join(people)} as CIFAR-N distributes them ({error})."
        ) from error
    for key, column in columns.items():
        if (
            column.shape != labels.shape
            or column.dtype.kind not in "iu"
            or column.min() < 0
            or column.max() >= num_classes
        ):
            raise UserError(
                f"dataset.human={file}: {key} must be {len(labels)} classes from 0 to {num_classes - 1}, one for every image."
            )
    wrong = int((columns.pop("clean_label") != labels).sum())
    if wrong:
        raise UserError(
            f"dataset.human={file}: its clean_label differs from the labels of {wrong} of {len(labels)} images, so they are in another "
            "order; use the files of the images as they are distributed."
        )
    return columns


def draw_people(people: int, seed: int, file: Path, labels: np.ndarray, num_classes: int) -> Answers:
    """The answers [N] of `people` persons, each drawn for every image from the counts or probabilities [N, K] in a file.

    Person j has a random stream of its own, so its answers do not depend on how many people are drawn.
    """
    try:
        votes = np.lib.format.read_array(io.BytesIO(file_bytes(file)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"dataset.human={file} is not an array of numbers in numpy's format ({error}).") from error
    shape = (len(labels), num_classes)
    if (
        votes.shape != shape
        or votes.dtype.kind not in "iuf"
        or not (votes >= 0).all()
        or not (votes.sum(axis=1) > 0).all()
    ):
        raise UserError(
            f"dataset.human={file} must hold counts or probabilities {list(shape)}, a row for every test image; it has {list(votes.shape)}."
        )
    right = float((votes.argmax(axis=1) == labels).mean())
    if right < 0.5:  # it is 0.99 in the order that both are distributed in
        raise UserError(
            f"dataset.human={file}: the most frequent answer is right on {100 * right:.1f}% of the images, so they are in another order; "
            "use the files of the images as they are distributed."
        )
    cumulative = votes.cumsum(axis=1)  # [N, K]
    answers = {}
    for j in range(people):
        u = np.random.default_rng([seed, j]).random(len(labels)) * cumulative[:, -1]  # [N]
        answers[f"person_{j}"] = (u[:, None] >= cumulative).sum(axis=1)
    return answers
