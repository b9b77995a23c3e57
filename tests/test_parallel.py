"""Sweeps in several processes: signals and kills, through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import current_process
from pathlib import Path

import pytest
import torch

from l2d.cli import main
from l2d.place import Place, Ranks

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")

# A loss whose steps take long while there is a file named `hold`, and which tells what process it is in.
OWN_LOSS = """
import multiprocessing, os, time
from pathlib import Path

def make(num_classes):
    worker = f"{multiprocessing.current_process().name} {os.environ.get('OMP_NUM_THREADS')}"
    Path(f"worker-{os.getpid()}").write_text(worker)

    def loss(scores, labels, answers):
        time.sleep(0.1 * Path("hold").exists())
        return scores.logsumexp(1).mean() - scores.gather(1, labels[:, None]).mean()

    return loss

class Callback:
    def on_job_start(self, config, **_):
        Path(f"job-{config.hydra.job.num}").write_text(config.hydra.job.id)
    def __getattr__(self, name):
        return lambda **_: None
"""
SLOW_DATA = """
import time
from pathlib import Path

def load(num_train, num_test):
    Path("loading").touch()
    time.sleep(60)
"""
CELLS = ("--config-dir", "conf", "loss=own", "seed=0,1,2,3", "dataset.num_train=256", "dataset.num_test=200")
CELLS += ("trainer.batch_size=64", "trainer.epochs=20", "+hydra.callbacks.own._target_=own_loss.Callback")
PARALLEL = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


class Sweep:
    """A sweep of four cells in a session of its own, so that whatever is left of it can be found."""

    def __init__(self, folder: Path, *words: str):
        (folder / "conf/loss").mkdir(parents=True, exist_ok=True)
        (folder / "conf/loss/own.yaml").write_text("_target_: own_loss.make\nname: own\n")
        (folder / "own_loss.py").write_text(OWN_LOSS)
        self.folder = folder
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "l2d", "train", "-m", *CELLS, *words],
            cwd=folder,
            env=environment | ({} if words else {"OMP_NUM_THREADS": "1"}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *_) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def processes(self) -> list[int]:
        """All of the session that live, the sweep's own first."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == self.process.pid and state not in "ZX":
                found.append(int(path.parent.name))
        return sorted(found)

    def running(self) -> dict[Path, int]:
        """Wait until two cells are trained; the folder of each, and its process."""
        wait_for(lambda: len(self._running()) == 2)
        return self._running()

    def _running(self) -> dict[Path, int]:
        found = {}
        for path in self.folder.glob("outputs/*/*/.owner"):
            pid = int((path.read_text() or "0 0 0").split()[1])
            if status(path.parent) == "running" and pid in self.processes():
                found[path.parent] = pid
        return found

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr. Nothing is left of it a moment later."""
        out, err = self.process.communicate(timeout=120)
        wait_for(lambda: not self.processes())
        assert "Traceback" not in err, err
        return self.process.returncode, out, err


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def status(folder: Path) -> str:
    try:
        return json.loads((folder / "result.json").read_text())["status"]
    except FileNotFoundError:
        return ""


def results(folder: Path) -> dict[str, tuple]:
    """Run name -> metrics and weights, of all finished runs below."""
    finished = [path for path in folder.glob("outputs/synthetic/*") if status(path) == "finished"]
    return {
        path.name: (
            json.loads((path / "result.json").read_text())["metrics"],
            (path / "model.safetensors").read_bytes(),
        )
        for path in finished
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, tuple]:
    """The results of the four cells, run one after the other in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Sweep(folder) as sweep:
        code, _, err = sweep.end()
    found = results(folder)
    assert code == 0 and len(found) == 4, err
    return found


