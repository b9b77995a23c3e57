"""How much memory is free."""

import os
import sys
from pathlib import Path

import torch


def available_memory() -> int:
    """Bytes free in RAM, or on the GPU of this run where that has fewer; sys.maxsize where it is unknown."""
    ram = sys.maxsize
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        ram = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        if hasattr(os, "sysconf"):  # not on Windows
            ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # A run on a GPU has made it the current device. Otherwise asking would start CUDA on the first GPU, perhaps for a run on the CPU.
    return min(ram, torch.cuda.mem_get_info()[0]) if torch.cuda.is_initialized() else ram
