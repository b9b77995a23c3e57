"""Place: where a run computes. Device, precision, memory layout, and the processes that work together."""

from l2d.place.place import Place, seed_everything
from l2d.place.ranks import Ranks

__all__ = ["Place", "Ranks", "seed_everything"]
