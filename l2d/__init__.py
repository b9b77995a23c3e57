"""l2d: multi-expert Learning to Defer, as a Hydra experiment framework."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l2d.inference import load

__version__ = "0.2.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name != "load":  # needs torch, and `import l2d` does not
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from l2d.inference import load

    return load
