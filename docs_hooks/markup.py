"""Comments and docstrings, which are plain text with code in backticks, as Markdown and as HTML."""

import html
import re
from collections.abc import Iterable
from itertools import groupby

CODE = re.compile(r"(`[^`]+`)")
DOCS_FILE = re.compile(r"\bdocs/([\w-]+)\.md")


def prose(lines: Iterable[str], root: str) -> str:
    """Lines of a comment as Markdown: indented lines are a code block; docs/NAME.md is a link, `root` being the way to docs/."""
    parts = []
    for indented, group in groupby(lines, key=lambda line: line.startswith("  ")):
        text = "\n".join(group)
        parts.append(f"```text\n{text}\n```" if indented else DOCS_FILE.sub(rf"[\1]({root}\1.md)", escape(text)))
    return "\n\n".join(parts)


def escape(text: str) -> str:
    """Text in which only backticks mean something, as Markdown.

    >>> escape("<root>/*.png, `a_*`")
    '&lt;root&gt;/\\\\*.png, `a_*`'
    """
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]|])", r"\\\1", html.escape(part, quote=False))
        for part in CODE.split(text)
    )


def inline(text: str) -> str:
    """The same as HTML.

    >>> inline("`rho` < 1")
    '<code>rho</code> &lt; 1'
    """
    return CODE.sub(lambda found: f"<code>{found[0][1:-1]}</code>", html.escape(text, quote=False))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """An HTML table of cells that are HTML already."""
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    columns = "".join(f"<th>{cell}</th>" for cell in head)
    return f"<table>\n<thead><tr>{columns}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
