"""What `l2d data check` says about annotators and experts: accuracy, gaps, overlap, and how far their errors go together."""

from collections.abc import Iterator

import numpy as np

from l2d.data import MISSING
from l2d.inspect.tables import FULL_TABLE, Output, some

Answers = dict[str, dict[str, np.ndarray]]  # name -> split -> answers [N]
Labels = dict[str, np.ndarray]  # split -> labels [N]

FULL_MATRIX = 12  # experts; of more, the mean and the extremes are shown
COMMON = 20  # samples that two experts must both have answered for a correlation of their errors
CHUNK = 1 << 14  # samples at a time
ENDS = (np.min, np.median, np.max)
NOBODY = {  # what follows if no expert answered in a split
    "train": "there is nothing to learn deferral from",
    "test": "nobody can be asked and coverage will be 100",
    "held_out": "no budget can be fitted",
}


def show_accuracies(
    out: Output, kind: str, answers: Answers, labels: Labels, published: dict[str, tuple[float, float]]
) -> list[str]:
    """Accuracy over the answers given, and how many are missing, in every split; returns what the reader should look at."""
    given = {s: np.stack([a[s] != MISSING for a in answers.values()]) for s in labels}  # [J, N]
    right = {s: np.stack([a[s] == y for a in answers.values()]) for s, y in labels.items()}  # [J, N]
    counts = {s: table.sum(1) for s, table in given.items()}  # [J]
    with np.errstate(invalid="ignore"):  # nan where nobody answered
        accuracy = {s: 100 * right[s].sum(1) / counts[s] for s in labels}  # [J]
    missing = not all(table.all() for table in given.values())
    if len(answers) > FULL_TABLE:
        rows = [
            [f"{s} {what}", *(f"{end(v[counts[s] > 0]):{form}}" if counts[s].any() else "-" for end in ENDS)]
            for s in labels
            for what, v, form in (("accuracy", accuracy[s], ".2f"), ("answers", counts[s], ",g"))
        ]
        out.table([f"{len(answers)} {kind}s", "min", "median", "max"], rows)
    else:
        shown = [name for name in answers if name in published]
        rows = []
        for j, name in enumerate(answers):
            row = [name, *(f"{accuracy[s][j]:.2f}" if counts[s][j] else "-" for s in labels)]
            row += [f"{100 - 100 * given[s][j].mean():.2f}" for s in labels] if missing else []
            row += [f"{value:.2f}" for value in published.get(name, ())] if shown else []
            rows.append(row)
        columns = [kind, *(f"{s} accuracy" for s in labels)]
        columns += [f"{s} missing" for s in labels] if missing else []
        columns += ["Table 3 train", "Table 3 test"] if shown else []
        out.table(columns, rows)
    notes = []
    for s in labels:
        if silent := [name for name, count in zip(answers, counts[s], strict=True) if not count]:
            out.print(f"No answer in {s}: {some(silent, 10)}", style="yellow")
            nobody = f", so that {NOBODY[s]}" if len(silent) == len(answers) else ""
            notes.append(f"{len(silent)} of {len(answers)} {kind}s without an answer in {s}{nobody}")
    return notes


def show_gaps(out: Output, answers: Answers, labels: Labels) -> None:
    """Answers per sample, where some are missing: the overlap of a crowd."""
    per_sample = {s: np.sum([a[s] != MISSING for a in answers.values()], axis=0) for s in labels}  # [N]
    if all((number == len(answers)).all() for number in per_sample.values()):
        return
    rows = [
        [s, *(f"{end(n):g}" for end in ENDS), *(f"{100 * share.mean():.2f}" for share in (n == 0, n == 1, n > 1))]
        for s, n in per_sample.items()
    ]
    out.table(["answers per sample", "min", "median", "max", "% with none", "% with one", "% with more"], rows)
    out.print(
        "Accuracy is that of the answers given. A missing answer is left out of the training, and no test sample is "
        "deferred to an expert who gave none, because that could not be scored."
    )


