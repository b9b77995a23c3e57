"""The processes that train one model together: torchrun's or Slurm's, or this one alone."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from l2d.errors import UserError

# A rank that waits longer than this for another takes it for dead.
PATIENCE = timedelta(seconds=50)


class Ranks:
    """`count` processes, of which this is number `rank`; everything is a no-op when it is alone."""

    def __init__(self) -> None:
        environment = os.environ
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
        if self.count > 1 and not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(device)
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, rank=self.rank, world_size=self.count, timeout=PATIENCE)

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
        if sync_batchnorm and device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

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
        sizes = [torch.zeros(1, dtype=torch.int64, device=part.device) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(part)], device=part.device))
        most = int(max(sizes))
        padded = torch.cat([part, part.new_zeros(most - len(part), *part.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(parts, padded)
        whole = torch.stack(parts, dim=1).flatten(0, 1)  # [most * ranks, ...]: dealt out in turn
        present = torch.stack([torch.arange(most, device=part.device) < size for size in sizes], dim=1).flatten()
        return whole[present]

    def gather_random(self, device: torch.device) -> list[dict[str, Any]]:
        """Every rank's random state, for the checkpoint."""
        own = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(device)
        if self.count == 1:
            return [own]
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, own)
        return everyone

    def restore_random(self, states: list[dict[str, Any]], device: torch.device) -> None:
        torch.set_rng_state(states[self.rank]["cpu"])
        if device.type == "cuda" and "cuda" in states[self.rank]:
            torch.cuda.set_rng_state(states[self.rank]["cuda"], device)

    def stop(self) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()
