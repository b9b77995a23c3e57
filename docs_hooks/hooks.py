"""MkDocs calls this while it builds the site: adds the generated reference, and the pages that live at the root of the project."""

import re
from pathlib import Path
from typing import Any

import api_pages
import command_page
import settings_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FROM_ROOT = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}  # file of the project -> page of the site
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the generated pages, also to the navigation; those of the project's root, and the other files that these link to."""
    pages = {
        **settings_pages.pages(),
        **api_pages.pages(),
        "reference/commands.md": command_page.page(ROOT / "scripts"),
    }
    config.nav = with_generated(config.nav or [], list(pages))
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    for name, uri in FROM_ROOT.items():
        content = (ROOT / name).read_text()
        files.append(File.generated(config, uri, content=LINK.sub(from_root, content)))
        for link, _ in LINK.findall(content):
            if not link.startswith("docs/") and link not in FROM_ROOT and files.get_file_from_path(link) is None:
                files.append(File.generated(config, link, abs_src_path=str(ROOT / link)))


def on_page_markdown(markdown: str, *, page: Page, **others: Any) -> str:
    """Links from docs/ to pages at the root, which a file viewer follows, lead to the pages of the site."""
    return LINK.sub(to_root, markdown)


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


def from_root(link: re.Match) -> str:
    """A link of a page at the root, from its place in the site: docs/use.md -> use.md."""
    path, place = link[1], link[2] or ""
    return f"]({FROM_ROOT.get(path, path.removeprefix('docs/'))}{place})"


def to_root(link: re.Match) -> str:
    """A link from docs/ to a page at the root: ../CONTRIBUTING.md -> contributing.md."""
    path, place = link[1], link[2] or ""
    return f"]({FROM_ROOT[path[3:]]}{place})" if path.startswith("../") and path[3:] in FROM_ROOT else link[0]
