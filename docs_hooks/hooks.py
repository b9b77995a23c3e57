"""MkDocs calls this while it builds the site: adds the generated reference, and the pages that live outside of docs/."""

import posixpath
import re
from functools import partial
from pathlib import Path
from typing import Any

import api_pages
import command_page
import notebook_page
import settings_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "examples/tour.ipynb": "tour.md",
}  # file of the project -> page of the site
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the generated pages, also to the navigation; those from outside of docs/, and the other files that these link to."""
    pages = {
        **settings_pages.pages(),
        **api_pages.pages(),
        "reference/commands.md": command_page.page(ROOT / "scripts"),
    }
    config.nav = with_generated(config.nav or [], list(pages))
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    for name, uri in OUTSIDE.items():
        content, figures = content_of(ROOT / name)
        files.append(File.generated(config, uri, content=LINK.sub(partial(in_site, name=name), content)))
        for path, figure in figures.items():
            files.append(File.generated(config, from_project(path, name), content=figure))
        for link, _ in LINK.findall(content):
            target = from_project(link, name)
            if not target.startswith("docs/") and target not in OUTSIDE and files.get_file_from_path(target) is None:
                files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))


def content_of(file: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a page, and figures that belong to it."""
    return notebook_page.page(file) if file.suffix == ".ipynb" else (file.read_text(), {})


def on_page_markdown(markdown: str, *, page: Page, **others: Any) -> str:
    """Links from docs/ to pages outside of it, which a file viewer follows, lead to the pages of the site."""
    return LINK.sub(to_outside, markdown)


def with_generated(nav: list, pages: list[str]) -> list:
    """The navigation with every generated page beside the index.md of its folder."""
    grown: list = []
    for entry in nav:
        if isinstance(entry, dict):
            grown.append(
                {
                    title: with_generated(below, pages) if isinstance(below, list) else below
                    for title, below in entry.items()
                }
            )
            continue
        grown.append(entry)
        folder, _, name = entry.rpartition("/")
        if folder and name == "index.md":
            grown += [page for page in pages if page.startswith(f"{folder}/") and page != entry]
    return grown


def from_project(link: str, name: str) -> str:
    """The file of the project that a link in the file `name` leads to.

    >>> from_project("../docs/use.md", "examples/README.md")
    'docs/use.md'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), link))


def in_site(link: re.Match, name: str) -> str:
    """A link of a page from outside of docs/ at its place in the site: docs/use.md -> use.md."""
    path, place = from_project(link[1], name), link[2] or ""
    return f"]({OUTSIDE.get(path, path.removeprefix('docs/'))}{place})"


def to_outside(link: re.Match) -> str:
    """A link from docs/ to a page outside of it: ../CONTRIBUTING.md -> contributing.md."""
    path, place = link[1], link[2] or ""
    return f"]({OUTSIDE[path[3:]]}{place})" if path.startswith("../") and path[3:] in OUTSIDE else link[0]
