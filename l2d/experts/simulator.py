"""The one simulator: accuracy matrix and labels in, a table of predictions out."""

import numpy as np

MISSING = -1  # the answer of an annotator who did not answer
_CHUNK = 1 << 16


def simulate(matrix: np.ndarray, labels: np.ndarray, seed: int, stream: int = 0) -> np.ndarray:
    """Predictions [N, J]: expert j answers y with probability A[j, y], else uniformly one of the other K-1 classes.

    One uniform number u decides both: u < A means correct, and the rest of the interval is split evenly among the
    wrong classes. Expert j has a random stream of its own, so its answers depend on (seed, stream, j) alone: not on how
    many experts there are, nor on the device or the batches the table is later read in.
    """
    num_experts, num_classes = matrix.shape
    labels = np.asarray(labels)
    table = np.empty((len(labels), num_experts), dtype=table_dtype(num_classes))  # [N, J]
    for j in range(num_experts):
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream, j])))
        for start in range(0, len(labels), _CHUNK):  # bounds the memory to the table itself
            y = labels[start : start + _CHUNK]
            u, a = rng.random(len(y)), matrix[j, y]
            other = ((u - a) / np.maximum(1 - a, 1e-12) * (num_classes - 1)).astype(np.int64)
            other = np.clip(other, 0, max(num_classes - 2, 0))
            other += other >= y
            table[start : start + _CHUNK, j] = np.where(u < a, y, other)
    return table


def table_dtype(num_classes: int) -> type[np.signedinteger]:
    """The smallest signed integer that holds every class and MISSING."""
    return next(t for t in (np.int8, np.int16, np.int32) if num_classes - 1 <= np.iinfo(t).max)
