"""Recorded answers in a file of their own, joined to any dataset whose samples have ids. Importing this does not import torch."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from l2d.data.dataset import MISSING, Dataset
from l2d.data.manifest import cell_text, class_index
from l2d.data.tables import read_rows
from l2d.errors import UserError, notify

ID_COLUMNS = ("id", "path", "file", "name", "image")  # the first that a file has says which sample a row is about
NOT_ANNOTATORS = {*ID_COLUMNS, "split", "label", "annotator", "answer"}

Row = tuple[str, str, Any]  # sample, annotator, answer


def join_answers(dataset: Dataset, file: Path) -> Dataset:
    """The dataset with the annotators of a file added to its own.

    The file is long (a row per answer: id, annotator, answer) or wide (a row per sample: id, and a column per annotator).
    """
    places = _places(dataset, file)
    sizes = {split: len(part) for split, part in dataset.splits().items()}
    joined: dict[str, dict[str, np.ndarray]] = defaultdict(
        lambda: {split: np.full(size, MISSING, np.int16) for split, size in sizes.items()}
    )
    codes: dict[str, int] = {}
    unknown: dict[str, None] = {}
    for sample, annotator, cell in _answers(file):
        text = cell_text(cell, dataset.class_names)
        place = places.get(os.path.normpath(sample))
        if place is None:
            unknown[sample] = None
            continue
        if not text:
            continue
        if text not in codes:
            codes[text] = class_index(text, dataset.class_names, f"{file}, {sample}, {annotator}")
        split, row = place
        given = joined[annotator][split]
        if given[row] != MISSING:
            raise UserError(f"{file} has two answers of {annotator} to {sample}; keep one.")
        given[row] = codes[text]
    if not joined:
        raise UserError(
            f"dataset.annotators={file}: no answer in it is about a sample of dataset={dataset.name}, whose first is called "
            f"{next(iter(places))}."
        )
    if unknown:
        notify(
            f"{file} has answers to {len(unknown)} samples that are not in the dataset, such as {next(iter(unknown))}."
        )
    taken = [name for name in joined if name in dataset.annotators]
    if taken:
        raise UserError(
            f"{file} has answers of {', '.join(taken)}, whom dataset={dataset.name} has already; rename them."
        )
    return replace(dataset, annotators={**dataset.annotators, **joined})


def _places(dataset: Dataset, file: Path) -> dict[str, tuple[str, int]]:
    """id -> its split and row."""
    places: dict[str, tuple[str, int]] = {}
    for split, part in dataset.splits().items():
        names = part.inputs.ids()
        if names is None:
            raise UserError(
                f"dataset.annotators={file}: the samples of dataset={dataset.name} have no ids to join answers by."
            )
        for row, name in enumerate(names):
            key = os.path.normpath(name)
            if key in places:
                raise UserError(
                    f"dataset={dataset.name} has two samples with the id {name}, so answers cannot be joined."
                )
            places[key] = (split, row)
    return places


def _answers(file: Path) -> Iterator[Row]:
    """Every answer of a long or a wide file."""
    rows = read_rows(file, [])
    have = list(dict.fromkeys(column for row in rows for column in row))
    key = next((column for column in ID_COLUMNS if column in have), None)
    if key is None:
        raise UserError(
            f"{file} has no column {' or '.join(ID_COLUMNS)} with the ids of samples; it has {', '.join(have)}."
        )
    if {"annotator", "answer"} <= set(have):
        for row in rows:
            if not (annotator := cell_text(row["annotator"])):
                raise UserError(
                    f"{file} has an answer to {row[key]} without an annotator; name one, or remove the row."
                )
            yield str(row[key]), annotator, row["answer"]
        return
    people = [column for column in have if column not in NOT_ANNOTATORS]
    if not people:
        raise UserError(
            f"{file} needs columns annotator and answer, or a column per annotator; it has {', '.join(have)}."
        )
    for row in rows:
        for person in people:
            yield str(row[key]), person, row.get(person)
