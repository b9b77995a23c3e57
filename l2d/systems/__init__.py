"""Systems: the only code that knows deferral. A system owns backbone, loss and beliefs."""

from l2d.systems.build import Sizes, check_loss, freeze, load_system, make_system
from l2d.systems.compare_confidence import CompareConfidence
from l2d.systems.population import PooledPopulation, PosteriorPopulation, population_system
from l2d.systems.score import ScoreSystem
from l2d.systems.selective import SelectiveSystem
from l2d.systems.system import Stage, System, classify
from l2d.systems.two_stage import TwoStage
from l2d.systems.weights import read_weights, start_from, weight_facts

__all__ = [
    "CompareConfidence",
    "PooledPopulation",
    "PosteriorPopulation",
    "ScoreSystem",
    "SelectiveSystem",
    "Sizes",
    "Stage",
    "System",
    "TwoStage",
    "check_loss",
    "classify",
    "freeze",
    "load_system",
    "make_system",
    "population_system",
    "read_weights",
    "start_from",
    "weight_facts",
]
