"""The small backbones, for inputs of any shape."""

from itertools import pairwise
from math import prod
from typing import Annotated

from annotated_types import Ge
from torch import nn

from l2d.errors import UserError
from l2d.place.memory import available_memory


class MLP(nn.Sequential):
    """Flatten, `layers` x (Linear, ReLU), Linear to K+J scores; with no layers, a linear model."""

    def __init__(
        self,
        num_outputs: int,
        image_shape: tuple[int, ...],
        hidden: Annotated[int, Ge(1)] = 1,
        layers: Annotated[int, Ge(0)] = 0,
    ):
        weights = hidden * (prod(image_shape) + max(layers - 1, 0) * hidden + num_outputs)
        needed = 3 * 4 * weights + 4096 * layers  # weights, gradients and momentum; Python objects of a layer
        if needed > available_memory():
            raise UserError(
                f"An MLP of this size needs {needed / 1e9:.3g} GB to train and {available_memory() / 1e9:.3g} GB are free; "
                "lower backbone.hidden or backbone.layers."
            )
        widths = [prod(image_shape)] + [hidden] * layers
        steps: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            steps += [nn.Linear(before, after), nn.ReLU(inplace=True)]
        super().__init__(*steps, nn.Linear(widths[-1], num_outputs))
