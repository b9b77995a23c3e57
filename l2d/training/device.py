"""Where a run computes, and in which precision."""

from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import current_process
from pathlib import Path

import torch

from l2d.errors import UserError

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Device:
    device: torch.device
    precision: str

    @classmethod
    def choose(cls, name: str, precision: str, local_rank: int = 0) -> "Device":
        """`auto` is CUDA in bf16 where there is a GPU, else the CPU in float32; processes side by side get one GPU each."""
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cuda" and torch.cuda.is_available():
            name = f"cuda:{(_worker() + local_rank) % torch.cuda.device_count()}"
        try:
            device = torch.device(name)
            if device.type not in ("cpu", "cuda"):
                raise ValueError(device.type)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"trainer.device={name} is not a device; use auto, cpu, cuda or cuda:N.") from error
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise UserError(
                f"trainer.device={name}: this machine shows {torch.cuda.device_count()} CUDA devices; use trainer.device=auto or cpu."
            )
        if precision == "auto":
            precision = "bf16" if device.type == "cuda" else "float32"
        if precision not in PRECISIONS:
            raise UserError(f"trainer.precision={precision} must be auto, {', '.join(PRECISIONS)}.")
        return cls(device, precision)

    def autocast(self) -> AbstractContextManager:
        dtype = PRECISIONS[self.precision]
        return nullcontext() if dtype is torch.float32 else torch.autocast(self.device.type, dtype=dtype)

    def reset_peak_memory(self) -> None:
        """A run's peak is its own, also after a larger one in the same process."""
        if self.device.type == "cuda":
            if torch.cuda.is_initialized():  # before that torch refuses, and there is no peak yet
                torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def peak_memory_mb(self) -> float | None:
        """Of the GPU if the run is on one, else of the process, where Linux tells it."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        # Not getrusage: what it tells begins with the size of the process that this one was forked from.
        with suppress(OSError, IndexError):
            status = Path("/proc/self/status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) / 2**10
        return None


def _worker() -> int:
    """The number of this process among the workers of the joblib launcher, so that each has a GPU of its own; else 0."""
    name, _, number = current_process().name.partition("-")
    return int(number) - 1 if name == "LokyProcess" else 0


def seed_everything(seed: int, deterministic: bool) -> None:
    torch.manual_seed(seed)
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call alone imports torch's compiler
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic
    torch.set_float32_matmul_precision("highest" if deterministic else "high")


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """For the checkpoint."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
