"""Jobs on a real Slurm cluster of one node: requeued, preempted, timed out, cancelled, killed and refused."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from slurm_cluster import Cluster, free_ports, missing
from test_resume import outcome

from l2d.cli import main
from l2d.signals import Interrupted, StopSignal
from l2d.slurm import requeue_if_preempted

pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the slurm extra is not installed")

# A model that can differ after a resume, and that is slow until there is a file named go.
NET = """
import os, time, torch
class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0 if os.path.exists("go") else 0.8)
        return x
def net(num_outputs, image_shape):
    return torch.nn.Sequential(
        Slow(), torch.nn.Flatten(), torch.nn.Linear(192, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Dropout(0.3),
        torch.nn.Linear(24, num_outputs))
"""
SETTING = (
    "backbone._target_=slow_net.net", "~backbone.hidden", "~backbone.layers", "experts.resample=per_epoch",
    "dataset.num_train=400", "dataset.num_test=200", "trainer.batch_size=50", "trainer.epochs=40",
    "trainer.checkpoint_minutes=0.01",
)  # fmt: skip
MODULE = ("-m", "l2d", "train")
TWO_TASKS = f"""#!/bin/bash
#SBATCH --ntasks=2 --gpus=1 --partition=grace --output=ddp.txt --open-mode=append
srun --kill-on-bad-exit=1 {shlex.join([sys.executable, *MODULE, *SETTING])}
"""


class Stage:
    """Commands that run at the same time, each in a folder of its own below `root`."""

    def __init__(self, root: Path, cluster: Cluster):
        self.root, self.cluster = root, cluster
        self.running: dict[str, subprocess.Popen] = {}

    def start(self, name: str, *command: str, files: dict[str, str] | None = None, **environment: str) -> None:
        folder = self.root / name
        folder.mkdir()
        for file, text in {"slow_net.py": NET, **(files or {})}.items():
            (folder / file).write_text(text)
        with (folder / "out.txt").open("w") as out, (folder / "err.txt").open("w") as err:
            env = {**self.cluster.environment, **environment}
            self.running[name] = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=err)

    def sweep(self, name: str, seeds: str, partition: str, *words: str) -> None:
        launcher = ("hydra/launcher=slurm", f"hydra.launcher.partition={partition}", *words)
        self.start(name, sys.executable, *MODULE, "-m", *SETTING, f"seed={seeds}", *launcher)

    def ended(self, name: str) -> bool:
        return self.running[name].poll() is not None

    def job(self, name: str) -> str:
        """The number of its Slurm job; "" if it is not submitted yet."""
        return (self.root / name / "out.txt").read_text().partition(" job ")[2].partition(";")[0].strip()

    def checkpoints(self, name: str) -> int:
        return len(list((self.root / name).glob("outputs/*/*/checkpoint.pt")))

    def fact(self, job: str, key: str) -> str:
        words = self.cluster.run("scontrol", "show", "job", "--oneliner", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)[key]

    def restarts(self, job: str) -> int:
        return int(self.fact(job, "Restarts"))

    def shorten(self, job: str) -> None:
        """Let its time be up soon; Slurm looks every 30 s whether a job is to be warned."""
        hours, minutes, seconds = map(int, self.fact(job, "RunTime").split(":"))
        limit = -(-(3600 * hours + 60 * minutes + seconds + 35) // 60)
        self.cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not ready():
            queue = self.cluster.run("squeue", "--states=all") if time.monotonic() > deadline else ""
            assert not queue, f"{what} did not happen:\n{queue}"
            time.sleep(0.3)


def play(stage: Stage) -> dict[str, int]:
    """Disturb jobs of all kinds at the same time, then let all end; return how often each job was queued again."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    short = [f"hydra.launcher.{word}" for word in ("gpus_per_node=null", "timeout_min=3", "signal_delay_s=10")]
    stage.start("calm", sys.executable, *MODULE, "-m", *SETTING, "seed=0,1", files={"go": ""})
    stage.start("calm_ddp", sys.executable, *torchrun, *MODULE, *SETTING, files={"go": ""})
    stage.sweep("work", "0,1,2,3", "work")
    stage.sweep("grace", "0", "grace")
    stage.start("ddp", "sbatch", "--wait", "job.sh", files={"job.sh": TWO_TASKS}, **address)
    stage.sweep("timeout", "0", "urgent", *short)
    stage.sweep("last_timeout", "0", "urgent", *short, "hydra.launcher.max_num_timeout=0")
    stage.sweep("refused", "0,1", "nowhere")
    stage.sweep("left", "0", "work", "+hydra.launcher.additional_parameters.hold=true")
    for name, count in {"work": 4, "grace": 1, "ddp": 1, "timeout": 1, "last_timeout": 1}.items():
        stage.wait(f"training of {name}", lambda name=name, count=count: stage.checkpoints(name) == count)
    stage.wait("submission of left", lambda: bool(stage.job("left")))

    jobs = {name: stage.job(name) for name in ("grace", "ddp", "timeout", "last_timeout")}
    jobs |= {f"work_{cell}": f"{stage.job('work')}_{cell}" for cell in range(4)}
    for name in ("timeout", "last_timeout"):
        stage.shorten(jobs[name])
    stage.cluster.run("scontrol", "requeue", jobs["work_1"])
    stage.cluster.run("scancel", jobs["work_2"])
    (owner,) = stage.root.glob("work/outputs/*/*-seed3-*/.owner")
    os.kill(int(owner.read_text().split()[1]), signal.SIGKILL)
    stage.running["left"].send_signal(signal.SIGINT)
    stage.cluster.run(
        "sbatch", "--partition=urgent", f"--gpus={stage.cluster.gpus}", "--output=/dev/null", "--wrap=sleep 1"
    )
    for name, command in {
        "work_0": "work",
        "work_1": "work",
        "grace": "grace",
        "ddp": "ddp",
        "timeout": "timeout",
    }.items():
        stage.wait(f"{name} again", lambda job=jobs[name], end=command: stage.restarts(job) > 0 or stage.ended(end))
    stage.wait("the last time-out", lambda: stage.ended("last_timeout"))
    for name in stage.running:
        (stage.root / name / "go").touch()
    stage.wait("the end of all", lambda: all(map(stage.ended, stage.running)))
    return {name: stage.restarts(job) for name, job in jobs.items()}


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> dict:
    """What came of `play`: its folder, how often each job was queued again, and the exit codes. Workers of xdist share it."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "slurm"
    root.mkdir(exist_ok=True)
    with FileLock(root / "lock"):
        if not (root / "played.json").exists():
            with Cluster() as cluster:
                stage = Stage(root, cluster)
                try:
                    restarts = play(stage)
                finally:
                    for process in stage.running.values():
                        process.kill()
                        process.wait()
            codes = {name: process.returncode for name, process in stage.running.items()}
            (root / "played.json").write_text(json.dumps({"root": str(root), "restarts": restarts, "codes": codes}))
    return json.loads((root / "played.json").read_text())


def said(played: dict, name: str, file: str = "err.txt") -> str:
    return Path(played["root"], name, file).read_text()


def ended_with(played: dict, name: str, seed: int = 0) -> tuple:
    """Weights, metrics and result of a run."""
    return outcome(Path(played["root"], name, "outputs"), f"*-seed{seed}-*")


def on_a_cluster(test):
    absent = missing()
    return pytest.mark.slow(pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} not installed")(test))


@on_a_cluster
@pytest.mark.parametrize(
    ("name", "cell", "seed"),
    [("work", "work_0", 0), ("work", "work_1", 1), ("grace", "grace", 0), ("timeout", "timeout", 0)],
    ids=["preempted", "requeued", "preempted with grace", "timed out"],
)
def test_a_disturbed_cell_is_queued_again_and_ends_as_if_undisturbed(played, name, cell, seed):
    assert played["restarts"][cell] >= 1
    assert ended_with(played, name, seed) == ended_with(played, "calm", seed)


@on_a_cluster
def test_two_tasks_of_srun_train_one_model_and_are_queued_again_by_one_of_them(played):
    assert said(played, "ddp", "ddp.txt").count("it is queued again") == 1
    assert (played["restarts"]["ddp"], played["codes"]["ddp"]) == (1, 0)
    assert ended_with(played, "ddp") == ended_with(played, "calm_ddp")


@on_a_cluster
def test_a_cancelled_or_killed_job_is_the_failure_of_its_cell_alone(played):
    assert "2 done, 0 finished before, 2 failed" in said(played, "work", "out.txt")
    cancelled, killed = said(played, "work").splitlines()
    assert "seed=2: " in cancelled and "(CANCELLED)" in cancelled
    assert "seed=3: " in killed and "(FAILED)" in killed
    assert [played["restarts"][cell] for cell in ("work_2", "work_3")] == [0, 0] and played["codes"]["work"] == 1
    assert {name: played["codes"][name] for name in ("grace", "timeout")} == {"grace": 0, "timeout": 0}


@on_a_cluster
def test_a_refused_job_is_a_sentence_for_every_cell(played):
    first, second = said(played, "refused").splitlines()
    assert "seed=0: " in first and "seed=1: " in second and first.count("nowhere") == second.count("nowhere") == 1
    assert "0 done, 0 finished before, 2 failed" in said(played, "refused", "out.txt")
    assert played["codes"]["refused"] == 2


@on_a_cluster
def test_a_time_out_too_many_names_its_setting(played):
    (line,) = said(played, "last_timeout").splitlines()
    assert "hydra.launcher.max_num_timeout" in line
    assert (played["restarts"]["last_timeout"], played["codes"]["last_timeout"]) == (0, 2)


@on_a_cluster
def test_ctrl_c_leaves_the_jobs_alone_and_names_them(played):
    (line,) = said(played, "left").splitlines()
    assert "scancel " in line and played["codes"]["left"] == 130


FACTS = {"JobState": "RUNNING", "BatchFlag": "1", "Requeue": "1", "PreemptTime": "2026-01-01T00:00:00"}


@pytest.mark.parametrize(
    ("facts", "environment", "requeued"),
    [
        ({}, {}, "7"),
        ({}, {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}, "7_2"),
        ({}, {"SLURM_PROCID": "1"}, ""),
        ({}, {"SLURM_PROCID": "0", "RANK": "1"}, ""),
        ({"JobState": "COMPLETING"}, {}, ""),
        ({"BatchFlag": "0"}, {}, ""),
        ({"Requeue": "0"}, {}, ""),
        ({"PreemptTime": "None"}, {}, ""),
    ],
)
def test_only_a_preempted_batch_job_that_may_be_requeued_is_and_by_its_first_process(
    tmp_path, monkeypatch, facts, environment, requeued
):
    shown = " ".join(f"{key}={value}" for key, value in {**FACTS, **facts}.items())
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f'#!/bin/sh\ncase $1 in show) echo "{shown}";; requeue) echo "$2" >{tmp_path}/requeued;; esac\n'
    )
    scontrol.chmod(0o755)
    for name in ("RANK", "SLURM_PROCID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}", **environment}.items():
        monkeypatch.setenv(name, value)
    requeue_if_preempted()
    found = tmp_path / "requeued"
    assert (found.read_text().strip() if found.exists() else "") == requeued


def test_a_missing_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Plugins.instance()  # loads the extra's settings
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], "submitit_slurm.yaml")
    with pytest.raises(SystemExit) as stop:
        main(["train", "-m", "seed=0,1", "hydra/launcher=slurm"])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and "hydra/launcher/slurm" in err and "l2d[slurm]" in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["timeout_min=5"], ["timeout_min=5", "signal_delay_s=120"]),
        (["timeout_min=30", "signal_delay_s=1800"], ["timeout_min=30", "signal_delay_s=1800"]),
        (["timeout_min=6"], ["sbatch"]),  # enough time, but no Slurm
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_submitted(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["train", "-m", "seed=0,1", "hydra/launcher=slurm", *(f"hydra.launcher.{word}" for word in words)])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and all(text in err for text in named)
    assert not list(tmp_path.iterdir())


def test_a_sigterm_that_follows_the_launchers_signal_does_not_replace_it():
    called = []
    before = signal.signal(signal.SIGUSR2, lambda signum, frame: called.append(signum))
    try:
        with StopSignal() as stop, pytest.raises(Interrupted) as interrupted:
            stop.patiently()
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGTERM)
            stop.leave()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert called == [signal.SIGUSR2] and interrupted.value.code == 128 + signal.SIGUSR2
