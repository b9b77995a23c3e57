"""What `l2d data check` prints: tables of text, with names from the data in a safe form."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from l2d.errors import drop_output, visible

FULL_TABLE = 20  # rows; more classes or annotators are summarised


class Output(Console):
    """Prints names of classes, annotators and files in a safe form; once the reader of a pipe is gone, output is dropped."""

    def print(self, *objects: Any, **options: Any) -> None:
        safe = ("\n".join(map(visible, o.split("\n"))) if isinstance(o, str) else o for o in objects)
        super().print(*safe, **options)

    def on_broken_pipe(self) -> None:
        drop_output()

    def table(self, columns: list[str], rows: Iterable[Iterable[Any]]) -> None:
        """Columns of text, the first to the left and the others to the right; readable in a file as on a terminal."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for position, column in enumerate(columns):
            left = not position or column in ("extremes", "the first")
            table.add_column(visible(column), justify="left" if left else "right")
        for row in rows:
            table.add_row(*(visible(str(cell)) for cell in row))
        self.print()
        self.print(table)


def some(names: Sequence[str], shown: int = 3) -> str:
    """The first of many names, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def memory_size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
