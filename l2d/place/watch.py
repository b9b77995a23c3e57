"""Notices that another rank died or failed. Every rank holds a TCP connection to rank 0, which the kernel closes with its process.

A rank need not do anything to count as alive, so one that is busy, holds the GIL or is stopped is never taken for dead; a
machine that is gone no longer answers the kernel's keep-alive probes.
"""

import json
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import NamedTuple, TypeVar

import torch.distributed as dist

from l2d.errors import UserError, notify, sentence

EVER = 2**53  # the number of a run that is never reached
GRACE_S = 5.0  # for the main thread to fail by itself, as it does if its collective fails
END_S = 20.0  # for the main thread to leave once it was interrupted; after that the process is ended
MEETING_MINUTES = 30.0  # until the processes that were started together have started
# A machine that answers no probe for 10 + 4 x 5 seconds is gone. The last entry is for what was sent and not acknowledged.
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
INTERRUPT = getattr(signal, "SIGURG", None)  # ignored by default, so nothing else sends it; Windows has none

Result = TypeVar("Result")


class Notice(NamedTuple):
    """What rank `rank` says of the runs `first` to `last` of a process: it has left them, or why they cannot go on."""

    rank: int
    first: int
    last: int
    reason: str | None = None


@dataclass
class Peer:
    """The other end of a connection."""

    socket: socket.socket
    rank: int | None = None  # None until it has said who it is
    left: int = -1  # the last run that it has left
    received: bytes = b""


