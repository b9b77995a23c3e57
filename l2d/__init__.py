"""l2d: multi-expert Learning to Defer, as a Hydra experiment framework."""

__version__ = "0.2.0"
