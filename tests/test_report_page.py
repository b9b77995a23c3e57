"""The page: self-contained, safe with any name, and in headless Chromium free of errors with filters that work."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from matplotlib import rc_context
from PIL import Image
from test_report import write_run

from l2d.report import load_runs
from l2d.report.blocks import make_blocks
from l2d.report.cell_figures import deferred_to, one_metric
from l2d.report.figures import save_figure
from l2d.report.page import write_page
from l2d.report.style import STYLE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--v=0",
)  # fmt: skip
NASTY = '<script>throw "caught"</script>&"\''


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("page")
    for seed in (0, 1):
        for loss, error in (("ce", 31.0), ("picce_ce", 29.0), ("ova", 35.0), ("picce_ova", 30.0), ("pice_ova", 28.0)):
            write_run(root / "outputs", loss, 4, seed, (error + seed, 60, 50), dataset="synthetic")
    write_run(root / "outputs", "ce", 4, 0, (18.0, 74, 70))
    write_run(root / "outputs", "ce", 8, 0, status="failed", dataset=NASTY, error=NASTY)
    blocks = make_blocks(load_runs(root / "outputs"))
    large = root / "training_curves.png"  # without an SVG beside it: as one that is too large
    Image.new("RGB", (600, 300), "#0072B2").save(large)
    figures = [
        [] if block.runs["status"].eq("failed").all() else drawn(block, root / f"{i}") for i, block in enumerate(blocks)
    ]
    (root / "report").mkdir()
    return write_page(blocks, [[*some, large] for some in figures], root / "report")


def drawn(block, folder: Path) -> list[Path]:
    """Lines, rows and a heat map."""
    with rc_context(STYLE):
        figures = {"system_error": one_metric(block, block.metrics[0]), "deferred_to": deferred_to(block)}
        return [save_figure(figure, folder / name) for name, figure in figures.items()]


class Elements(HTMLParser):
    """Every start tag with its attributes, and whether it or an ancestor is hidden."""

    VOID = ("meta", "link", "img", "br", "input")

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict, bool]] = []
        self.open: list[tuple[str, bool]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        hidden = "hidden" in dict(attrs) or any(h for _, h in self.open)
        self.found.append((tag, dict(attrs), hidden))
        if tag not in self.VOID:
            self.open.append((tag, hidden))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        self.texts.append(data)

    def shown(self, tag: str, **wanted: str) -> list[dict]:
        return [a for t, a, hidden in self.found if t == tag and not hidden and wanted.items() <= a.items()]


def browse(address: str, tmp_path: Path, *more: str) -> tuple[str, list[str]]:
    """What the browser made of the page, and what its console said."""
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *more, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_loads_nothing_from_outside(page):
    elements = Elements(page.read_text())
    sources = [value for _, attrs, _ in elements.found for key, value in attrs.items() if key in ("src", "srcset")]
    assert sources and all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|@import|url\((?!#)", page.read_text())
    assert all(
        href.startswith(("#", "data:image/png;base64,"))
        for href in re.findall(r'xlink:href="([^"]*)"', page.read_text())
    )
    assert [attrs for tag, attrs, _ in elements.found if tag == "link"] == [{"rel": "icon", "href": "data:,"}]


def test_names_and_errors_are_shown_as_they_are(page):
    elements = Elements(page.read_text())
    assert sum(tag == "script" for tag, _, _ in elements.found) == 1
    assert NASTY in [option["value"] for option in elements.shown("option")]
    assert NASTY in elements.texts  # the error of the failed run


def test_links_lead_to_the_run_folders(page):
    links = [attrs["href"] for tag, attrs, _ in Elements(page.read_text()).found if tag == "a"]
    assert len(links) == 12
    assert all((page.parent / unquote(link) / "result.json").is_file() for link in links)


@pytest.mark.browser
@pytest.mark.slow
def test_an_error_on_the_console_is_detected(tmp_path):
    """A control for the tests below."""
    (tmp_path / "broken.html").write_text("<script>throw new Error('caught')</script>")
    assert "caught" in browse((tmp_path / "broken.html").as_uri(), tmp_path, "--dump-dom")[1][0]


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_opens_without_an_error_and_shows_everything(page, tmp_path):
    shot = tmp_path / "page.png"
    dom, said = browse(page.as_uri(), tmp_path, "--dump-dom")
    assert said == []
    elements = Elements(dom)
    assert len(elements.shown("tr", **{"class": "run"})) == 12 and "12 runs" in elements.texts
    assert len(elements.shown("section")) == 3
    browse(page.as_uri(), tmp_path, "--window-size=1300,1000", f"--screenshot={shot}")
    image = Image.open(shot).convert("RGB")
    assert image.size == (1300, 1000)
    colours = {colour: count for count, colour in image.getcolors(1 << 24)}
    assert colours[255, 255, 255] < 0.99 * 1300 * 1000 and len(colours) > 50


@pytest.mark.browser
@pytest.mark.slow
def test_the_address_filters_by_loss_and_dataset(page, tmp_path):
    dom, said = browse(page.as_uri() + "#loss=picce_ova&dataset=synthetic", tmp_path, "--dump-dom")
    elements = Elements(dom)
    assert said == [] and "2 runs" in elements.texts
    assert [s["data-dataset"] for s in elements.shown("section")] == ["synthetic"]
    assert {td["data-loss"] for td in elements.shown("td") if "data-loss" in td} == {"picce_ova"}
    compared = [(row["data-loss"], row.get("data-baseline")) for row in elements.shown("tr") if "data-loss" in row]
    assert set(compared) == {("picce_ova", None), ("picce_ova", "ova")}
    assert len(elements.shown("tr", **{"class": "base"})) == 1  # of CE and OvA with 4 experts
    assert {th["data-column"] for th in elements.shown("th") if "data-column" in th} == {"1"}


@pytest.mark.browser
@pytest.mark.slow
def test_choosing_in_the_boxes_filters_and_an_unknown_address_shows_all(page, tmp_path):
    act = '<script>pick.loss.value = "ce"; pick.loss.dispatchEvent(new Event("change"));</script></body>'
    copy = tmp_path / "copy.html"
    copy.write_text(page.read_text().replace("</body>", act))
    dom, said = browse(copy.as_uri() + "#loss=no_such_loss", tmp_path, "--dump-dom")
    assert said == []
    assert {row["data-loss"] for row in Elements(dom).shown("tr", **{"class": "run"})} == {"ce"}
    dom, _ = browse(page.as_uri() + "#loss=no_such_loss", tmp_path, "--dump-dom")
    assert len(Elements(dom).shown("tr", **{"class": "run"})) == 12


def lines_of(elements: Elements) -> set[str]:
    """The methods of which figures show something."""
    return {group["data-loss"] for group in elements.shown("g") if "data-loss" in group}


@pytest.mark.browser
@pytest.mark.slow
def test_figures_follow_the_filters(page, tmp_path):
    """Of a method that is not chosen no line, band, row, name or entry of a legend is left; of a dataset no figure at all."""
    everything, _ = browse(page.as_uri(), tmp_path, "--dump-dom")
    assert lines_of(Elements(everything)) == {"ce", "picce_ce", "ova", "picce_ova", "pice_ova"}
    assert not Elements(everything).shown("span", **{"class": "unfiltered"})
    dom, said = browse(page.as_uri() + "#loss=picce_ova", tmp_path, "--dump-dom")
    elements = Elements(dom)
    assert said == [] and lines_of(elements) == {"picce_ova"}
    assert [s["data-dataset"] for s in elements.shown("section")] == ["synthetic"]  # the others have no such run
    assert len(elements.shown("svg")) == 2 and len(elements.shown("img")) == 1
    assert len(elements.shown("span", **{"class": "unfiltered"})) == 1  # the PNG cannot be filtered, and says so
    dom, _ = browse(page.as_uri() + "#dataset=cifar100", tmp_path, "--dump-dom")
    assert [s["data-dataset"] for s in Elements(dom).shown("section")] == ["cifar100"]
    assert len(Elements(dom).shown("svg")) == 2 and "pice_ova" not in lines_of(Elements(dom))
