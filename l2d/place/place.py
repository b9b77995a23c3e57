"""Where a run computes: device, precision, memory layout and the processes that share the work."""

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from l2d.errors import UserError
from l2d.place.memory import share_gpu, sweep_process
from l2d.place.ranks import Ranks

CUDA_GRAPHS = (
    "reduce-overhead",
    "max-autotune",
)  # modes of torch.compile whose outputs are overwritten by the next call
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE_WORKSPACES = (":4096:8", ":16:8")  # with any other, torch refuses deterministic matrix products


@dataclass(frozen=True)
class Place:
    """Device, precision, memory layout and ranks, for everything that computes."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "float32"
    layout: torch.memory_format = torch.contiguous_format
    cuda_graphs: bool = False  # a compiled system replays CUDA graphs
    ranks: Ranks = field(default_factory=Ranks.alone)

    @classmethod
    def open(cls, trainer: DictConfig, seed: int, ranks: Ranks) -> "Place":
        """The place that `trainer` names, ready to compute: seeds set, ranks connected, memory counted from here."""
        place = cls.choose(trainer.device, trainer.precision, ranks)
        if trainer.deterministic and place.device.type == "cuda":
            refuse_unrepeatable_workspace()
        seed_everything(seed, trainer.deterministic)
        place.reset_peak_memory()
        ranks.start(place.device, trainer.rank_timeout_minutes)
        return place

    @classmethod
    def choose(cls, name: str, precision: str, ranks: Ranks) -> "Place":
        """`auto` is CUDA where there is a GPU, in bf16 if it computes in that, else the CPU; float32 otherwise. Processes on one
        machine get one GPU each. A GPU becomes the current device, before anything is allocated."""
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        number, processes = sweep_process()
        if name == "cuda" and torch.cuda.is_available():
            gpus = torch.cuda.device_count()
            name = f"cuda:{(number + ranks.local) % gpus}"
            processes = len(range(number % gpus, processes, gpus))  # those of a sweep take the GPUs in turn
        try:
            device = torch.device(name)
            if device.type not in ("cpu", "cuda", "mps"):
                raise ValueError(device.type)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"trainer.device={name} is not a device; use auto, cpu, cuda, cuda:N or mps.") from error
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise UserError(
                f"trainer.device={name}: this machine has {torch.cuda.device_count()} CUDA devices; use trainer.device=auto or cpu."
            )
        if device.type == "mps" and not torch.backends.mps.is_available():
            raise UserError(f"trainer.device={name}: this machine has no Apple GPU; use trainer.device=auto or cpu.")
        if device.type == "cuda":
            start_cuda(device)
            if processes > 1:
                share_gpu(device, processes)
        if precision == "auto":
            precision = "bf16" if device.type == "cuda" and computes_in_bf16(device) else "float32"
        if precision not in PRECISIONS:
            raise UserError(f"trainer.precision={precision} must be auto, {', '.join(PRECISIONS)}.")
        return cls(device, precision, ranks=ranks)

    def take(self, model: nn.Module, trainer: DictConfig) -> "Place":
        """Move the model here, compiled if that is asked for; return the place with the memory layout that suits it."""
        layout = torch.channels_last if trainer.channels_last and convolves(model) else torch.contiguous_format
        model.to(self.device, memory_format=layout)  # type: ignore[call-overload]
        if trainer.compile:
            # Forget earlier runs of this process: torch compiles a function for eight kinds of arguments and then no more, and
            # a size that differs between two runs would become dynamic.
            torch.compiler.reset()
            model.compile(mode=None if trainer.compile is True else trainer.compile)
        return replace(self, layout=layout, cuda_graphs=trainer.compile in CUDA_GRAPHS)

    def begin_step(self) -> None:
        """To be called before a system is: what it returned before may be overwritten from here on."""
        if self.cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = PRECISIONS[self.precision]
        return nullcontext() if dtype is torch.float32 else torch.autocast(self.device.type, dtype=dtype)

    def reset_peak_memory(self) -> None:
        """Start measuring the peak again, because a process may run several cells of a sweep."""
        if self.device.type == "cuda":
            if torch.cuda.is_initialized():  # before that torch raises, and there is no peak yet
                torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def peak_memory_mb(self) -> float | None:
        """The peak of the GPU if the run is on one, else of the process (Linux only); None where it is unknown."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        # ru_maxrss is inherited across fork, so read VmHWM
        with suppress(OSError, IndexError):
            status = Path("/proc/self/status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) / 2**10
        return None


def convolves(model: nn.Module) -> bool:
    """Whether there are convolutions in it, which channels last and small batches suit."""
    return any(p.dim() == 4 for p in model.parameters())


def start_cuda(device: torch.device) -> None:
    """Make this the current device. Whatever asks for none then uses it: pinned memory, NCCL, `mem_get_info`.

    cuBLAS reads its workspace when it starts, so the repeatable one is set for every run: a later cell of this process may be
    deterministic. The user's own setting is left alone.
    """
    if not torch.cuda.is_initialized():
        os.environ.setdefault(WORKSPACE, REPEATABLE_WORKSPACES[0])
    torch.cuda.set_device(device)


def refuse_unrepeatable_workspace() -> None:
    given = os.environ.get(WORKSPACE)
    if given not in REPEATABLE_WORKSPACES:
        raise UserError(
            f"trainer.deterministic=true needs {WORKSPACE} to be {' or '.join(REPEATABLE_WORKSPACES)} when CUDA starts in this "
            f"process, and it {'was not set' if given is None else f'is {given}'}; set it before."
        )


def computes_in_bf16(device: torch.device) -> bool:
    """Whether bf16 is built in; older GPUs emulate it, slower than float32."""
    return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= (8, 0)


def seed_everything(seed: int, deterministic: bool) -> None:
    torch.manual_seed(seed)
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the setter imports torch's compiler
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic
    torch.set_float32_matmul_precision("highest" if deterministic else "high")


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of the generators that a run on this device draws from, for its checkpoint."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    elif device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])
