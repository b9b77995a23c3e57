"""Two processes on the CPU train one model together: the numbers of one process, and one end for both."""

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import children
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from l2d.errors import UserError
from l2d.place import Ranks, watch
from l2d.training.checkpoint import NAMES

# 201 test samples: an odd number, so that the two ranks evaluate different shares.
SMALL = (
    "dataset.num_train=400",
    "dataset.num_test=201",
    "trainer.batch_size=50",
    "trainer.epochs=3",
    "backbone.hidden=16",
)
EVERY_STEP = "trainer.checkpoint_minutes=0"
# Batch norm, dropout and experts that change: what differs between ranks, and after a resume.
NETS = """
import ctypes, os, signal, threading, time, torch
from l2d.data import listed_by, synthetic
from l2d.data.dataset import Generated
from l2d.models import MLP
from l2d.place import watch

watch.END_S = 8.0

def dropout_net(num_outputs, image_shape):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(192, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3),
        torch.nn.Linear(16, num_outputs))

class Slow(MLP):
    def forward(self, images):
        time.sleep(0.05)
        return super().forward(images)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def leave_a_child_and_die():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    open("child.txt", "w").write(str(child))
    kill()

ACTS = {
    "leave_a_child_and_die": leave_a_child_and_die,
    "raise": lambda: (_ for _ in ()).throw(ValueError("the fifth step is unlucky")),
    "kill": kill,
    "kill_soon": lambda: threading.Timer(1, kill).start(),
    "stop": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sleep": lambda: time.sleep(5),
    "sleep_for_ever": lambda: time.sleep(1000),
    "block_for_ever": lambda: torch.distributed.HashStore().wait(["nothing"]),  # signals do not end this
    "hold_the_gil": lambda: ctypes.PyDLL(None).sleep(70),
}

def moment(name):  # EVENTS="loading 1 kill" says what happens when, and in which rank
    open(f"{name}.{os.environ['RANK']}", "w").close()
    for event in filter(None, os.environ.get("EVENTS", "").split(",")):
        when, rank, act = event.split()
        if (when, rank) == (name, os.environ["RANK"]):
            while name == "listing" and not os.path.exists(f"{name}.{1 - int(rank)}"):
                time.sleep(0.05)  # until the processes have met
            ACTS[act]()

class Net(MLP):
    steps = 0
    def forward(self, images):
        Net.steps += 1
        if Net.steps == 5:
            moment("training")
        return super().forward(images)

@listed_by(Generated)
def data(name, **settings):
    moment("loading")
    return synthetic(name, **settings)

def unlisted(name, **settings):  # built to be identified, before the run
    moment("listing")
    return synthetic(name, **settings)
"""
EVENTFUL = (*SMALL, "backbone._target_=nets.Net", "dataset._target_=nets.data")
DROPOUT = (
    *SMALL[:-1], "backbone._target_=nets.dropout_net", "~backbone.hidden", "~backbone.layers", "experts.resample=per_epoch",
)  # fmt: skip


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    return tmp_path


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(*arguments: str, ranks: int = 2, **environment: str) -> list:
    """l2d-train in `ranks` processes that know each other as torchrun's do; what rank r says goes to output{r}.txt."""
    meeting = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()} if ranks > 1 else {}
    return [
        children.start(*arguments, output=f"output{r}.txt", RANK=str(r), LOCAL_RANK=str(r), **meeting, **environment)
        for r in range(ranks)
    ]


def wait(processes: list) -> list[int]:
    return [children.wait(process) for process in processes]


def said(rank: int = 0) -> str:
    return Path(f"output{rank}.txt").read_text()


def run_folder() -> Path:
    (folder,) = {path.parent for path in Path("outputs").glob("*/*/config.yaml")}
    return folder


def outcome() -> tuple[dict[str, torch.Tensor], list[dict[str, str]], dict]:
    """Weights, metrics.csv and result.json of the only run, without what is a matter of time."""
    folder = run_folder()
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "finished", result
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    weights = load_file(folder / "model.safetensors")
    timeless = {k: v for k, v in result.items() if k not in ("seconds", "attempts", "peak_memory_mb")}
    return weights, [{k: v for k, v in row.items() if k != "images_per_second"} for row in rows], timeless


def wait_for_checkpoint() -> None:
    deadline = time.monotonic() + 60
    while not list(Path("outputs").glob(f"*/*/{NAMES[1]}")) and time.monotonic() < deadline:
        time.sleep(0.005)


