"""The gallery of a run: which of its test images it kept and deferred most readily, and which wrongly."""

import base64
import io
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import escape

from l2d.data.load import load_dataset
from l2d.errors import UserError, visible
from l2d.report.again import Again
from l2d.report.style import short
from l2d.tracking.trained import refuse_other_data

if TYPE_CHECKING:  # torch takes seconds to import
    from PIL import Image
    from torch import Tensor

    from l2d.evaluation.outcome import Outcome

SIDE = 112  # pixels of the longer side of a thumbnail
LOSSLESS = 48  # up to this size a thumbnail is a PNG: JPEG would blur the few pixels that there are
FIRST, MOST = 24, 150  # images of a group that are shown in any case, and at most
MARKUP = 600  # bytes of a card beside its thumbnail and its lines, at most
MAX_ANSWERS = 6  # of experts who were not asked

Pictures = Callable[
    [list[int]], "Iterator[Image.Image | None]"
]  # positions in the outcome -> their images, None: not readable


class Line(NamedTuple):
    """What somebody said about an image."""

    text: str
    state: str  # right, wrong or none
    used: bool = False  # it was asked for, or it is the answer


class Card(NamedTuple):
    """An image of the gallery."""

    src: str  # a data URI; empty: it cannot be read
    name: str
    label: str
    number: int  # of its true class, for the filter
    experts: str  # the numbers of those who were asked or, if nobody was, of whom asking was worth most
    lines: list[Line]

    def size(self) -> int:
        """An upper bound of its bytes in the page."""
        texts = [self.name, self.name, self.label, *(line.text for line in self.lines)]
        return len(self.src) + MARKUP + sum(len(escape(text).encode()) + 60 for text in texts)


class Group(NamedTuple):
    """Samples that have something in common, the most telling ones first."""

    title: str
    legend: str
    order: list[int]


class Shelf(NamedTuple):
    """A group as it is shown."""

    title: str
    legend: str
    total: int  # samples of the group, shown or not
    cards: list[Card]


def gallery(outcome: "Outcome", pictures: Pictures, room: int) -> list[Shelf]:
    """The groups with the images that fit into `room` bytes: the first ones of each, then those of as many classes as possible."""
    from l2d.inference.samples import ids_of

    found, ids = groups(outcome), ids_of(outcome)
    queues = [_wanted(group.order, outcome.labels.tolist()) for group in found]
    chosen: list[dict[int, Card]] = [{} for _ in found]
    used = 0
    in_turns = [(g, i) for turn in zip_longest(*queues) for g, i in enumerate(turn) if i is not None]
    positions = list(dict.fromkeys(i for _, i in in_turns))
    seen, images = {}, zip(positions, pictures(positions), strict=True)
    for g, i in in_turns:
        while i not in seen:
            position, image = next(images)
            seen[position] = "" if image is None else thumbnail(image)
        card = _card(outcome, i, ids[i], seen[i])
        used += card.size()
        if used > room:
            break
        chosen[g][i] = card
    return [
        Shelf(group.title, group.legend, len(group.order), [cards[i] for i in group.order if i in cards])
        for group, cards in zip(found, chosen, strict=True)
    ]


def groups(outcome: "Outcome") -> list[Group]:
    """Confidently kept, gainfully deferred, wrongly kept, wrongly deferred."""
    decision = outcome.decision
    gain, kept = decision.margin.double(), ~decision.deferred  # [N], [N]
    compared = gain.isfinite()  # somebody could be asked
    return [
        Group(
            "Most confidently kept",
            "Answered by the system; asking anybody was worth least.",
            _ordered(kept & compared, -gain),
        ),
        Group(
            "Most gainfully deferred",
            "Somebody was asked; by its beliefs the system gained most by asking.",
            _ordered(~kept, gain),
        ),
        Group(
            "Wrongly kept",
            "The system answered and was wrong, and the expert whom asking was worth most was right; the most confident first.",
            _ordered(kept & compared & ~outcome.right & outcome.expert_right, -gain),
        ),
        Group(
            "Wrongly deferred",
            "Somebody was asked and the answer was wrong, and the system itself would have been right; the largest believed gain first.",
            _ordered(~kept & ~outcome.right & outcome.classifier_right, gain),
        ),
    ]