def show_dependence(out: Output, answers: Answers, labels: Labels) -> None:
    """How far the experts fail together: the correlation of their errors in training, and how often any of them is right."""
    names = list(answers)
    if len(names) > 1:
        tables = np.stack([a["train"] for a in answers.values()], axis=1)  # [N, J]
        _show_correlation(out, names, error_correlation(tables, labels["train"]))
        columns = [column.tobytes() for column in tables.T if (column != MISSING).any()]
        if copies := len(columns) - len(set(columns)):
            out.print(f"{copies} of {len(names)} experts answer every training sample exactly as another one does.")
    together, alone = [], []
    for s, y in labels.items():
        both = any_right(np.stack([a[s] for a in answers.values()], axis=1), y)
        together.append(f"{100 * both[0]:.2f} of {s}")
        alone.append(f"{100 * both[1]:.2f} of {s}")
    out.print(f"At least one expert is right on {_list(together)}.")
    if len(names) > 1:
        out.print(f"If experts of these accuracies per class erred independently, it would be {_list(alone)}.")


def error_correlation(answers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[J, J]: the correlation of two experts' errors over the samples that both answered; answers [N, J], labels [N].

    nan where fewer than COMMON samples are common, or one of the two is always right or always wrong on them.
    """
    size = answers.shape[1]
    common, errors, both = (np.zeros((size, size)) for _ in range(3))  # [J, J] each
    for part, truth in _chunks(answers, labels):
        given = (part != MISSING).astype(np.float32)  # [n, J]
        wrong = given * (part != truth[:, None])  # [n, J]
        common += given.T @ given
        errors += wrong.T @ given  # of j, where k answered too
        both += wrong.T @ wrong
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = errors / common  # of j, where k answered too
        spread = rate * (1 - rate)
        correlation = (both / common - rate * rate.T) / np.sqrt(spread * spread.T)
    defined = (common >= COMMON) & (spread * spread.T > 1e-12)
    return np.where(defined, correlation, np.nan)


def any_right(answers: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """How often at least one answer [N, J] is the label [N]; and how often it would be, if every expert erred as often on the
    samples of a class as here, but independently of the others."""
    right, given = answers == labels[:, None], answers != MISSING  # [N, J]
    independent = np.zeros(len(labels))
    for k in np.unique(labels):
        rows = labels == k
        accuracy = right[rows].sum(0) / given[rows].sum(0).clip(1)  # [J]
        independent[rows] = 1 - np.where(given[rows], 1 - accuracy, 1.0).prod(1)
    return float(right.any(1).mean()), float(independent.mean())


def _show_correlation(out: Output, names: list[str], correlation: np.ndarray) -> None:
    """correlation [J, J]"""
    if len(names) <= FULL_MATRIX:
        cells = [["-" if np.isnan(value) else f"{value:.2f}" for value in row] for row in correlation]
        triangle = ([name, *row[: j + 1]] for j, (name, row) in enumerate(zip(names, cells, strict=True)))
        out.table(["correlation of errors", *(name[:8] for name in names)], triangle)
        return
    above = np.triu_indices(len(names), 1)
    pairs = correlation[above]  # [J (J - 1) / 2]
    known = np.flatnonzero(~np.isnan(pairs))
    if not len(known):
        out.print(f"\nCorrelation of errors: no two experts have {COMMON} training samples in common.")
        return
    low, high = known[pairs[known].argmin()], known[pairs[known].argmax()]
    rows = [
        [f"{len(known):,} of {len(pairs):,} pairs", f"{pairs[known].mean():.2f}"]
        + [f"{pairs[i]:.2f} ({names[above[0][i]]}, {names[above[1][i]]})" for i in (low, high)]
    ]
    out.table(["correlation of errors", "mean", "min", "max"], rows)
    out.print(f"Over pairs with at least {COMMON} training samples in common.")


def _chunks(answers: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, len(labels), CHUNK):
        yield answers[start : start + CHUNK], labels[start : start + CHUNK]


def _list(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
