"""The processes that train one model together: torchrun's or Slurm's, or this one alone."""

import gc
import itertools
import os
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from l2d.errors import UserError, sentence

# A rank that waits longer than this for another takes it for dead.
PATIENCE = timedelta(seconds=50)
# The rank that keeps the noticeboard stays this long after a failure, so that the others can read the reason.
FAREWELL = 2.0
_MEETINGS = itertools.count()  # the cells of a sweep share a store, and must not read each other's keys


class Ranks:
    """`count` processes, of which this is number `rank`; everything is a no-op when it is alone.

    `with ranks:` around what they do together: an error in one ends all of them, each with its reason.
    """

    def __init__(self) -> None:
        environment = os.environ
        self.noticeboard: dist.Store | None = None
        if "RANK" in environment and "WORLD_SIZE" in environment:  # torchrun
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        elif (
            int(environment.get("SLURM_NTASKS", 1)) > 1
            and "SLURM_PROCID" in environment
            and "MASTER_ADDR" in environment
        ):
            names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        else:
            self.rank, self.count, self.local = 0, 1, 0
            return
        self.rank, self.count, self.local = (int(environment.get(name, 0)) for name in names)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def start(self, device: torch.device) -> None:
        if self.count == 1:
            return
        if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
            raise UserError(
                "MASTER_ADDR and MASTER_PORT must say where process 0 is; torchrun sets them, under Slurm set them yourself."
            )
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store, *_ = next(dist.rendezvous("env://", self.rank, self.count, timeout=PATIENCE))
        self.noticeboard = dist.PrefixStore(f"l2d/{next(_MEETINGS)}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=self.noticeboard, rank=self.rank, world_size=self.count, timeout=PATIENCE
        )

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group. What went wrong here is put up for the others; what came from another is told in its words."""
        if self.count == 1:
            return
        lost = isinstance(error, RuntimeError) and _is_of_the_connection(error)
        reason = "another process of this run ended without a word (killed, or its machine or network lost)"
        with suppress(RuntimeError):  # the board went with its keeper
            if lost and self.noticeboard and self.noticeboard.check(["failure"]):
                reason = self.noticeboard.get("failure").decode()
            elif self.noticeboard and isinstance(error, Exception) and not lost:
                self.noticeboard.set("failure", f"process {self.rank} of {self.count} failed: {sentence(error)}")
        if dist.is_initialized():
            dist.destroy_process_group()
        if isinstance(error, Exception) and self.first and self.noticeboard:
            traceback.clear_frames(trace)  # the model in them holds the connection, whose end the others notice
            gc.collect()
            time.sleep(FAREWELL)
        if lost:
            raise UserError(f"Process {self.rank} stops, because {reason.rstrip('.')}.") from error

    def share(self, batch_size: int) -> int:
        """This process's part of a global batch."""
        if batch_size % self.count:
            raise UserError(
                f"trainer.batch_size={batch_size} is the size over all processes: it must be a multiple of {self.count}."
            )
        return batch_size // self.count

    def wrap(self, model: nn.Module, sync_batchnorm: bool, device: torch.device) -> nn.Module:
        if self.count == 1:
            return model
        torch.manual_seed(torch.initial_seed() + self.rank)  # the models are equal by now; dropout need not be
        if sync_batchnorm:
            if device.type != "cuda":
                raise UserError("trainer.sync_batchnorm=true works between GPUs only; set it to false on the CPU.")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank the first one's buffers: batch norm's running statistics, of which its weights are saved."""
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def agree(self, number: int) -> int:
        """The largest of the ranks' numbers, on all of them."""
        if self.count == 1:
            return number
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        shared = torch.tensor(number, device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return int(shared)

    def mean(self, number: float) -> float:
        if self.count == 1:
            return number
        shared = torch.tensor(number, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(shared)
        return shared.item() / self.count

    def gather(self, part: Tensor) -> Tensor:
        """The ranks' parts [n_r, ...] of a split dealt out in turn, put back into the split's order [N, ...]."""
        if self.count == 1:
            return part
        if part.dtype == torch.int16:  # which neither gloo nor NCCL carries
            return self.gather(part.int()).to(torch.int16)
        sizes = [torch.zeros(1, dtype=torch.int64, device=part.device) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(part)], device=part.device))
        most = int(max(sizes))
        padded = torch.cat([part, part.new_zeros(most - len(part), *part.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(parts, padded)
        whole = torch.stack(parts, dim=1).flatten(0, 1)  # [most * ranks, ...]: dealt out in turn
        present = torch.stack([torch.arange(most, device=part.device) < size for size in sizes], dim=1).flatten()
        return whole[present]

    def collect(self, own: Any) -> list[Any]:
        """Every rank's `own`, in their order."""
        if self.count == 1:
            return [own]
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, own)
        return everyone


def _is_of_the_connection(error: RuntimeError) -> bool:
    """Whether a collective failed because of another process; gloo and NCCL tell it in the text alone."""
    return isinstance(error, dist.DistError) or any(name in str(error) for name in ("gloo", "Gloo", "NCCL"))
