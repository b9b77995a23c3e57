"""The processes that train one model together: torchrun's or Slurm's, or this one alone."""

import gc
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from l2d.errors import UserError
from l2d.place.watch import GRACE_S, Watch, again_and_again

POLL_S = 0.02  # between two looks at whether all ranks have arrived


class Ranks:
    """`count` processes, of which this is number `rank` (torchrun's or Slurm's); everything is a no-op when it is alone.

    `with ranks.one_run():` around a run, and `with ranks:` around what they compute together in it: an error in one ends all
    of them, each with its reason.
    """

    rank, count, local = 0, 1, 0
    timeout = timedelta(minutes=30)
    meetings = 0  # of this run

    @classmethod
    def alone(cls) -> "Ranks":
        """This process by itself, whatever launched it."""
        return cls({})

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
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

    @property
    def watch(self) -> Watch:
        return meet(self.rank, self.count)[1]

    @contextmanager
    def one_command(self) -> Iterator[None]:
        """Around all that this process does: from here on the others notice when it ends, and it notices when they do."""
        if self.count == 1:
            yield
            return
        with self.watch.told(ever=True):
            yield

    @contextmanager
    def one_run(self) -> Iterator[None]:
        """Around a run: what ends it here ends it on every rank."""
        if self.count == 1:
            yield
            return
        with self.watch.one_run():
            yield

    def start(self, device: torch.device, minutes: float) -> None:
        """Connect the ranks; from here on none waits longer than `minutes` for another one that is alive."""
        if self.count == 1:
            return
        self.timeout = timedelta(minutes=minutes)
        # The cells of a sweep share one store, so each has a key prefix of its own.
        self.store = dist.PrefixStore(f"run {self.watch.number}", meet(self.rank, self.count)[0])
        if device.type == "cuda":
            self.store.set(f"gpu {self.rank}", str(torch.cuda.get_device_properties(device).uuid))
        self.wait_for_all()
        if device.type == "cuda":
            refuse_shared_gpus([self.store.get(f"gpu {rank}").decode() for rank in range(self.count)])
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.count, timeout=self.timeout)

    def wait_for_all(self) -> None:
        """Wait until every rank is here. In Python, where a signal or a lost rank ends it; a collective waits outside."""
        if self.count == 1:
            return
        deadline = time.monotonic() + self.timeout.total_seconds()
        self.meetings += 1
        key = f"here {self.meetings}"
        self.store.add(key, 1)
        while (here := self.store.add(key, 0)) < self.count:
            if time.monotonic() > deadline:
                raise UserError(
                    f"{self.count - here} of {self.count} processes did not arrive within "
                    f"trainer.rank_timeout_minutes={self.timeout.total_seconds() / 60:g}; if their work takes longer, raise it."
                )
            time.sleep(POLL_S)

    def part(self) -> None:
        """From here on this rank needs no other one: all have agreed to stop, or the last collective is done."""
        if self.count > 1:
            self.watch.leave()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the process group. The others are told of a failure here; a lost connection is explained by theirs."""
        if self.count == 1:
            return
        explanation = None
        if error is not None:
            if isinstance(error, RuntimeError) and _is_connection_error(error):
                explanation = self._explained(error)
            self.watch.failed(explanation or error)
            traceback.clear_frames(trace)  # DDP in a frame keeps the connection open; the others fail when it closes
        if dist.is_initialized():
            dist.destroy_process_group()
        if error is not None:
            gc.collect()
        if explanation:
            raise explanation from error

    def _explained(self, error: RuntimeError) -> UserError:
        """Why a collective failed, in one sentence."""
        reason = self.watch.problem(wait=GRACE_S)
        if reason is None and "imed out" in str(error):
            limit = f"trainer.rank_timeout_minutes={self.timeout.total_seconds() / 60:g}"
            return UserError(
                f"Process {self.rank} waited for another one longer than {limit}; if its work takes longer, raise it."
            )
        reason = reason or "its connection to another process of this run failed"
        return UserError(f"Process {self.rank} stops, because {reason.rstrip('.')}.")

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
        self.wait_for_all()  # they load data and build the model at different speeds
        torch.manual_seed(torch.initial_seed() + self.rank)  # dropout differs by rank; the weights are equal by now
        if sync_batchnorm:
            if device.type != "cuda":
                raise UserError("trainer.sync_batchnorm=true works between GPUs only; set it to false on the CPU.")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        wrapped = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        if self.count > 2 and (device.type == "cpu" or torch.are_deterministic_algorithms_enabled()):
            # DDP arranges its buckets anew after the first step, and with them the order in which three or more gradients are
            # added; a resumed run would take one step in the old order. This fixes the order before the first step.
            wrapped.reducer._push_all_rebuilt_params()
        return wrapped

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


def refuse_shared_gpus(gpus: list[str]) -> None:
    """UserError if two ranks have the same GPU, where NCCL would only say that it failed; by rank, what identifies its GPU."""
    for rank, gpu in enumerate(gpus):
        if gpu in gpus[:rank]:
            raise UserError(
                f"Processes {gpus.index(gpu)} and {rank} of {len(gpus)} have the same GPU ({gpu}), which NCCL does not allow; start "
                "at most as many processes on a machine as it has GPUs, with trainer.device=auto."
            )


def _is_connection_error(error: RuntimeError) -> bool:
    """Whether a collective failed because of another process; gloo and NCCL show it only in the message."""
    return isinstance(error, dist.DistError) or any(name in str(error) for name in ("gloo", "Gloo", "NCCL"))


@cache
def meet(rank: int, count: int) -> tuple[dist.Store, Watch]:
    """The store that all ranks share, and the watch over them, once per process."""
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise UserError(
            "MASTER_ADDR and MASTER_PORT must give the address of process 0; torchrun sets them, under Slurm set them yourself."
        )
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torchrun's own process hosts a store; without it process 0 does.
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def connected() -> dist.Store:
        return dist.TCPStore(
            host, port, is_master=hosts, timeout=timedelta(seconds=10), wait_for_workers=False, multi_tenant=True
        )

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"l2d {attempt}", again_and_again(connected, f"{host}:{port} does not answer"))
    return store, Watch(rank, count, store, host)
