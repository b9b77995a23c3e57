"""The cells of a sweep in several processes, which take them in turn: hydra/launcher=joblib hydra.launcher.n_jobs=4.

A process runs many cells, because it imports torch and loads the data once for all of them. A cell is given to one process,
so a process that dies costs that cell only. A signal to this process is passed on to the others, each of which then stops
with a checkpoint; they do the same when this process is gone.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import unwrap
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pkgutil import resolve_name
from types import FrameType
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, env_override, run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict
from omegaconf.basecontainer import BaseContainer

from l2d.errors import UserError
from l2d.identity import register_resolvers
from l2d.job import failure
from l2d.signals import Interrupted, StopSignal
from l2d.sweep import SweepInterrupted
from l2d.tracking.run_folder import record_death

POLL_S = 0.2  # between two looks at what died, and whether there was a signal
PROCESS_NAME = "CellProcess"  # with a number from 1, and how many there are: l2d/place/memory.py reads them
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_SPAWN = get_context("spawn")  # a forked process could not use CUDA or OpenMP if this one had


def check(n_jobs: Any, others: dict[str, Any]) -> None:
    """UserError unless the settings of the launcher can be used."""
    if others:
        raise UserError(
            f"hydra.launcher.{next(iter(others))} belongs to joblib, which l2d no longer uses; the only setting is "
            "hydra.launcher.n_jobs."
        )
    if type(n_jobs) is not int or n_jobs == 0:
        raise UserError(
            f"hydra.launcher.n_jobs={n_jobs} must be a number of processes; or -1 for one per processor, -2 for one less."
        )


def launch(launcher: Any, job_overrides: Sequence[Sequence[str]], first_index: int) -> list[JobReturn]:
    """Run the cells; return what Hydra returns for each, or raise SweepInterrupted with that after a signal."""
    setup_globals()
    configure_log(launcher.config.hydra.hydra_logging, launcher.config.hydra.verbose)
    Path(str(launcher.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    configs = []
    for index, overrides in enumerate(job_overrides, first_index):
        cfg = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, list(overrides))
        with open_dict(cfg):
            cfg.hydra.job.num, cfg.hydra.job.id = index, f"{cfg.hydra.job.name}_{index}"
        configs.append(cfg)
    task = launcher.task_function
    setup = f"{task.__module__}:{task.__qualname__}", launcher.hydra_context, Singleton.get_state()["instances"]
    pool = Pool(setup, configs, [JobReturn(overrides=list(overrides)) for overrides in job_overrides])
    stopped_by = pool.run(launcher.n_jobs if launcher.n_jobs > 0 else max(_processors() + 1 + launcher.n_jobs, 1))
    if stopped_by:
        raise SweepInterrupted(stopped_by, pool.returns)
    return pool.returns


class Pool:
    """The cells that are left, the processes at work, and what became of each cell (nothing yet: its value is None)."""

    def __init__(self, setup: Any, configs: list[DictConfig], returns: list[JobReturn]):
        self.setup, self.configs, self.returns = setup, configs, returns
        self.left = deque(range(len(configs)))
        self.workers: list[Worker] = []

    def run(self, count: int) -> int:
        """Run all cells in `count` processes; return the signal that stopped them, or 0."""
        count = self.count = min(count, len(self.configs))
        threads = {name: str(max(_processors() // count, 1)) for name in THREADS if name not in os.environ}
        forwarded = 0
        with StopSignal() as stop, env_override(threads):
            stop.patiently()
            try:
                for slot in range(count):
                    self._start(slot, list(stop.before))
                while self.workers:
                    dead = [worker for worker in self.workers if not worker.process.is_alive()]
                    ready = wait([w.connection for w in self.workers if not w.connection.closed], 0 if dead else POLL_S)
                    if stop.received and not forwarded:
                        forwarded = stop.received
                        self.left.clear()
                        for worker in self.workers:
                            worker.signal(forwarded)
                    for worker in [w for w in self.workers if w.connection in ready]:
                        self._answer(worker, stopping=bool(forwarded))
                    for worker in dead:  # what it sent before has been read by now
                        self._remove(worker)
                        if self.left:
                            self._start(worker.slot, list(stop.before))
            finally:
                for worker in self.workers:  # there are some only after an error in this process
                    worker.signal(signal.SIGTERM)
                    worker.connection.close()
                    worker.process.join()
        return forwarded

    def _start(self, slot: int, signals: list[int]) -> None:
        self.workers.append(Worker(f"{slot + 1}-{self.count}", slot, self.left.popleft(), signals))

    def _answer(self, worker: "Worker", stopping: bool) -> None:
        """Take what the process sent (that it is ready, or what became of its cell), and give it a cell or let it go."""
        try:
            returned = worker.connection.recv()
            if returned is None:
                worker.connection.send(self.setup)
                if stopping:
                    worker.cell = None
            else:
                assert worker.cell is not None
                self.returns[worker.cell], worker.cell = returned, None
                stopped = isinstance(returned._return_value, dict) and "stopped_by" in returned._return_value
                if self.left and not stopped and worker.process.is_alive():
                    worker.cell = self.left.popleft()
            worker.connection.send(None if worker.cell is None else self.configs[worker.cell])
        except (EOFError, OSError):
            worker.connection.close()  # it has ended, or is about to

    def _remove(self, worker: "Worker") -> None:
        """Remove a process that has ended; the cell that it had is recorded as failed."""
        self.workers.remove(worker)
        worker.connection.close()
        code, cell = worker.process.exitcode, worker.cell
        if cell is None:
            return
        name = signal.Signals(-code).name if code is not None and code < 0 else ""
        reason = f"killed by {name}" if name else f"its process ended with exit code {code}"
        reason += ", as the system does when memory runs out" if name == "SIGKILL" else ""
        self.returns[cell].status, self.returns[cell]._return_value = JobStatus.FAILED, RuntimeError(reason)
        sweep = self.configs[cell].hydra.sweep
        record_death(Path(sweep.dir, sweep.subdir), reason)


class Worker:
    """A process in one of the places (`slot`), and the cell that it has (None: it was told to end)."""

    def __init__(self, number: str, slot: int, cell: int, signals: list[int]):
        self.slot = slot
        self.cell: int | None = cell
        self.connection, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=work, args=(theirs, signals), name=f"{PROCESS_NAME}-{number}")
        with _blocked(signals):
            self.process.start()
        theirs.close()

    def signal(self, signum: int) -> None:
        if self.process.is_alive():
            assert self.process.pid is not None
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signum)


def work(connection: Connection, signals: list[int]) -> None:
    """What a process does: say that it is ready, then run the cells that it is given, until there are none."""
    guard = Guard()
    for signum in {*signals, signal.SIGTERM}:
        signal.signal(signum, guard.on_signal)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the sweep's process is gone
        connection.send(None)
        task, context, singletons = connection.recv()
        Singleton.set_state({"instances": singletons, "omegaconf_resolvers": BaseContainer._resolvers})
        setup_globals()
        register_resolvers()
        while (cfg := connection.recv()) is not None:
            connection.send(guard.run(task, context, cfg))


class Guard:
    """Runs a cell so that a signal, even one that comes twice, ends it once; outside of cells it is only recorded."""

    def __init__(self) -> None:
        self.received, self.running = 0, False

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        first, self.received = not self.received, signum
        if first and self.running:
            raise Interrupted(signum)

    def run(self, task: str, context: HydraContext, cfg: DictConfig) -> JobReturn:
        """What Hydra returns for the cell; its value says so if a signal stopped it."""
        returned = JobReturn(overrides=list(cfg.hydra.overrides.task), status=JobStatus.COMPLETED)
        done = None
        try:
            self.running = True
            if self.received:
                raise Interrupted(self.received)
            function = unwrap(resolve_name(task))
            done = run_job(function, cfg, "hydra.sweep.dir", "hydra.sweep.subdir", hydra_context=context)
        except Interrupted:
            returned._return_value = {"stopped_by": self.received}
        except Exception as error:  # of Hydra: the task returns its own
            returned._return_value = failure(error)
        finally:
            self.running = False
        return done or returned


def _stop_without_parent() -> None:
    """Wait for the end of the process that started this one, which may have been killed; then stop as after SIGTERM."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _blocked(signals: list[int]) -> Iterator[None]:
    """A process that is started in here has these signals blocked: they wait until it handles them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # first, because starting it unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1
