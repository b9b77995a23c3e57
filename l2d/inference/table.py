"""What a system decided about inputs: a row for each, in their order. Importing this does not import torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: dict[str, type] = {
    "id": str,  # the path or name of the input, or its number
    "decision": str,  # what to do: the name of the class to answer, or of whom to ask; of several separated by `; `
    "asked": bool,  # whether anybody is asked
    "predicted": str,  # the class that the system would answer itself
    "probability": float,  # that it is right
    "expert": str,  # who is worth most to ask, asked or not; none where nobody is there
    "expert_accuracy": float,  # how likely that expert is right on this input
    "gain": float,  # what asking that expert is worth more than to answer, after its cost
    "error": str,  # why the input could not be read; all but the id is then empty
}


@dataclass(frozen=True, repr=False)
class Predictions:
    """Columns of equal length, those of COLUMNS in their order or more; None where there is nothing to say.

    >>> table = Predictions({name: [] for name in COLUMNS})
    >>> len(table), table["decision"]
    (0, [])
    """

    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.columns["id"])

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]

    def __repr__(self) -> str:
        return f"Predictions({len(self)} inputs: {', '.join(self.columns)})"

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping per input."""
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def to_pandas(self) -> "pd.DataFrame":
        """A frame with a row per input."""
        import pandas as pd

        return pd.DataFrame(self.columns)

    @classmethod
    def joined(cls, parts: "list[Predictions]") -> "Predictions":
        """The rows of all parts, one part after the other."""
        return cls({name: [value for part in parts for value in part[name]] for name in COLUMNS})
