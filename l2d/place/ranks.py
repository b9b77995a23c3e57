"""The processes that train one model together: torchrun's or Slurm's, or this one alone."""

import gc
import itertools
import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from l2d.errors import UserError, sentence

# A collective that waits longer than this for another rank fails.
COLLECTIVE_TIMEOUT = timedelta(seconds=50)
# Rank 0 hosts the store and stays this long after a failure, so that the others can read the reason.
SHUTDOWN_GRACE_S = 2.0
_RUN_NUMBER = itertools.count()  # the cells of a sweep share one store, so each has a key prefix of its own


class Ranks:
    """`count` processes, of which this is number `rank` (torchrun's or Slurm's); everything is a no-op when it is alone.

    `with ranks:` around what they do together: an error in one ends all of them, each with its reason.
    """

    rank, count, local = 0, 1, 0

    @classmethod
    def alone(cls) -> "Ranks":
        """This process by itself, whatever launched it."""
        return cls({})

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.failure_store: dist.Store | None = None
        if "RANK" in environment and "WORLD_SIZE" in environment:  # torchrun
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        elif (
            int(environment.get("SLURM_NTASKS", 1)) > 1
            and "SLURM_PROCID" in environment
            and "MASTER_ADDR" in environment
        ):
            names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        else:
            return
        self.rank, self.count, self.local = (int(environment.get(name, 0)) for name in names)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def start(self, device: torch.device) -> None:
        """Connect the ranks."""
        if self.count == 1:
            return
        if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
            raise UserError(
                "MASTER_ADDR and MASTER_PORT must give the address of process 0; torchrun sets them, under Slurm set them yourself."
            )
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store, *_ = next(dist.rendezvous("env://", self.rank, self.count, timeout=COLLECTIVE_TIMEOUT))
        self.failure_store = dist.PrefixStore(f"l2d/{next(_RUN_NUMBER)}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=self.failure_store, rank=self.rank, world_size=self.count, timeout=COLLECTIVE_TIMEOUT
        )

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the process group. A failure here is stored for the other ranks; a lost connection is reported with theirs."""
        if self.count == 1:
            return
        disconnected = isinstance(error, RuntimeError) and _is_connection_error(error)
        reason = "another process of this run ended without an error message (it was killed, or its machine or network failed)"
        with suppress(RuntimeError):  # the store died with rank 0
            if disconnected and self.failure_store and self.failure_store.check(["failure"]):
                reason = self.failure_store.get("failure").decode()
            elif self.failure_store and isinstance(error, Exception) and not disconnected:
                self.failure_store.set("failure", f"process {self.rank} of {self.count} failed: {sentence(error)}")
        if dist.is_initialized():
            dist.destroy_process_group()
        if isinstance(error, Exception) and self.first and self.failure_store:
            traceback.clear_frames(trace)  # DDP in a frame keeps the connection open; the others fail when it closes
            gc.collect()
            time.sleep(SHUTDOWN_GRACE_S)
        if disconnected:
            raise UserError(f"Process {self.rank} stops, because {reason.rstrip('.')}.") from error

    def per_rank_batch_size(self, batch_size: int) -> int:
        """The part of a global batch that this rank takes."""
        if batch_size % self.count:
            raise UserError(
                f"trainer.batch_size={batch_size} is the size over all processes: it must be a multiple of {self.count}."
            )
        return batch_size // self.count

    def wrap(self, model: nn.Module, sync_batchnorm: bool, device: torch.device) -> nn.Module:
        """The model in DistributedDataParallel; the model itself when this process is alone."""
        if self.count == 1:
            return model
        torch.manual_seed(torch.initial_seed() + self.rank)  # dropout differs by rank; the weights are equal by now
        if sync_batchnorm:
            if device.type != "cuda":
                raise UserError("trainer.sync_batchnorm=true works between GPUs only; set it to false on the CPU.")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give every rank the buffers of rank 0 (batch norm's running statistics), whose weights are the ones saved."""
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def all_reduce_max(self, number: int) -> int:
        """The largest of the ranks' numbers, on all of them."""
        if self.count == 1:
            return number
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        shared = torch.tensor(number, device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return int(shared)

    def mean(self, number: float) -> float:
        """The mean of the ranks' numbers, on all of them."""
        if self.count == 1:
            return number
        shared = torch.tensor(number, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(shared)
        return shared.item() / self.count

    def gather(self, part: Tensor) -> Tensor:
        """Concatenate the ranks' parts [n_r, ...] in the order of the split, [N, ...]; rank r holds every count-th sample from r."""
        if self.count == 1:
            return part
        if part.dtype == torch.int16:  # gloo and NCCL do not support it
            return self.gather(part.int()).to(torch.int16)
        sizes = [torch.zeros(1, dtype=torch.int64, device=part.device) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(part)], device=part.device))
        longest = int(max(sizes))
        padded = torch.cat([part, part.new_zeros(longest - len(part), *part.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(parts, padded)
        whole = torch.stack(parts, dim=1).flatten(0, 1)  # [longest * ranks, ...], interleaved
        present = torch.stack([torch.arange(longest, device=part.device) < size for size in sizes], dim=1).flatten()
        return whole[present]

    def collect(self, own: Any) -> list[Any]:
        """The objects of all ranks, in the order of ranks, on all of them."""
        if self.count == 1:
            return [own]
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, own)
        return everyone


def _is_connection_error(error: RuntimeError) -> bool:
    """Whether a collective failed because of another process; gloo and NCCL show it only in the message."""
    return isinstance(error, dist.DistError) or any(name in str(error) for name in ("gloo", "Gloo", "NCCL"))
