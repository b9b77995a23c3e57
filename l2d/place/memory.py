"""How much memory is free, and how the processes of a sweep share it."""

import os
import sys
from multiprocessing import current_process
from pathlib import Path

import torch

CUDA_CONTEXT = 600 << 20  # bytes that CUDA itself takes of a GPU for each process, about
_allowed: dict[int, int] = {}  # GPU -> bytes that this process may use, where others use it too


def available_memory() -> int:
    """Bytes free in RAM, or on the GPU of this run where that has fewer; sys.maxsize where it is unknown. The processes of a
    parallel sweep, which load their data at the same time, have an even share each."""
    ram = sys.maxsize
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        ram = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        if hasattr(os, "sysconf"):  # not on Windows
            ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ram //= sweep_process()[1]
    # A run on a GPU has made it the current device. Otherwise asking would start CUDA on the first GPU, perhaps for a run on the CPU.
    return min(ram, _available_on_gpu()) if torch.cuda.is_initialized() else ram


def sweep_process() -> tuple[int, int]:
    """The index of this process among those of a parallel sweep (l2d/parallel.py), and their number; 0 and 1 outside of one."""
    name, _, numbers = current_process().name.partition("-")
    if name != "CellProcess":
        return 0, 1
    number, _, count = numbers.partition("-")
    return int(number) - 1, int(count)


def share_gpu(device: torch.device, processes: int) -> None:
    """Limit this process to an even share of a GPU's memory: one that needs more fails alone, and not all that are there."""
    total = torch.cuda.get_device_properties(device).total_memory
    share = max(1 / processes - CUDA_CONTEXT / total, 0.01)
    torch.cuda.set_per_process_memory_fraction(share, device)
    _allowed[device.index or 0] = int(share * total)


def _available_on_gpu() -> int:
    free: int = torch.cuda.mem_get_info()[0]
    allowed = _allowed.get(torch.cuda.current_device()) if _allowed else None
    return free if allowed is None else max(min(free, allowed - torch.cuda.memory_reserved()), 0)
