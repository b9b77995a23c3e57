"""Simulates experts: draws a table of predictions [N, J] from accuracies or confusion matrices and the labels."""

import numpy as np

from l2d.data.dataset import MISSING

_CHUNK = 1 << 16


def simulate(matrix: np.ndarray, labels: np.ndarray, seed: int, stream: int = 0) -> np.ndarray:
    """Predictions [N, J]: from accuracies A [J, K], expert j answers y with probability A[j, y], else uniformly one of the
    other K-1 classes; from confusions C [J, K, K], it answers a with probability C[j, y, a].

    One uniform number u decides an answer: u < A means correct, and the rest of the interval is split evenly among the
    wrong classes; or u is looked up in the cumulative sums of C. Expert j has a random stream of its own, so its answers
    depend on (seed, stream, j) alone: not on how many experts there are, nor on the device or the batches the table is
    later read in.
    """
    num_experts, num_classes = matrix.shape[:2]
    labels = np.asarray(labels)
    table = np.empty((len(labels), num_experts), dtype=table_dtype(num_classes))  # [N, J]
    answers = _by_accuracy if matrix.ndim == 2 else _by_confusion
    for j in range(num_experts):
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream, j])))
        for start in range(0, len(labels), _CHUNK):  # bounds the memory to the table itself
            y = labels[start : start + _CHUNK]
            table[start : start + _CHUNK, j] = answers(matrix[j], y, rng.random(len(y)))
    return table


def _by_accuracy(accuracy: np.ndarray, y: np.ndarray, u: np.ndarray) -> np.ndarray:
    num_classes, a = len(accuracy), accuracy[y]
    other = ((u - a) / np.maximum(1 - a, 1e-12) * (num_classes - 1)).astype(np.int64)
    other = np.clip(other, 0, max(num_classes - 2, 0))
    other += other >= y
    return np.where(u < a, y, other)


def _by_confusion(confusion: np.ndarray, y: np.ndarray, u: np.ndarray) -> np.ndarray:
    cumulative = confusion.cumsum(axis=1)  # [K, K]
    cumulative /= cumulative[:, -1:]  # ends at exactly 1, so u < 1 always finds an answer of positive probability
    answers = np.empty_like(y)
    for k in np.unique(y):
        answers[y == k] = np.searchsorted(cumulative[k], u[y == k], side="right")
    return answers


def confusion_matrix(answers: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """C [K, K]: the frequency of answer a to images of class y, among those that the annotator answered.

    A class without any answer gets the annotator's overall accuracy.
    """
    given = answers != MISSING  # [N]
    counts = np.zeros((num_classes, num_classes))
    np.add.at(counts, (labels[given], answers[given]), 1)
    answered = counts.sum(axis=1, keepdims=True)  # [K, 1]
    accuracy = float(np.mean(answers[given] == labels[given]))
    return np.where(answered > 0, counts / np.maximum(answered, 1), uniform_confusion(accuracy, num_classes))


def uniform_confusion(accuracy: float, num_classes: int) -> np.ndarray:
    """C [K, K] of one accuracy for all classes, wrong answers being equally likely."""
    confusion = np.full((num_classes, num_classes), (1 - accuracy) / max(num_classes - 1, 1))
    np.fill_diagonal(confusion, accuracy)
    return confusion


def table_dtype(num_classes: int) -> type[np.signedinteger]:
    """The smallest signed integer that holds every class and MISSING."""
    return next(t for t in (np.int8, np.int16, np.int32) if num_classes - 1 <= np.iinfo(t).max)
