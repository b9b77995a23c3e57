"""An extension of griffe, which reads the docstrings for mkdocstrings: examples with >>> become code blocks."""

import re
from typing import Any

import griffe

# From >>> to the next empty line: as doctest reads an example.
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def with_code_blocks(docstring: str) -> str:
    """The docstring as Markdown.

    >>> with_code_blocks("Adds.\\n\\n>>> 1 + 1\\n2")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)


class CodeBlocks(griffe.Extension):
    """Every docstring that griffe finds is rewritten once, where it is defined."""

    def on_instance(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_code_blocks(obj.docstring.value)
