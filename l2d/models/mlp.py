"""The small backbone for small images."""

from itertools import pairwise
from math import prod

from torch import nn


class MLP(nn.Sequential):
    """Flatten, `layers` x (Linear, ReLU), Linear to K+J scores."""

    def __init__(self, num_outputs: int, image_shape: tuple[int, ...], hidden: int, layers: int):
        widths = [prod(image_shape)] + [hidden] * layers
        steps: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            steps += [nn.Linear(before, after), nn.ReLU(inplace=True)]
        super().__init__(*steps, nn.Linear(widths[-1], num_outputs))
