"""Standardised features, by statistics that are part of the model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from l2d import kernels


class Standardise(nn.Module):
    """(x - mean) / std for x [B, D]; in float32 also under autocast, where large values would lose their digits."""

    mean: Tensor  # [D]
    scale: Tensor  # [D]

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("scale", 1 / torch.tensor(std, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        out = kernels.standardise(x, self.mean, self.scale)
        return (x - self.mean) * self.scale if out is None else out
