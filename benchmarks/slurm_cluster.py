"""A Slurm cluster of one node in a folder of its own, without root: for the tests, and for a person to try (scripts/slurm_local)."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

DAEMONS = ("munged", "slurmctld", "slurmd")
# Debian's daemons are in /usr/sbin, which a user's PATH may not have.
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
CONFIG = """\
ClusterName=l2d
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=2,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=300
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=1000000 Gres=gpu:{gpus}
PartitionName=work Nodes=ALL Default=YES PriorityTier=1 GraceTime=0
PartitionName=grace Nodes=ALL PriorityTier=1 GraceTime={grace}
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""
USAGE = """\
A Slurm cluster of one node runs in {folder}; Ctrl-C stops it and removes that folder. In another terminal:

    export SLURM_CONF={folder}/slurm.conf
    sinfo
    l2d train -m seed=0,1,2 hydra/launcher=slurm hydra.launcher.partition=work trainer.epochs=300
    squeue

Partition work is preempted at once by jobs in partition urgent, partition grace with {grace} s of warning:

    sbatch --partition=urgent --gpus={gpus} --wrap="sleep 10"

Its {gpus} GPUs, 64 CPUs and 1 TB are numbers only: nothing is reserved, and there need be no GPU."""


class Cluster:
    """`with Cluster() as cluster`: commands with `cluster.environment` use it. In the end its jobs are killed."""

    grace, gpus = 20, 6  # seconds of warning in partition grace; GPUs, which nothing stands behind

    def __enter__(self) -> "Cluster":
        self.folder = Path(tempfile.mkdtemp(prefix="l2d-slurm-"))  # short: a socket's path has at most 107 letters
        self.daemons: list[subprocess.Popen] = []
        outside = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        self.environment = {**outside, "SLURM_CONF": str(self.folder / "slurm.conf")}
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, *command: str) -> str:
        """What a command of Slurm prints; an error with what it said if it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def stop(self) -> None:
        """Kill all jobs, stop the daemons and remove the folder."""
        if len(self.daemons) == len(DAEMONS):
            self._kill_jobs()
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        folder = self.folder
        ports = free_ports(2)
        settings = {
            "host": socket.gethostname().partition(".")[0],
            "user": os.getuid(),
            "ctld_port": ports[0],
            "slurmd_port": ports[1],
            "gpus": self.gpus,
            "grace": self.grace,
            "folder": folder,
        }
        (folder / "slurm.conf").write_text(CONFIG.format(**settings))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{self.gpus - 1}]\n")
        for number in range(self.gpus):
            (folder / f"gpu{number}").touch()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        files = [f"--{kind}-file={folder}/munged.{kind}" for kind in ("log", "pid", "seed")]
        files += [f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
        self._daemon("munged", "--foreground", "--force", *files)  # force: a folder that others cannot read will do
        self._wait_for("munged", lambda: (folder / "munge.socket").exists())
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D")
        self._wait_for("slurmd", lambda: "idle" in self._try("sinfo", "--noheader", "--format=%T"))

    def _daemon(self, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=SEARCHED) or name
        with (self.folder / f"{name}.out").open("w") as log:
            command, own_session = [program, *arguments], True  # so that Ctrl-C does not reach it
            self.daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=own_session)
            )

    def _wait_for(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not ready():
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self.daemons):
                logs = [path.read_text()[-1000:] for path in sorted(self.folder.glob("*.out"))]
                raise RuntimeError(f"{name} did not start: {' '.join(logs)}")
            time.sleep(0.1)

    def _try(self, *command: str) -> str:
        try:
            return self.run(*command)
        except RuntimeError:
            return ""

    def _kill_jobs(self) -> None:
        user = f"--user={os.getuid()}"
        self._try("scancel", "--signal=KILL", "--full", user)
        self._try("scancel", user)
        deadline = time.monotonic() + 30
        while self._try("squeue", "--noheader") and time.monotonic() < deadline:
            time.sleep(0.2)


def missing() -> list[str]:
    """The programs that a cluster needs and that are not installed."""
    return [name for name in (*DAEMONS, "sbatch", "srun") if shutil.which(name, path=SEARCHED) is None]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    if missing():
        sys.exit(f"{', '.join(missing())} not found; on Debian or Ubuntu: apt-get install slurm-wlm munge")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    with suppress(KeyboardInterrupt), Cluster() as cluster:
        print(USAGE.format(folder=cluster.folder, grace=cluster.grace, gpus=cluster.gpus), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
