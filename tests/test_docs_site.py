"""The documentation site: built once, strictly; complete, without broken links, and without the network."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from filelock import FileLock
from test_report_page import CHROMIUM, FLAGS
from test_rooms import GROUND, ROOMS

from l2d.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name != "hydra")
LOADING = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
PHONE = 390  # pixels
ON_A_PHONE = [
    "index.html", "overview.html", "examples.html", "tour.html", "decisions.html", "theory.html", "benchmark.html", "files.html", "architecture.html",
    "reference/settings/index.html", "reference/settings/experts.html", "reference/settings/experiment.html",
    "reference/api/index.html", "reference/api/l2d.losses.html", "reference/commands.html",
]  # fmt: skip


class Section:
    """What stands between two headings."""

    def __init__(self) -> None:
        self.text, self.code, self.rows = "", [], []  # rows of the tables: the text of their cells


class HtmlPage(HTMLParser):
    """A built page: ids, links, what it loads, and its sections by the id of their second-level heading."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.sections = {"": Section()}
        self.place, self.inside = "", []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given["id"]} if given.get("id") else set()
        self.links += [given["href"]] if tag == "a" and given.get("href") else []
        self.loads += [given[LOADING[tag]]] if given.get(LOADING.get(tag, "")) else []
        if tag == "h2" and given.get("id"):
            self.place = given["id"]
            self.sections[self.place] = Section()
        section = self.sections[self.place]
        if tag == "tr":
            section.rows.append([])
        elif tag == "td":
            section.rows[-1].append("")
        elif tag == "pre":
            section.code.append("")
        self.inside += [tag] if tag in ("td", "pre") else []

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data):
        section = self.sections[self.place]
        section.text += data
        if self.inside and self.inside[-1] == "td":
            section.rows[-1][-1] += data
        elif self.inside:
            section.code[-1] += data


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder of the built site; of several processes of pytest one builds it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "docs_site"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
            assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="session")
def pages(site) -> dict[str, HtmlPage]:
    """Path below the site -> page."""
    files = [file for file in site.rglob("*.html") if file.name != "404.html"]  # its links begin with /
    return {str(file.relative_to(site)): HtmlPage(file.read_text()) for file in files}


