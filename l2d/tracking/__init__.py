"""Tracking: the run's folder, the console, and Weights & Biases behind one small interface."""

from l2d.tracking.console import Console
from l2d.tracking.record import RunFolder
from l2d.tracking.trackers import FilesOnly, Tracker, WandbTracker

__all__ = ["Console", "FilesOnly", "RunFolder", "Tracker", "WandbTracker"]