class Watch:
    """The connections of this process, for as long as it lives. It is in run 0 from the start, and between runs in none.

    If another rank dies or fails, the run here ends too: by an error of its own within GRACE_S; else by a UserError in the
    main thread; else, where that is blocked outside Python, by the end of the process.
    """

    def __init__(self, rank: int, count: int, store: dist.Store, host: str):
        self.rank, self.count = rank, count
        self.number = -1  # of the latest run that was entered
        self.run: int | None = 0  # the run that this process is in
        self.notices: list[Notice] = []  # those with a reason
        self.changed = threading.Condition()
        self.sending = threading.Lock()
        self.peers: list[Peer] = []
        self.selector = selectors.DefaultSelector()
        if rank == 0:
            self._serve(store)
        else:
            self._connect(store, host)
        if INTERRUPT and threading.current_thread() is threading.main_thread():
            signal.signal(INTERRUPT, self._interrupted)
        os.register_at_fork(after_in_child=self._close)  # a worker must not hold the connection of a dead parent open
        threading.Thread(target=self._listen, name="l2d-watch", daemon=True).start()

    @contextmanager
    def one_run(self) -> Iterator[None]:
        """Around a run: refuses one that another rank cannot take part in, and tells the others what ended it here."""
        with self.changed:
            self.number += 1
            self.run = self.number
        with self.told():
            self.refuse_if_lost()
            yield

    @contextmanager
    def told(self, ever: bool = False) -> Iterator[None]:
        """What ends the block is told to the others: about this run, or about this and all later ones."""
        reason = None
        try:
            yield
        except BaseException as error:
            reason = self._words(error)
            raise
        finally:
            self.leave(reason, ever)

    def leave(self, reason: str | None = None, ever: bool = False) -> None:
        """Leave the run if this process is still in it, or with `ever` all runs. From here on no other rank is needed."""
        with self.changed:
            run, self.run = self.run, None
            self.changed.notify_all()
        first = self.number + 1 if run is None else run
        if run is not None or ever:
            self._send(Notice(self.rank, first, EVER if ever else first, reason))

    def failed(self, error: BaseException) -> None:
        """Leave the run because of this error."""
        self.leave(self._words(error))

    def problem(self, wait: float = 0.0) -> str | None:
        """Why the run cannot go on, if another rank said so or died; waits for the news if there are none yet."""
        with self.changed:
            self.changed.wait_for(self._problem, wait)
        return self._problem()

    def refuse_if_lost(self) -> None:
        reason = self._problem()
        if reason:
            raise UserError(f"Process {self.rank} stops, because {reason.rstrip('.')}.")

    def _problem(self) -> str | None:
        run = self.run
        return next((n.reason for n in self.notices if run is not None and n.first <= run <= n.last), None)

    def _words(self, error: BaseException) -> str | None:
        name = f"process {self.rank} of {self.count}"
        if isinstance(error, SystemExit):
            code = error.code
            if isinstance(code, int) and code > 128:
                return f"{name} was stopped by signal {code - 128}"
            return f"{name} ended with exit code {code}" if code else None
        return f"{name} failed: {sentence(error) if isinstance(error, Exception) else type(error).__name__}"

    def _serve(self, store: dist.Store) -> None:
        try:
            self.listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        except (OSError, ValueError):  # no IPv6 here
            self.listener = socket.create_server(("", 0))
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.token = secrets.token_hex(16)
        store.set("watch", f"{self.listener.getsockname()[1]} {self.token}")

    def _connect(self, store: dist.Store, host: str) -> None:
        again_and_again(lambda: store.wait(["watch"], timedelta(seconds=5)), "it has not started")
        port, token = store.get("watch").decode().split()
        address = (host, int(port))
        connection = again_and_again(
            lambda: socket.create_connection(address, timeout=5), f"port {port} of {host} cannot be reached"
        )
        connection.settimeout(None)
        connection.sendall(f"{token} {self.rank}\n".encode())
        self._add(Peer(connection, rank=0))

    def _add(self, peer: Peer) -> None:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):
                peer.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.peers.append(peer)
        self.selector.register(peer.socket, selectors.EVENT_READ, peer)

    def _listen(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    self._add(Peer(self.listener.accept()[0]))
                else:
                    self._read(key.data)

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.socket.recv(65536)
        except OSError:  # reset, or no answer to the probes
            data = b""
        peer.received += data
        *lines, peer.received = peer.received.split(b"\n")
        for line in lines:
            if peer.rank is None:
                token, _, rank = line.decode(errors="replace").partition(" ")
                if token != self.token:
                    data = b""  # not one of ours
                    break
                peer.rank = int(rank)
                continue
            notice = Notice(*json.loads(line))
            if notice.rank == peer.rank:
                peer.left = max(peer.left, notice.last)
            if notice.reason:
                self._hear(notice)
        if not data:
            self.selector.unregister(peer.socket)
            self.peers.remove(peer)
            peer.socket.close()
            if peer.rank is not None and peer.left < EVER:
                who = f"process {peer.rank} of {self.count}"
                why = "ended without an error message (it was killed, or its machine or network failed)"
                self._hear(Notice(peer.rank, peer.left + 1, EVER, f"{who} {why}"))

    def _hear(self, notice: Notice) -> None:
        if self.rank == 0:
            self._send(notice)
        with self.changed:
            self.notices.append(notice)
            self.changed.notify_all()
        if self._problem():
            threading.Thread(target=self._end, args=(self.run,), daemon=True).start()

    def _send(self, notice: Notice) -> None:
        """To rank 0; from there to all but the one that it is about."""
        with self.sending:
            for peer in [p for p in self.peers if p.rank not in (None, notice.rank)]:
                with suppress(OSError):  # it is gone as well
                    peer.socket.sendall(json.dumps(notice).encode() + b"\n")

    def _end(self, run: int | None) -> None:
        if self._has_left(run, GRACE_S):
            return
        if INTERRUPT and signal.getsignal(INTERRUPT) == self._interrupted:
            deadline = time.monotonic() + END_S
            while time.monotonic() < deadline:  # again and again: code that ignores errors may be what is interrupted
                signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)
                if self._has_left(run, 1.0):
                    return
        notify(f"Process {self.rank} stops, because {self._problem()}.")
        os._exit(2)

    def _has_left(self, run: int | None, seconds: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.run != run, seconds)

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        self.refuse_if_lost()

    def _close(self) -> None:
        for peer in self.peers:
            peer.socket.close()


def again_and_again(attempt: Callable[[], Result], problem: str) -> Result:
    """What `attempt` returns, tried until MEETING_MINUTES have passed; in between signals are handled."""
    deadline = time.monotonic() + 60 * MEETING_MINUTES
    while True:
        try:
            return attempt()
        except (OSError, dist.DistError) as error:
            if time.monotonic() > deadline:
                raise UserError(f"Process 0 of this run was waited for in vain: {problem}.") from error
            time.sleep(0.1)
