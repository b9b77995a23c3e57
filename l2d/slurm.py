"""All that knows Slurm: the cells of a sweep as jobs, and a preempted job that is queued again."""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from l2d.errors import UserError, notify, show

EARLY_S = 60  # Slurm may send the signal of signal_delay_s this much too early
MAX_POLL_S = 30  # between two calls of squeue
RESULT_DELAY_S = 15  # a network disk may show a job's result this much later than squeue shows its end
GONE = "UNKNOWN"  # what a job is in that squeue does not list any more
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", GONE,
}  # fmt: skip
# Which settings help a job that ended in this state.
REMEDIES = {
    "OUT_OF_MEMORY": "hydra.launcher.mem_gb={mem_gb} was not enough",
    "TIMEOUT": "its checkpoint took longer than hydra.launcher.signal_delay_s={signal_delay_s}",
}


def requeue_if_preempted() -> None:
    """After a SIGTERM: queue this job again if Slurm preempts it with a grace time, because it ends before that time is over.

    PreemptTime is set by preemption alone. A job that was cancelled, or that Slurm queues again itself, is not RUNNING any more.
    """
    job, first = _own_job(), os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    if not job or not first:
        return
    before = signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # inherited by scontrol: requeuing sends SIGTERM to all of a job
    try:
        words = _output("scontrol", "show", "job", "--oneliner", job).split()
        facts = dict(word.split("=", 1) for word in words if "=" in word)
        allowed = (facts.get("JobState"), facts.get("BatchFlag"), facts.get("Requeue")) == ("RUNNING", "1", "1")
        if allowed and facts.get("PreemptTime", "None") != "None":
            _output("scontrol", "requeue", job)
            notify(f"Slurm preempts job {job}; it is queued again.")
    except (OSError, subprocess.SubprocessError) as error:
        notify(f"Slurm job {job} was not queued again by this process: {_reason(error)}")
    finally:
        signal.signal(signal.SIGTERM, before)


def check(params: dict[str, Any]) -> None:
    """Refuse, before anything is submitted, a machine without Slurm and a time limit of which the warning leaves too little."""
    minutes, delay = params["timeout_min"], params["signal_delay_s"]
    needed = -(-2 * (delay + EARLY_S) // 60)  # at least half of the time is for the training
    if 0 < minutes < needed:  # 0: no limit
        raise UserError(
            f"hydra.launcher.timeout_min={minutes} leaves too little time before the warning at hydra.launcher.signal_delay_s={delay}"
            f", which Slurm may send {EARLY_S} s too early; set timeout_min to {needed} or more, or signal_delay_s to less."
        )
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("hydra/launcher=slurm needs the commands sbatch and srun; run it where Slurm is installed.")


def run_jobs(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], params: dict[str, Any]) -> list[Any]:
    """A job per tuple of arguments, several as an array: what `call` returned in each, or {"error": ..., "by_user": ...}."""
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

    settings = dict(params)
    folder, timeouts = settings.pop("submitit_folder"), settings.pop("max_num_timeout")
    executor = submitit.AutoExecutor(cluster="slurm", folder=folder, slurm_max_num_timeout=timeouts)
    general = BaseQueueConf.__dataclass_fields__  # the others are sbatch's
    executor.update_parameters(**{key if key in general else f"slurm_{key}": value for key, value in settings.items()})
    try:
        with redirect_stderr(StringIO()):  # submitit prints what sbatch says; the failures below say it too
            jobs = executor.map_array(call, *zip(*arguments, strict=True))
    except submitit.core.utils.FailedJobError as error:
        return [{"error": f"sbatch refused the job: {_reason(error)}", "by_user": True}] * len(arguments)
    number = jobs[0].job_id.partition("_")[0]
    show(f"submitted {len(jobs)} as Slurm job {number}; their output: {jobs[0].paths.folder.parent}")
    try:
        return _collect(jobs, number, params)
    except KeyboardInterrupt:
        notify(f"Slurm job {number} goes on without this process; `scancel {number}` cancels it.")
        sys.exit(128 + signal.SIGINT)


def _collect(jobs: list[Any], number: str, params: dict[str, Any]) -> list[Any]:
    """Wait until every job has a result or is gone for good. squeue, because not every cluster keeps accounts for sacct."""
    outcomes: dict[str, Any] = {}
    ended: dict[str, float] = {}  # since when, of jobs without a result
    started = time.monotonic()
    while len(outcomes) < len(jobs):
        time.sleep(min(MAX_POLL_S, 1 + (time.monotonic() - started) / 10))
        states, now = _states(number), time.monotonic()
        for job in jobs:
            name, result = job.job_id, job.task(0).paths.result_pickle
            if name in outcomes or (states is None and not result.exists()):
                continue
            state = (states or {}).get(name, GONE)
            if result.exists():
                outcomes[name] = _result(result)
            elif state not in ENDED:
                ended.pop(name, None)  # it was queued again
            elif now - ended.setdefault(name, now) >= RESULT_DELAY_S:
                remedy = f": {REMEDIES[state].format(**params)}" if state in REMEDIES else ""
                text = (
                    f"Slurm job {name} ended without a result ({state}){remedy}; its output: {job.task(0).paths.stdout}"
                )
                outcomes[name] = {"error": text, "by_user": state in REMEDIES}
    return [outcomes[job.job_id] for job in jobs]


def _states(number: str) -> dict[str, str] | None:
    """The state of every job of an array (or of a single job); None if Slurm does not answer."""
    try:
        listed = _output("squeue", "--noheader", "--array", "--states=all", f"--jobs={number}", "--format=%i %T")
    except (OSError, subprocess.SubprocessError) as error:
        return {} if "Invalid job id" in _reason(error) else None
    return dict(line.split() for line in listed.splitlines())


def _result(path: Path) -> Any:
    """What a job returned; of an exception outside of the run its last line."""
    with path.open("rb") as file:
        kind, value = pickle.load(file)
    return value if kind == "success" else {"error": value.strip().splitlines()[-1], "by_user": False}


def _own_job() -> str | None:
    """The job that this process is part of. The first job of an array has the array's number, which names all of its jobs."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def _reason(error: Exception) -> str:
    """What a command of Slurm said when it failed, in one line: 'sbatch: error: invalid partition' -> 'invalid partition'."""
    text = getattr(error, "stderr", None) or str(error)
    return "; ".join(re.sub(r"^\w+: ((error|fatal): )?", "", line) for line in text.strip().splitlines())
