"""Systems: the only code that knows deferral. A system owns backbone, loss and beliefs."""

from l2d.systems.build import Sizes, freeze, load_system, make_system
from l2d.systems.population import PooledPopulation, PosteriorPopulation, population_system
from l2d.systems.score import ScoreSystem
from l2d.systems.selective import SelectiveSystem
from l2d.systems.system import Stage, System
from l2d.systems.weights import read_weights, start_from, weight_facts

__all__ = [
    "PooledPopulation",
    "PosteriorPopulation",
    "ScoreSystem",
    "SelectiveSystem",
    "Sizes",
    "Stage",
    "System",
    "freeze",
    "load_system",
    "make_system",
    "population_system",
    "read_weights",
    "start_from",
    "weight_facts",
]