def same_weights(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["score", "two_stage"])
def test_two_processes_give_the_weights_metrics_and_files_of_one(workplace, system):
    seen = {}
    for ranks in (1, 2):
        folder = workplace / str(ranks)
        folder.mkdir()
        os.chdir(folder)
        assert wait(start(*SMALL, "trainer.eval_every=1", f"system={system}", ranks=ranks)) == [0] * ranks, said()
        files = sorted(str(path.relative_to(folder)) for path in folder.glob("outputs/**/*"))
        seen[ranks] = (*outcome(), files)
    os.chdir(workplace)
    (one, rows_one, result_one, files_one), (two, rows_two, result_two, files_two) = seen[1], seen[2]
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)
    assert result_two["metrics"] == result_one["metrics"]
    assert [row["system_error"] for row in rows_two] == [row["system_error"] for row in rows_one]
    assert [float(row["loss"]) for row in rows_two] == pytest.approx([float(row["loss"]) for row in rows_one], rel=1e-5)
    assert (result_one.pop("ranks"), result_two.pop("ranks")) == (1, 2)
    assert files_one == files_two
    assert Path("2/output1.txt").read_text() == "", "only the first process speaks"


@pytest.mark.slow
def test_a_run_of_two_ranks_resumes_with_two_and_not_with_one(workplace):
    """Stopped by a signal to the second process alone, inside an epoch; afterwards started again."""
    assert wait(start(*DROPOUT)) == [0, 0], said()
    undisturbed, rows, result = outcome()
    os.rename("outputs", "undisturbed")

    ranks = start(*DROPOUT, EVERY_STEP)
    wait_for_checkpoint()
    os.kill(ranks[1].pid, signal.SIGTERM)
    assert wait(ranks) == [128 + signal.SIGTERM] * 2
    assert json.loads((run_folder() / "result.json").read_text())["status"] == "interrupted"

    assert wait(start(*DROPOUT, ranks=1)) == [2]
    assert "started with 2 processes" in said() and "Traceback" not in said()

    assert wait(start(*DROPOUT)) == [0, 0], said()
    again, rows_again, result_again = outcome()
    assert same_weights(again, undisturbed)
    assert (rows_again, result_again) == (rows, result)


@pytest.mark.slow
def test_all_ranks_evaluate_with_the_statistics_that_are_saved(workplace):
    """Batch norm's running statistics differ between ranks while training; one process alone must find the same metrics."""
    from l2d.evaluate import evaluate_run, find_run

    assert wait(start(*DROPOUT)) == [0, 0], said()
    path = run_folder() / "model.safetensors"
    sys.path.insert(0, "")
    try:
        alone = evaluate_run(find_run(str(path), trust=True), [], [], Path("evaluation.json"))
    finally:
        sys.path.remove("")
    assert alone["metrics"] == outcome()[2]["metrics"]


@pytest.mark.slow
def test_torchrun_forwards_a_signal_and_the_run_resumes(workplace):
    slow = (*SMALL, "backbone._target_=nets.Slow", "trainer.epochs=4")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    with open("launcher.txt", "w") as output:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [*launcher, "-m", "l2d.train", *slow, EVERY_STEP]
        running = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        wait_for_checkpoint()
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) != 0
    assert json.loads((run_folder() / "result.json").read_text())["status"] == "interrupted"
    assert wait(start(*slow)) == [0, 0], said()
    again, rows, _ = outcome()
    os.rename("outputs", "interrupted")
    assert wait(start(*slow)) == [0, 0], said()
    undisturbed, rows_undisturbed, _ = outcome()
    assert same_weights(again, undisturbed) and rows == rows_undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("faulty", [0, 1])
def test_an_error_in_one_process_ends_both_with_its_reason(workplace, faulty):
    codes = wait(start(*EVENTFUL, EVENTS=f"training {faulty} raise"))
    assert codes[1 - faulty] == 2 and codes[faulty] not in (0, 2), said()
    assert "ValueError" in said(faulty)
    assert f"process {faulty} of 2 failed: the fifth step is unlucky" in said(1 - faulty)
    assert "Traceback" not in said(1 - faulty)
    result = json.loads((run_folder() / "result.json").read_text())
    assert result["status"] == "failed" and "the fifth step is unlucky" in result["error"]