def pictures_of(again: Again) -> Pictures | None:
    """How to get at the test images of a run; None where its inputs are no images. UserError where they are not within reach or are
    no longer those of the run: only the files that are shown are decoded, but all are compared with those that it was trained on."""
    from l2d.data import Images
    from l2d.data.pictures import file_picture, pixel_pictures

    cfg, outcome = again.cfg, again.outcomes["test"]
    shape = (again.run.result.get("preprocessing") or {}).get("shape")
    if not isinstance(shape, list):
        raise UserError("Its result.json does not say what its inputs are.")
    if len(shape) != 3:
        return None
    refuse_other_data(cfg, again.run)
    root, ids = cfg.dataset.get("root"), outcome.ids
    if root and ids and (Path(root) / ids[0]).is_file():
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in ids):
            raise UserError("The kept outcome names images that are not below dataset.root.")

        def read(name: str) -> "Image.Image | None":
            try:
                return file_picture(Path(root) / name, SIDE)
            except UserError:
                return None

        return lambda positions: (read(ids[i]) for i in positions)
    inputs, samples = load_dataset(cfg).test.inputs, outcome.samples
    if not isinstance(inputs, Images):
        raise UserError(f"Its inputs are kept as {type(inputs).__name__}, which cannot be shown.")
    numbers = list(range(len(outcome.labels))) if samples is None else samples.tolist()
    return lambda positions: iter(pixel_pictures(inputs.pixels[[numbers[i] for i in positions]]))


def thumbnail(image: "Image.Image") -> str:
    """A small image as a data URI."""
    image.thumbnail((SIDE, SIDE))
    kind, options = ("PNG", {"optimize": True}) if max(image.size) <= LOSSLESS else ("JPEG", {"quality": 78})
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _ordered(among: "Tensor", value: "Tensor") -> list[int]:
    """The samples `among` [N], by descending value [N]."""
    rows = among.nonzero().squeeze(1)
    order: list[int] = rows[value[rows].argsort(descending=True, stable=True)].tolist()
    return order


def _wanted(order: list[int], labels: list[int]) -> list[int]:
    """The first ones in their order; then one of each class in turn, so that filtering by class finds something."""
    seen: dict[int, int] = {}
    turns = []
    for rank, i in enumerate(order):
        turn = seen[labels[i]] = seen.get(labels[i], -1) + 1
        turns.append((rank >= FIRST, turn if rank >= FIRST else 0, rank))
    return [order[rank] for *_, rank in sorted(turns)[:MOST]]


def _card(outcome: "Outcome", i: int, name: str, src: str) -> Card:
    """Sample i: what the system would have answered, what those said who were asked, then the others, the best to ask first."""
    from l2d.inference.samples import names_of

    classes, experts = ([short(visible(name)) for name in names] for names in names_of(outcome))
    decision, label, best = outcome.decision, int(outcome.labels[i]), int(outcome.decision.expert[i])
    predicted, asked = int(decision.predicted[i]), decision.asked[i].nonzero().squeeze(1).tolist()
    beliefs, answers = outcome.beliefs[i].tolist(), outcome.answers[i].tolist()  # [K+J], [J]

    def said(who: str, answer: int, belief: float | None, used: bool) -> Line:
        sure = "" if belief is None or outcome.vouches_for == "none" else f", {100 * belief:.0f} %"
        state = "none" if answer < 0 else "right" if answer == label else "wrong"
        return Line(f"{who}{sure}: {'no answer' if answer < 0 else classes[answer]}", state, used)

    def of_expert(j: int) -> Line:
        known = outcome.vouches_for == "all" or j == best
        return said(experts[j], answers[j], beliefs[len(classes) + j] if known else None, j in asked)

    lines = [said("system", predicted, beliefs[predicted], not asked), *map(of_expert, asked)]
    if len(asked) > 1:
        lines.append(said("together", int(outcome.answer[i]), None, True))
    others = sorted((j for j in range(len(experts)) if j not in asked), key=lambda j: j != best)
    lines += map(of_expert, others[:MAX_ANSWERS])
    if rest := [answers[j] for j in others[MAX_ANSWERS:] if answers[j] >= 0]:
        right = rest.count(label)
        lines.append(Line(f"{len(rest)} more: {right} right, {len(rest) - right} wrong", "none"))
    who = asked or ([best] if decision.margin[i].isfinite() else [])
    return Card(src, visible(name), classes[label], label, " ".join(map(str, who)), lines)
