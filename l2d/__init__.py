"""l2d: multi-expert Learning to Defer, as a Hydra experiment framework. Importing this imports neither torch nor Hydra.

`__all__` is the public API; docs/stability.md says what else is stable.
"""

from typing import TYPE_CHECKING

from l2d.lazy import lazy

if TYPE_CHECKING:
    from l2d.data import Batch, Dataset, ImageFiles, Images, Split, Vectors, listed_by
    from l2d.decisions import Cases, Decision, decide, needs
    from l2d.errors import UserError
    from l2d.evaluation import METRICS, Metric, Outcome, measure, outcome_of
    from l2d.experts import ExpertPanel
    from l2d.inference import Predictions, TrainedSystem, load
    from l2d.losses import DeferralLoss
    from l2d.report import load_runs, paired_differences, summarize
    from l2d.systems import ScoreSystem, Stage, System
    from l2d.task import Task, load_task
else:  # hidden from type checkers, which then report a name that is not exported
    __getattr__ = lazy(
        __name__,
        {
            "l2d.data": ["Batch", "Dataset", "ImageFiles", "Images", "Split", "Vectors", "listed_by"],
            "l2d.decisions": ["Cases", "Decision", "decide", "needs"],
            "l2d.errors": ["UserError"],
            "l2d.evaluation": ["METRICS", "Metric", "Outcome", "measure", "outcome_of"],
            "l2d.experts": ["ExpertPanel"],
            "l2d.inference": ["Predictions", "TrainedSystem", "load"],
            "l2d.losses": ["DeferralLoss"],
            "l2d.report": ["load_runs", "paired_differences", "summarize"],
            "l2d.systems": ["ScoreSystem", "Stage", "System"],
            "l2d.task": ["Task", "load_task"],
        },
    )

__version__ = "0.2.0"
__all__ = [
    "METRICS",
    "Batch",
    "Cases",
    "Dataset",
    "Decision",
    "DeferralLoss",
    "ExpertPanel",
    "ImageFiles",
    "Images",
    "Metric",
    "Outcome",
    "Predictions",
    "ScoreSystem",
    "Split",
    "Stage",
    "System",
    "Task",
    "TrainedSystem",
    "UserError",
    "Vectors",
    "__version__",
    "decide",
    "listed_by",
    "load",
    "load_runs",
    "load_task",
    "measure",
    "needs",
    "outcome_of",
    "paired_differences",
    "summarize",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # what completion in a shell offers
