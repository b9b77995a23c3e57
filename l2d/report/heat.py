"""Heat maps of a run as tables with names: what is answered about each class, who is asked, and how right they are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from l2d.report.style import short

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from l2d.evaluation.by_class import ByClass

MOST = 30  # rows and columns of a table; the others are shown together


class Shade(NamedTuple):
    """One cell of a heat map."""

    text: str = ""
    strength: float = 0  # of the colour, from 0 to 1
    kind: str = "share"  # or right, wrong: the colour
    title: str = ""  # what the text is the share of


class HeatMap(NamedTuple):
    title: str
    legend: str
    corner: str
    columns: list[str]
    rows: list[tuple[str, list[Shade]]]


class Shown(NamedTuple):
    """Which names have a place of their own; the others share the last one."""

    names: list[str]
    place: "Tensor"  # [number of all names]
    alone: int  # how many names have a place of their own


def shown(names: Sequence[str], weight: "Tensor", others: str) -> Shown:
    """All names, or where there are too many the ones with the highest weight, in their order."""
    import torch

    if len(names) <= MOST:
        return Shown(list(map(short, names)), torch.arange(len(names)), len(names))
    chosen = weight.argsort(descending=True, stable=True)[:MOST].sort().values  # [MOST]
    place = torch.full((len(names),), MOST)
    place[chosen] = torch.arange(MOST)
    together = f"{len(names) - MOST} other {others}"
    return Shown([*(short(names[i]) for i in chosen.tolist()), together], place, MOST)


def heat_maps(counts: "ByClass", class_names: Sequence[str], expert_names: Sequence[str]) -> list[HeatMap]:
    """The confusion of the system and of the classifier, and for class x expert the share that is asked and its accuracy."""
    errors = counts.system.sum(dim=1) - counts.system.diagonal()  # [K]
    classes = shown(class_names, errors, "classes")
    experts = shown(expert_names, counts.asked[:, 1:].sum(dim=0), "experts")
    maps = [
        _confusion(title, table, classes)
        for title, table in (("System", counts.system), ("Classifier alone", counts.classifier))
    ]
    return [*maps, *_by_expert(counts, classes, experts)]


def _confusion(title: str, table: "Tensor", classes: Shown) -> HeatMap:
    """Rows are true classes, columns are answers, in percent of the row."""
    rows = []
    for k, counts in enumerate(_grouped(table, classes, classes).tolist()):
        total, cells = sum(counts), []
        for a, count in enumerate(counts):
            kind = "share" if k == a == classes.alone else "right" if k == a else "wrong"
            said = f"{classes.names[k]}, answered {classes.names[a]}: {count:,} of {total:,}"
            cells.append(_shade(count, total, kind, said))
        rows.append((classes.names[k], cells))
    legend = "Percent of the samples of a class (row) that are answered so (column); empty: none."
    if len(classes.place) > classes.alone:
        legend += f" The {classes.alone} classes with the most errors of the system; errors among the others are not told apart."
    return HeatMap(title, legend, "true class", classes.names, rows)


def _by_expert(counts: "ByClass", classes: Shown, experts: Shown) -> list[HeatMap]:
    """Whom the system asks about each class, and how often the answer is right; the first column is the system itself."""
    import torch

    columns = experts._replace(
        names=["the system itself", *experts.names], place=torch.cat([torch.zeros(1).long(), experts.place + 1])
    )
    sizes = counts.system.sum(dim=1, keepdim=True)  # [K, 1]
    asked, right, total = (
        torch.cat([part, part.sum(dim=0, keepdim=True)]).tolist()
        for part in (
            _grouped(counts.asked, classes, columns),
            _grouped(counts.right, classes, columns),
            _together(sizes, classes),
        )
    )  # the last row: all classes
    share, accuracy = [], []
    for name, row, hits, (size,) in zip([*classes.names, "all classes"], asked, right, total, strict=True):
        who = list(zip(columns.names, row, hits, strict=True))
        share.append((name, [_shade(n, size, "share", f"{name}, {of}: {n:,} of {size:,} samples") for of, n, _ in who]))
        accuracy.append(
            (name, [_shade(hit, n, "right", f"{name}, {of}: {hit:,} of {n:,} right", zero="0") for of, n, hit in who])
        )
    return [
        HeatMap(
            "Who is asked",
            "Percent of the samples of a class (row) about which each is asked (column); the first column: nobody is, the system answers.",
            "true class",
            columns.names,
            share,
        ),
        HeatMap(
            "How right they are",
            "Percent right, where they were asked; the first column: where the system answered. Empty: never.",
            "true class",
            columns.names,
            accuracy,
        ),
    ]


def _grouped(table: "Tensor", rows: Shown, columns: Shown) -> "Tensor":
    return _together(_together(table, rows).T, columns).T


def _together(table: "Tensor", rows: Shown) -> "Tensor":
    """A table of counts [K, ...] with the rows that share a place added up."""
    return table.new_zeros(len(rows.names), table.shape[1]).index_add(0, rows.place, table)


def _shade(count: int, total: int, kind: str, title: str, zero: str = "") -> Shade:
    if not total:
        return Shade()
    share = count / total
    return Shade(f"{100 * share:.0f}" if count else zero, share, kind, title)
