"""Simulates experts: draws a table of predictions [N, J] from accuracies or confusion matrices and the labels."""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from l2d.data.dataset import MISSING

_CHUNK = 1 << 16
DIFFICULTY, SILENCE, MEMBER = 1, 2, 3  # what is drawn from a random stream beside those of the answers
_BELOW_1 = np.nextafter(1.0, 0.0)


class Drawing(NamedTuple):
    """How simulated experts answer; the framework's own settings, which no pattern of experts needs to know."""

    seed: int = 0
    resample: str = "once"  # or per_epoch
    correlation: float = 0.0  # of their difficulty with a sample, in [0, 1)
    answer_rate: float = 1.0  # the share of answers that are given, in (0, 1]
    distinct: int | None = None  # the first so many answer for themselves, the others are copies of them in turn
    shift: dict[str, float] | None = None  # expert -> what its accuracies are multiplied by on the test split

    def originals(self, num: int) -> np.ndarray:
        """[num] whose answers each of `num` simulated experts gives: its own or, if it is a copy, those of its original.

        >>> Drawing(distinct=2).originals(5).tolist()
        [0, 1, 0, 1, 0]
        """
        return np.arange(num) % (self.distinct or num)


def draw(matrix: np.ndarray, labels: np.ndarray, drawing: Drawing, stream: int, epoch: int = 0) -> np.ndarray:
    """The table [N, J] of simulated experts in an epoch, MISSING where one does not answer.

    How difficult a sample is, and who answers it, are facts about the samples of a stream: the same in every epoch. A copy
    says what its original says, and nothing where that one says nothing.
    """
    seed, correlation, answer_rate = drawing.seed, drawing.correlation, drawing.answer_rate
    difficulty = random_stream(seed, stream, key=DIFFICULTY).standard_normal(len(labels)) if correlation else None
    table = simulate(matrix[: drawing.distinct], labels, seed, stream + epoch, correlation, difficulty)
    if answer_rate < 1:
        for j, column in enumerate(table.T):
            rng = random_stream(seed, stream, j, key=SILENCE)
            for start in range(0, len(column), _CHUNK):
                part = column[start : start + _CHUNK]
                part[rng.random(len(part)) >= answer_rate] = MISSING
    copies = table.shape[1] < len(matrix)
    return table.take(drawing.originals(len(matrix)), axis=1) if copies else table


def simulate(
    matrix: np.ndarray,
    labels: np.ndarray,
    seed: int,
    stream: int = 0,
    correlation: float = 0.0,
    difficulty: np.ndarray | None = None,
) -> np.ndarray:
    """Predictions [N, J]: from accuracies A [J, K], expert j answers y with probability A[j, y], else uniformly one of the
    other K-1 classes; from confusions C [J, K, K], it answers a with probability C[j, y, a].

    One uniform number u decides an answer: u < A means correct, and the rest of the interval is split evenly among the
    wrong classes; or u is looked up in the cumulative sums of C. Expert j has a random stream of its own, so its answers
    depend on (seed, stream, j) alone: not on how many experts there are, nor on the device or the batches the table is
    later read in.

    With a correlation rho, the experts share the difficulty d [N] of the samples, standard normal: see `accuracy_given`.
    """
    num_experts, num_classes = matrix.shape[:2]
    labels = np.asarray(labels)
    table = np.empty((len(labels), num_experts), dtype=table_dtype(num_classes))  # [N, J]
    for j in range(num_experts):
        rng = random_stream(seed, stream, j)
        for start in range(0, len(labels), _CHUNK):  # bounds the memory to the table itself
            some = slice(start, start + _CHUNK)
            y = labels[some]
            hard = difficulty[some] if difficulty is not None else None
            table[some, j] = _answers(matrix[j], y, rng.random(len(y)), correlation, hard)
    return table


def accuracy_given(difficulty: np.ndarray, accuracy: np.ndarray, correlation: float) -> np.ndarray:
    """Phi((Phi^-1(A) - sqrt(rho) d) / sqrt(1 - rho)) [N]: how often an expert of accuracy A is right on samples of difficulty d.

    This is the probability, given d, of Phi^-1(A) > sqrt(rho) d + sqrt(1 - rho) e with a standard normal e of the expert's
    own. Over all d it is A: correlation changes who fails together, not how often anybody fails.

    >>> accuracy_given(np.array([-1.0, 0.0, 1.0]), np.array([0.75, 0.75, 0.75]), 0.5).round(3).tolist()
    [0.975, 0.83, 0.482]
    """
    accuracies: np.ndarray = ndtr((ndtri(accuracy) - np.sqrt(correlation) * difficulty) / np.sqrt(1 - correlation))
    return accuracies


def _answers(
    expert: np.ndarray, y: np.ndarray, u: np.ndarray, correlation: float, difficulty: np.ndarray | None
) -> np.ndarray:
    """What one expert, of accuracies [K] or confusions [K, K], answers to samples of the classes y [n]."""
    right = (expert if expert.ndim == 1 else expert.diagonal() / expert.sum(axis=1))[y]  # [n] how often it is right
    if difficulty is not None:
        right = accuracy_given(difficulty, right, correlation)
    if expert.ndim == 1:
        return _by_accuracy(right, y, u, len(expert))
    return _by_confusion(expert, y, u) if difficulty is None else _by_given_confusion(expert, y, u, right)


def _by_accuracy(right: np.ndarray, y: np.ndarray, u: np.ndarray, num_classes: int) -> np.ndarray:
    other = ((u - right) / np.maximum(1 - right, 1e-12) * (num_classes - 1)).astype(np.int64)
    other = np.clip(other, 0, max(num_classes - 2, 0))
    other += other >= y
    return np.where(u < right, y, other)


def _by_confusion(confusion: np.ndarray, y: np.ndarray, u: np.ndarray) -> np.ndarray:
    answers = np.empty_like(y)
    for k in np.unique(y):
        answers[y == k] = _look_up(confusion[k], u[y == k])
    return answers


def _by_given_confusion(confusion: np.ndarray, y: np.ndarray, u: np.ndarray, right: np.ndarray) -> np.ndarray:
    """As `_by_accuracy`, with wrong answers in the proportions of the confusion."""
    answers = y.copy()
    for k in np.unique(y[u >= right]):
        failed = (y == k) & (u >= right)
        mistakes = np.where(np.arange(len(confusion)) == k, 0, confusion[k])  # [K]
        rest = (u[failed] - right[failed]) / (1 - right[failed])  # uniform
        answers[failed] = _look_up(mistakes, np.minimum(rest, _BELOW_1))
    return answers


def _look_up(probabilities: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Answers [n] with these probabilities [K], from u uniform in [0, 1)."""
    cumulative = probabilities.cumsum()
    cumulative /= cumulative[-1]  # ends at exactly 1, so u < 1 always finds an answer of positive probability
    return np.searchsorted(cumulative, u, side="right")


def random_stream(*numbers: int, key: int | None = None) -> np.random.Generator:
    """A generator that depends on these numbers and the key alone."""
    spawned = () if key is None else (key,)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(list(numbers), spawn_key=spawned)))


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
