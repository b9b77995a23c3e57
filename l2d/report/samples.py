"""A page per run on what it did with its test samples: confusions, who is asked about what, beliefs and, of images, a gallery."""

import io
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context

import l2d
from l2d.atomic import atomic_write
from l2d.errors import UserError, notify, visible
from l2d.evaluation.by_class import by_class
from l2d.evaluation.metrics import HEADLINE, measure
from l2d.inference.samples import names_of
from l2d.report.again import Again, decide_again, name_left_out
from l2d.report.beliefs import LEAST, beliefs_of, reliability_figure
from l2d.report.figures import slug
from l2d.report.gallery import Shelf, gallery, pictures_of
from l2d.report.heat import heat_maps
from l2d.report.layout import count_of
from l2d.report.methods import label
from l2d.report.style import MANY, STYLE, short
from l2d.report.tables import one_per_seed
from l2d.report.templates import inline, render

FOLDER = "samples"
MAX_PAGE = 4_500_000  # bytes without what the filters list, which is less than half a MB


def write_sample_pages(runs: pd.DataFrame, changes: list[str], out: Path) -> dict[str, Path]:
    """Write a page for every finished run that kept its scores; return folder of the run -> its page. `changes`: rule, costs,
    dataset.root. UserError where no run can have one; then nothing is written."""
    old = set((out / FOLDER).glob("[0-9]*-*.html"))  # of an earlier report
    pages: dict[str, Path] = {}
    left_out: dict[str, list[str]] = {}  # reason -> runs
    for row in one_per_seed(runs[runs["status"] == "finished"]).to_dict("records"):
        folder = Path(row["folder"])
        try:
            again = decide_again(folder, changes, "--samples", also=("dataset.root=",))
        except UserError as error:
            left_out.setdefault(str(error), []).append(folder.name)
            continue
        page = out / FOLDER / f"{len(pages) + 1}-{slug(folder.name)}.html"
        _write(page, _page(row, again, changes))
        pages[row["folder"]] = page
    name_left_out(left_out)
    if not pages:
        raise UserError("--samples: no finished run here can be shown; see the notices above.")
    for page in old - set(pages.values()):
        page.unlink()
    return pages


def _write(page: Path, text: str) -> None:
    atomic_write(page, lambda file: file.write(text.encode()), durable=False, make_parents=True)


def _page(row: dict[str, Any], again: Again, changes: list[str]) -> str:
    """The page with as many images as there is room for."""
    outcome = again.outcomes["test"]
    class_names, expert_names = ([visible(name) for name in names] for names in names_of(outcome))
    beliefs = beliefs_of(outcome, expert_names)
    maps = heat_maps(by_class(outcome), class_names, expert_names)
    values = measure(outcome, HEADLINE)
    whole = {
        "title": f"{label(row['method'])}, {count_of(row['num_experts'])}, seed {row['seed']}",
        "subtitle": f"{row['dataset']}, {row['experts']} experts",
        "folder": visible(row["folder"]),
        "rule": " ".join(changes) or f"rule={again.cfg.rule.get('name')}",
        "metrics": [(metric.label, f"{values[metric.name]:.2f}") for metric in HEADLINE],
        "count": len(outcome.labels),
        "confusions": maps[:2],
        "by_expert": maps[2:],
        "beliefs": beliefs,
        "reliability": _reliability(again, expert_names) if beliefs else None,
        "fewer": len(expert_names) > MANY,
        "least": LEAST,
        "version": l2d.__version__,
    }
    bare = render("samples.html", **whole, **_gallery([], expert_names), without="")
    shelves, without = _shelves(again, MAX_PAGE - len(bare.encode()))
    return render("samples.html", **whole, **_gallery(shelves, expert_names), without=without)


def _gallery(shelves: list[Shelf], expert_names: list[str]) -> dict[str, Any]:
    """The images, and the classes and experts that they can be filtered by."""
    cards = [card for shelf in shelves for card in shelf.cards]
    experts = sorted({int(j) for card in cards for j in card.experts.split()})
    return {
        "shelves": shelves,
        "classes": sorted({(card.number, card.label) for card in cards}),
        "experts": [(j, short(expert_names[j])) for j in experts],
    }


def _shelves(again: Again, room: int) -> tuple[list[Shelf], str]:
    """The gallery in so many bytes, or none and why."""
    try:
        pictures = pictures_of(again)
    except UserError as error:
        notify(f"{again.run.folder.name} has no gallery: {error}")
        return [], str(error)
    if pictures is None:
        return [], "The inputs are vectors."
    return gallery(again.outcomes["test"], pictures, room), ""


def _reliability(again: Again, expert_names: list[str]) -> str:
    """The diagram of the experts by name. The system itself is in it unless the report shows that already (evaluation=full)."""
    drawn = io.StringIO()
    full = (again.run.result.get("evaluation") or {}).get("calibration")
    figure = reliability_figure(again.outcomes["test"], expert_names, with_system=not full)
    with rc_context(STYLE):
        figure.savefig(drawn, format="svg")
    return inline(drawn.getvalue())