@pytest.mark.slow
def test_a_signal_to_one_process_in_its_set_up_ends_both(workplace):
    assert wait(start(*EVENTFUL, EVENTS="loading 1 stop")) == [2, 128 + signal.SIGTERM]
    assert "process 1 of 2 was stopped by signal 15" in said()
    assert not Path("outputs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize(
    "events", ["listing {} kill", "loading {} kill", "training {} kill", "training {} kill_soon,training {other} sleep"]
)
def test_if_one_process_is_killed_the_other_ends_within_a_minute(workplace, events, killed):
    """While it identifies or loads the data, in a step, and while it waits in a collective."""
    began = time.monotonic()
    settings = (*EVENTFUL, "dataset._target_=nets.unlisted") if "listing" in events else EVENTFUL
    codes = wait(start(*settings, EVENTS=events.format(killed, other=1 - killed)))
    assert time.monotonic() - began < 60
    assert (codes[killed], codes[1 - killed]) == (-signal.SIGKILL, 2), said(1 - killed)
    assert f"process {killed} of 2 ended without" in said(1 - killed) and "Traceback" not in said(1 - killed)
    if "training" in events:
        status = json.loads((run_folder() / "result.json").read_text())["status"]
        assert status == ("running" if killed == 0 else "failed")
        assert not (run_folder() / "model.safetensors").exists()
    elif killed == 1:
        assert not Path("outputs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("busy", ["sleep_for_ever", "block_for_ever"])
def test_a_process_that_is_busy_notices_too_that_another_was_killed(workplace, busy):
    """In Python, where an exception ends it, and in a call that nothing but the end of the process ends."""
    began = time.monotonic()
    assert wait(start(*EVENTFUL, EVENTS=f"loading 0 {busy},loading 1 kill")) == [2, -signal.SIGKILL]
    assert time.monotonic() - began < 60
    assert "process 1 of 2 ended without" in said() and "Traceback" not in said()
    if busy == "sleep_for_ever":
        assert not Path("outputs").exists()


@pytest.mark.slow
def test_a_worker_that_outlives_its_parent_does_not_hide_its_death(workplace):
    began = time.monotonic()
    survivor, killed = start(*EVENTFUL, EVENTS="loading 1 leave_a_child_and_die")
    assert children.wait(survivor) == 2 and time.monotonic() - began < 40
    os.kill(int(Path("child.txt").read_text()), signal.SIGKILL)
    assert children.wait(killed) == -signal.SIGKILL


@pytest.mark.slow
def test_all_others_hear_who_was_killed_and_the_run_resumes_exactly(workplace):
    assert wait(start(*EVENTFUL, "trainer.batch_size=48", ranks=3)) == [0, 0, 0], said()
    undisturbed, rows, result = outcome()
    os.rename("outputs", "undisturbed")
    codes = wait(start(*EVENTFUL, "trainer.batch_size=48", EVERY_STEP, ranks=3, EVENTS="training 2 kill"))
    assert codes == [2, 2, -signal.SIGKILL]
    assert all("process 2 of 3 ended without" in said(rank) for rank in (0, 1))
    assert wait(start(*EVENTFUL, "trainer.batch_size=48", ranks=3)) == [0, 0, 0], said()
    again, rows_again, result_again = outcome()
    assert same_weights(again, undisturbed) and (rows_again, result_again) == (rows, result)


@pytest.mark.slow
def test_a_process_that_holds_the_gil_for_70_seconds_while_it_loads_its_data_is_waited_for(workplace):
    assert watch.KEEP_ALIVE["TCP_USER_TIMEOUT"] < 60_000
    assert wait(start(*EVENTFUL, EVENTS="loading 1 hold_the_gil")) == [0, 0], said()
    assert outcome()[2]["status"] == "finished"


WAITING = """
import time
from l2d.errors import errors_as_sentences
from l2d.place import Ranks
with errors_as_sentences(), Ranks().one_command():
    print("met", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def other_machine():
    """The command that runs another in a network of its own, the address of ours as seen from there, and what cuts the cable."""
    name, address = f"l2d{os.getpid()}", f"10.{os.getpid() % 256}.77"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True) if shutil.which("ip") else None
    if made is None or made.returncode:
        pytest.skip("making a network needs `ip` and its permission")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        for inside, end, number in (((), "a", 1), (("-n", name), "b", 2)):
            ip(*inside, "addr", "add", f"{address}.{number}/24", "dev", name + end)
            ip(*inside, "link", "set", name + end, "up")
        yield ["ip", "netns", "exec", name], f"{address}.1", lambda: ip("-n", name, "link", "set", f"{name}b", "down")
    finally:
        subprocess.run(["ip", "link", "del", f"{name}a"], capture_output=True)
        ip("netns", "del", name)


@pytest.mark.slow
def test_a_machine_that_is_gone_is_noticed_within_a_minute_on_both_sides(other_machine):
    """No process died there and no connection was closed: only its network is silent."""
    elsewhere, address, cut = other_machine
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": free_port()}
    ranks = [
        subprocess.Popen(
            [*where, sys.executable, "-c", WAITING],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, where in enumerate([[], elsewhere])
    ]
    try:
        assert [rank.stdout.readline() for rank in ranks] == ["met\n", "met\n"]
        cut()
        for rank, other in zip(ranks, (1, 0), strict=True):
            assert f"process {other} of 2 ended without" in rank.communicate(timeout=60)[1]
        assert [rank.returncode for rank in ranks] == [2, 2]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["listing", "loading", "training"])
def test_a_process_is_waited_for_as_long_as_is_allowed(workplace, moment):
    settings = (*EVENTFUL, f"dataset._target_=nets.{'unlisted' if moment == 'listing' else 'data'}")
    codes = wait(start(*settings, "trainer.rank_timeout_minutes=0.03", EVENTS=f"{moment} 1 sleep"))
    assert codes == [2, 2], said()
    assert "trainer.rank_timeout_minutes=0.03" in said() and "Traceback" not in said() + said(1)
    assert moment == "training" or not Path("outputs").exists()
    assert wait(start(*settings, EVENTS=f"{moment} 1 sleep")) == [0, 0], said()


@pytest.mark.slow
def test_a_run_that_the_first_process_cannot_start_ends_on_the_others_too(workplace):
    """Only the first process writes, so only it can find the folder in use."""
    assert wait(start(*SMALL)) == [0, 0], said()
    with FileLock(run_folder() / ".lock"):
        assert wait(start(*SMALL, "force=true")) == [2, 2]
    assert "in use" in said() and "process 0 of 2 failed" in said(1)


@pytest.mark.slow
def test_in_a_sweep_a_failed_cell_leaves_the_next_alone_and_a_lost_process_ends_all(workplace):
    grid = (*EVENTFUL, "-m", "seed=0,1")
    assert wait(start(*grid, EVENTS="training 1 raise")) == [2, 1], said()
    results = [
        json.loads(path.read_text())["status"] for path in sorted(Path("outputs").glob("*/*seed?-*/result.json"))
    ]
    assert results == ["failed", "finished"], said()
    assert wait(start(*grid, "force=true", EVENTS="training 1 kill")) == [2, -signal.SIGKILL]
    assert said().count("process 1 of 2 ended without") >= 2 and "Traceback" not in said()


@pytest.mark.slow
def test_a_batch_size_not_divisible_by_the_ranks_is_rejected(workplace):
    assert wait(start(*SMALL, "trainer.batch_size=25")) == [2, 2]
    assert "trainer.batch_size=25 " in said() and "Traceback" not in said()
    assert not Path("outputs").exists()


@pytest.mark.slow
def test_a_split_smaller_than_the_number_of_ranks_is_rejected(workplace):
    assert wait(start(*SMALL, "dataset.num_test=1")) == [2, 2]
    assert "1 samples for 2 processes" in said()
    assert not Path("outputs").exists()


@pytest.mark.slow
def test_synchronised_batch_norm_on_the_cpu_is_rejected(workplace):
    assert wait(start(*DROPOUT, "trainer.sync_batchnorm=true")) == [2, 2]
    assert "trainer.sync_batchnorm" in said() and "Traceback" not in said()


@pytest.mark.slow
def test_more_than_127_classes_are_gathered_too(workplace):
    """The experts' table then has two bytes an entry, which the ranks' connection does not carry as such."""
    many = (*SMALL, "dataset.num_classes=150", "trainer.epochs=1")
    assert wait(start(*many)) == [0, 0], said()
    metrics = outcome()[2]["metrics"]
    os.rename("outputs", "two")
    assert wait(start(*many, ranks=1)) == [0]
    assert outcome()[2]["metrics"] == metrics


NAMES_OF_RANKS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, (3, 4, 1)),
        ({**SLURM, "MASTER_ADDR": "node1"}, (5, 8, 1)),
        (SLURM, (0, 1, 0)),  # a job of eight tasks in which nobody said that they belong together
        ({**SLURM, "MASTER_ADDR": "node1", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, (0, 2, 0)),
    ],
)
def test_ranks_come_from_the_environment(monkeypatch, environment, expected):
    for name in NAMES_OF_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ranks = Ranks()
    assert (ranks.rank, ranks.count, ranks.local) == expected
    if expected[1] == 8:
        with pytest.raises(UserError, match="MASTER_PORT"):
            ranks.start(torch.device("cpu"), 1)