def leaves(tree: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted key and value of everything that is not a mapping."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def own_and_other(group: str, file: Path) -> tuple[dict, dict]:
    """The keys of an option in its own group, and the full names of those that it sets in others."""
    content = yaml.safe_load(file.read_text())
    content.pop("defaults", None)
    if not file.read_text().startswith("# @package _global_"):
        return content, {}
    return content.pop(group, {}), dict(leaves(content))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_option_and_key_is_in_the_reference_with_its_default_and_meaning(pages, group):
    page = pages[f"reference/settings/{group}.html"]
    for file in sorted((CONF / group).glob("*.yaml")):
        section = page.sections[file.stem]
        own, other = own_and_other(group, file)
        if not own:  # an overlay is shown as it is
            assert yaml.safe_load(section.code[-1]) == yaml.safe_load(file.read_text())
            continue
        target = own.pop("_target_", None)
        assert target is None or f"Calls {target}." in section.text
        rows = {row[0]: row[1:] for row in section.rows if row}
        assert {key: yaml.safe_load(default) for key, (default, _) in rows.items()} == {
            f"{group}.{key}": value for key, value in own.items()
        }
        assert all(meaning.strip() for _, meaning in rows.values()), f"{file}: a key has no comment"
        for key, value in other.items():
            assert f"{key}={value}" in section.text


@pytest.mark.slow
def test_every_key_without_a_group_and_hydras_files_are_in_the_reference(pages):
    main_file = yaml.safe_load((CONF / "train.yaml").read_text())
    hydra, defaults = main_file.pop("hydra"), main_file.pop("defaults")
    overview = pages["reference/settings/index.html"]
    rows = {row[0]: row[1] for row in overview.sections["keys-without-a-group"].rows if row}
    assert {key: yaml.safe_load(default) for key, default in rows.items()} == main_file
    chosen = {row[0]: row[1] for row in overview.sections["groups"].rows if row}
    known = {group: option for entry in defaults if isinstance(entry, dict) for group, option in entry.items()}
    assert chosen == {group: known[group] or "none" for group in GROUPS}
    shown = [
        yaml.safe_load(code)
        for section in pages["reference/settings/hydra.html"].sections.values()
        for code in section.code
    ]
    files = [*sorted((CONF / "hydra").glob("*/*.yaml")), CONF / "wandb_sweep.yaml"]
    assert len(files) > 3 and all(yaml.safe_load(file.read_text()) in shown for file in files)
    assert {"hydra": hydra} in shown


@pytest.mark.slow
def test_every_command_is_in_the_reference_with_its_help(pages, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    sections = pages["reference/commands.html"].sections
    for name, command in COMMANDS.items():
        try:
            main([name, "--help"])
        except SystemExit as end:
            assert end.code == 0
        assert sections[f"l2d-{name}"].code == [capsys.readouterr().out.rstrip() + "\n"]
        assert command.summary[1:] in sections[f"l2d-{name}"].text
    scripts = {row[0] for row in sections["scripts"].rows if row}
    assert scripts == {f"scripts/{file.name}" for file in (ROOT / "scripts").iterdir() if os.access(file, os.X_OK)}


@pytest.mark.slow
def test_the_python_api_is_in_the_reference(pages):
    import l2d
    from l2d import data, decisions, evaluation, experts, losses, systems

    for package in (l2d, data, decisions, evaluation, experts, losses, systems):
        shown = pages[f"reference/api/{package.__name__}.html"].sections
        names = {place.rpartition(".")[2] for place in shown if place.startswith(package.__name__)}
        assert [name for name in package.__all__ if name[0] != "_" and name not in names] == []
    picce = pages["reference/api/l2d.losses.html"].sections["l2d.losses.picce"].text
    assert " ".join((losses.picce.__doc__ or "").split()) in " ".join(picce.split())


@pytest.mark.slow
def test_every_page_of_docs_is_in_the_navigation(pages):
    start = set(pages["index.html"].links)
    written = {f"{file.stem}.html" for file in (ROOT / "docs").glob("*.md")}
    assert written - start <= {"index.html"}
    assert {"overview.html", "contributing.html", "examples.html", "tour.html"} <= start


@pytest.mark.slow
def test_the_notebook_is_a_page_with_its_code_and_figures(pages, site):
    cells = json.loads((ROOT / "examples" / "tour.ipynb").read_text())["cells"]
    page = pages["tour.html"]
    code = "\n".join(code for section in page.sections.values() for code in section.code)
    assert all("".join(cell["source"]) in code for cell in cells if cell["cell_type"] == "code")
    images = [
        output["data"]["image/png"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output["data"]
    ]
    assert [(site / load).read_bytes() for load in page.loads if "tour-" in load] == [
        b64decode(image) for image in images
    ]


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_every_anchor_exists(pages, site):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (site / path).parent / unquote(parts.path) if parts.path else site / path
            target = target / "index.html" if target.is_dir() else target
            name = os.path.relpath(target, site)
            exists = name in pages if target.suffix == ".html" else target.is_file()
            if not exists or (parts.fragment and unquote(parts.fragment) not in {*pages[name].ids, "__top"}):
                broken.append(f"{path}: {link}")
    assert broken == []


def from_network(address: str) -> bool:
    return re.match(r"(?:[a-z]+:)?//", address.strip(), re.IGNORECASE) is not None


@pytest.mark.slow
def test_no_page_loads_anything_from_the_network(pages, site):
    assert (
        from_network("https://cdn.example/a.js") and from_network("//cdn.example/a.js") and not from_network("a/b.js")
    )
    loads = {path: page.loads for path, page in pages.items()}
    assert all(loads.values())
    assert [f"{path}: {load}" for path, of_page in loads.items() for load in of_page if from_network(load)] == []
    sheets = [*site.rglob("*.css")]
    urls = [
        url for sheet in sheets for url in re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", sheet.read_text())
    ]
    assert sheets and urls and not [url for url in urls if from_network(url)]


def test_the_picture_has_every_room_in_the_order_of_imports():
    picture = (ROOT / "docs" / "rooms.svg").read_text()
    numbered = re.findall(r'class="room"[^>]*>(\d+) (\w+)<', picture)
    assert [name for _, name in sorted((int(number), name) for number, name in numbered)] == ROOMS[len(GROUND) :]
    assert [name for name in GROUND if not re.search(rf"\b{name}\b", picture)] == []
    assert [name for name in COMMANDS if not re.search(rf"\b{name}\b", picture)] == []


def test_the_install_page_names_every_extra():
    extras = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert sorted(extras) == sorted(re.findall(r"^([\w-]+) = ", project, re.MULTILINE))


WIDTHS = """<!doctype html><pre id="said"></pre><script>
const pages = %s;
for (const page of pages) {
  const frame = document.createElement("iframe");
  frame.width = %d; frame.height = 800; frame.src = page;
  frame.onload = () => setTimeout(() => {
    const root = frame.contentDocument.documentElement;
    document.getElementById("said").textContent += `${page} ${root.scrollWidth}\\n`;
  }, 500);
  document.body.append(frame);
}
</script>"""


@pytest.mark.browser
@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(site, tmp_path):
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    root = tmp_path / "root"
    shutil.copytree(site, root)
    (root / "wide.html").write_text("<!doctype html><div style='width: 2000px'>wide</div>")  # a control
    (root / "widths.html").write_text(WIDTHS % (json.dumps([*ON_A_PHONE, "wide.html"]), PHONE))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/widths.html"
        command = [
            CHROMIUM, *FLAGS, "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom", address
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        server.shutdown()
    said = HtmlPage(done.stdout).sections[""].code[0]
    widths = {line.split()[0]: int(line.split()[1]) for line in said.splitlines()}
    assert widths.pop("wide.html") == 2000 + 8  # of the body's margin
    assert widths == dict.fromkeys(ON_A_PHONE, PHONE)