@pytest.mark.slow
def test_a_signal_stops_all_processes_with_a_checkpoint_and_so_does_the_death_of_the_parent(tmp_path, undisturbed):
    hold = tmp_path / "hold"
    hold.touch()
    for signum, send in (
        (signal.SIGTERM, os.kill),
        (signal.SIGINT, os.killpg),  # as Ctrl-C does: the workers get it too
        (signal.SIGKILL, os.kill),
    ):
        with Sweep(tmp_path, *PARALLEL) as sweep:
            cells = sweep.running()
            send(sweep.process.pid, signum)
            code, out, err = sweep.end()
        assert [status(cell) for cell in cells] == ["interrupted"] * 2, signum
        assert all((cell / "checkpoint.pt").exists() for cell in cells)
        if signum == signal.SIGKILL:
            assert code == -signum
        else:
            assert code == 128 + signum and not err, err
            assert out.startswith("0 done, 0 finished before, 0 failed, 2 interrupted, 2 not begun, in ")
    hold.unlink()
    with Sweep(tmp_path, *PARALLEL) as sweep:
        code, out, err = sweep.end()
    assert code == 0 and "4 done, 0 finished before, 0 failed, in " in out, err
    assert results(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_killed_process_costs_its_own_cell(tmp_path, undisturbed):
    (tmp_path / "hold").touch()
    with Sweep(tmp_path, *PARALLEL) as sweep:
        (killed, first), (stopped, second) = sweep.running().items()
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGTERM)
        (tmp_path / "hold").unlink()
        code, out, err = sweep.end()
    assert code == 1 and "2 done, 0 finished before, 1 failed, 1 interrupted, in " in out, out + err
    (line,) = err.splitlines()
    assert "failed: " in line and killed.name.split("-")[-2].replace("seed", "seed=") in line and "SIGKILL" in line
    assert (status(killed), status(stopped)) == ("failed", "interrupted")
    assert "SIGKILL" in json.loads((killed / "result.json").read_text())["error"]
    told = sorted(path.read_text() for path in tmp_path.glob("worker-*"))
    share = max(len(os.sched_getaffinity(0)) // 2, 1)
    assert told == [f"CellProcess-{slot}-2 {share}" for slot in (1, 1, 2, 2)], "a new process in each of the two places"
    assert {path.name for path in tmp_path.glob("job-*")} == {f"job-{number}" for number in range(4)}

    with Sweep(tmp_path, *PARALLEL) as sweep:
        code, out, err = sweep.end()
    assert code == 0 and "2 done, 2 finished before, 0 failed, in " in out, err
    assert results(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_signal_while_the_processes_start_leaves_nothing(tmp_path):
    with Sweep(tmp_path, *PARALLEL) as sweep:
        wait_for(lambda: len(sweep.processes()) >= 3)  # the sweep's, multiprocessing's resource tracker, a worker
        os.killpg(sweep.process.pid, signal.SIGINT)
        code, out, err = sweep.end()
    assert code == 130 and not err and out.startswith("0 done, 0 finished before, 0 failed, 4 not begun, in "), (
        out + err
    )
    assert not results(tmp_path) and not list(tmp_path.glob("outputs/synthetic/*"))


@pytest.mark.slow
def test_a_signal_while_the_cells_are_planned_is_one_line(tmp_path):
    (tmp_path / "conf/dataset").mkdir(parents=True)
    (tmp_path / "conf/dataset/slow.yaml").write_text(
        "_target_: slow_data.load\nname: slow\nnum_train: 1\nnum_test: 1\n"
    )
    (tmp_path / "slow_data.py").write_text(SLOW_DATA)
    with Sweep(tmp_path, "dataset=slow", *PARALLEL) as sweep:
        wait_for((tmp_path / "loading").exists)
        os.killpg(sweep.process.pid, signal.SIGINT)
        code, out, err = sweep.end()
    assert code == 130 and not out and err.count("\n") == 1, err


@pytest.mark.parametrize(
    "setting", ["n_jobs=0", "n_jobs=two", "n_jobs=null", "n_jobs=1.5", "verbose=10", "backend=loky"]
)
def test_settings_of_the_launcher_that_cannot_work_are_refused(tmp_path, monkeypatch, capsys, setting):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", "-m", "seed=0,1", "hydra/launcher=joblib", f"hydra.launcher.{setting}"])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and f"hydra.launcher.{setting.partition('=')[0]}" in err
    assert not list(tmp_path.iterdir())


def test_the_processes_of_a_sweep_take_the_gpus_in_turn(monkeypatch):
    from l2d.parallel import PROCESS_NAME

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    shared = []
    monkeypatch.setattr("l2d.place.place.share_gpu", lambda device, processes: shared.append((device.index, processes)))
    chosen = []
    for number in (1, 2, 3):
        monkeypatch.setattr(current_process(), "name", f"{PROCESS_NAME}-{number}-3")
        chosen.append(Place.choose("auto", "float32", Ranks.alone()).device.index)
    assert chosen == [0, 1, 0] and shared == [(0, 2), (0, 2)], "the second has its GPU for itself"
    Place.choose("cuda:1", "float32", Ranks.alone())
    assert shared[2:] == [(1, 3)], "all three are told to take this one"
