"""Signals that stop a run: at once before the training, after the current step during it."""

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from l2d.errors import UserError, sentence
from l2d.slurm import requeue_if_preempted

_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")  # Windows has the first two
SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


class Interrupted(SystemExit):
    """The run was asked to stop; the exit code is the signal's conventional one."""

    def __init__(self, signum: int):
        super().__init__(128 + signum)


class StopSignal:
    """`with StopSignal() as stop`: a signal ends the run at once. After `stop.patiently()` it only sets `stop.received` to its
    number (0: no signal yet), and the training loop stops after the step.

    SIGUSR2 is handled only if a handler (of a cluster's launcher) is installed; `leave` then calls that handler. A signal that
    is ignored stays ignored, as SIGHUP is under nohup.
    """

    def __init__(self) -> None:
        self.received, self.patient = 0, False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                before = signal.getsignal(signum)
                launcher_only = signum == getattr(signal, "SIGUSR2", None) and not callable(before)
                if before is not signal.SIG_IGN and not launcher_only:
                    self.before[signum] = before
                    signal.signal(signum, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, before in self.before.items():
            signal.signal(signum, before)

    def patiently(self) -> None:
        """From here on a signal is only recorded."""
        self.patient = True

    def leave(self) -> None:
        """End the run: by the handler that was installed before, if there is one, else with the conventional exit code."""
        if self.received == signal.SIGTERM:
            requeue_if_preempted()
        self.__exit__(None, None, None)
        before = self.before.get(self.received)
        if callable(before) and before is not signal.default_int_handler:
            try:
                os.kill(os.getpid(), self.received)
            except Exception as error:
                if self.received not in (
                    signal.SIGTERM,
                    signal.SIGINT,
                ):  # a cluster's launcher does not queue the job again
                    reason = f"{sentence(error).rstrip('.')} (hydra.launcher.max_num_timeout)"
                    raise UserError(f"{reason}; the same command continues the run.") from error
                raise
        raise Interrupted(self.received)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.received = self.received or signum  # the first is the reason: at a time-out SIGTERM may follow SIGUSR2
        if not self.patient:
            if not isinstance(getattr(self.before[signum], "__self__", None), StopSignal):  # else that one says it
                sys.stderr.write("l2d: Stopped before the first step; there is nothing to keep.\n")
            self.leave()
