"""Memory for prepared batches on the CPU, given out again while the last batch in it is still in the caches."""

import weakref
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = (
    64  # bytes, as in torch's own tensors: matrix products are slower on memory from numpy, which is aligned to 16
)
MAX_FREE = 4  # blocks that are kept while no batch is in them

_free: list[np.ndarray] = []  # float32 blocks; threads may share the list, because pop and append are atomic


def empty_floats(shape: Sequence[int], memory_format: torch.memory_format) -> Tensor:
    """An uninitialised float32 CPU tensor [B, C, H, W]. Its memory is given out again when nothing refers to it any more.

    It comes from numpy, which uses huge pages: half the time for large images.
    """
    batch, channels, height, width = shape
    if memory_format == torch.channels_last:
        return torch.from_numpy(_borrow((batch, height, width, channels))).permute(0, 3, 1, 2)
    return torch.from_numpy(_borrow((batch, channels, height, width)))


def _borrow(shape: Sequence[int]) -> np.ndarray:
    """An array in a free block that is large enough, else in a new one. The block is free again when this very object dies:
    a tensor made from it keeps it alive, and a view of it does not, because numpy lets views refer to the block itself."""
    count = prod(shape)
    try:
        block = _free.pop()
    except IndexError:
        block = _aligned(count)
    if block.size < count:
        block = _aligned(count)
    borrowed = block[:count].reshape(shape)
    weakref.finalize(borrowed, _give_back, block).atexit = False
    return borrowed


def _give_back(block: np.ndarray) -> None:
    if len(_free) < MAX_FREE:
        _free.append(block)


def _aligned(count: int) -> np.ndarray:
    """`count` floats at a multiple of ALIGNMENT."""
    block = np.empty(count + ALIGNMENT // 4, dtype=np.float32)
    start = -block.ctypes.data % ALIGNMENT // 4
    return block[start : start + count]
