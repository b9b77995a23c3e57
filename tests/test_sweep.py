"""Sweeps: killed and taken up again, in parallel, and seen from another terminal."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from l2d.config import config_dir
from l2d.errors import UserError
from l2d.status import describe

TINY = ("dataset.num_train=256", "dataset.num_test=200", "trainer.epochs=2", "loss=ce,picce_ce", "experts.num=1,3")
COMMAND = (sys.executable, "-m", "l2d.train", "-m", *TINY)


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    folder.mkdir(exist_ok=True)
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)


def metrics(folder: Path) -> dict[str, dict]:
    """Run name -> metrics, of all finished runs below."""
    results = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("outputs/*/*/result.json")}
    return {name: result["metrics"] for name, result in results.items() if result["status"] == "finished"}


@pytest.fixture(scope="module")
def serial(tmp_path_factory) -> dict[str, dict]:
    """The metrics of the four cells, run one after the other without interruption."""
    folder = tmp_path_factory.mktemp("serial")
    done = sweep(folder)
    assert done.returncode == 0, done.stderr
    found = metrics(folder)
    assert len(found) == 4
    return found


def test_a_killed_sweep_leaves_finished_cells_alone_and_ends_as_if_never_killed(tmp_path, serial):
    first = subprocess.Popen([*COMMAND], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not metrics(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("outputs/*/*/result.json")}
    finished = set(metrics(tmp_path))
    assert 1 <= len(finished) < 4, "the kill must fall inside the sweep for this test to mean anything"

    again = sweep(tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"{4 - len(finished)} done, {len(finished)} finished before, 0 failed" in again.stdout
    assert metrics(tmp_path) == serial
    assert all(path.stat().st_mtime_ns == moment for path, moment in before.items() if path.parent.name in finished)


COUNTED = """
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from l2d import cli

compose, composed = ConfigLoaderImpl.load_sweep_config, []
ConfigLoaderImpl.load_sweep_config = lambda *given: composed.append(given) or compose(*given)
cli.train()
print("composed", len(composed))
"""


def test_a_cell_is_composed_once_and_what_is_done_again_counts_as_not_done_yet(tmp_path):
    command = [sys.executable, "-c", COUNTED, "-m", *TINY, "trainer.epochs=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "composed 4\n" in done.stdout, done.stdout + done.stderr
    again = sweep(tmp_path, "trainer.epochs=1", "force=true", "experts.num=3,5")
    counts = [line.split("]")[0].split(",")[0] for line in again.stdout.splitlines() if line.startswith("[")]
    assert counts == ["[1 of 4", "[2 of 4", "[3 of 4", "[4 of 4"], again.stdout


def test_two_processes_of_joblib_give_the_numbers_of_one(tmp_path, serial):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the joblib extra is not installed")
    done = sweep(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert done.returncode == 0, done.stderr
    assert "4 done" in done.stdout and metrics(tmp_path) == serial


def test_submitit_runs_a_cell(tmp_path, serial):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the slurm extra is not installed")
    done = sweep(tmp_path, "hydra/launcher=submitit_local", "loss=ce", "experts.num=1")
    assert done.returncode == 0, done.stderr
    found = metrics(tmp_path)
    assert len(found) == 1 and found.items() <= serial.items()


def test_the_slurm_preset_composes_with_requeueing():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the slurm extra is not installed")
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("train", ["hydra/launcher=slurm"], return_hydra_config=True)
    assert cfg.hydra.launcher.additional_parameters.requeue is True and cfg.hydra.launcher.max_num_timeout > 0


def test_a_second_process_on_the_same_run_is_refused_while_the_first_lives(tmp_path, composed):
    from l2d.tracking.run_folder import RunFolder

    cfg = composed()
    with RunFolder(tmp_path / "run", cfg), pytest.raises(UserError, match=f"process {os.getpid()} on "):
        RunFolder(tmp_path / "run", cfg).__enter__()
    with RunFolder(tmp_path / "run", cfg):
        pass  # released


def test_status_shows_what_is_finished_running_interrupted_failed_and_missing(tmp_path, composed):
    from l2d.config import choices
    from l2d.sweep import write_manifest
    from l2d.tracking.run_folder import RunFolder

    cells = []
    for name, num in (("done", 1), ("live", 2), ("dead", 3), ("bad", 4), ("never", 5)):
        cfg = composed(f"experts.num={num}")
        cells.append({"folder": str(tmp_path / "synthetic" / name), "overrides": [], "choices": choices(cfg)})
    write_manifest(tmp_path, cells)
    numbers = {"system_error": 12.5, "coverage": 50.0, "classifier_accuracy": 75.0}

    def start(number):
        folder = RunFolder(Path(cells[number - 1]["folder"]), composed(f"experts.num={number}")).__enter__()
        folder.start({"choices": cells[number - 1]["choices"]}, resumed=False)
        return folder

    done, live, dead, bad = (start(number) for number in (1, 2, 3, 4))
    done.write_result({"status": "finished", "metrics": numbers})
    live.add_epoch({"epoch": 7, "loss": 1.25})
    bad.write_result({"status": "failed", "error": "out of memory"})
    for folder in (done, dead, bad):
        folder.lock.release()

    text = describe(tmp_path)
    assert "1 finished #, 1 running >, 1 interrupted !, 1 failed x, 1 missing ." in text
    assert "running: live  epoch 7  loss 1.25" in text and "failed: bad  out of memory" in text
    (row,) = [line for line in text.splitlines() if "picce_ce" in line]
    assert row.split()[-5:] == ["#", ">", "!", "x", "."]
    live.lock.release()
    assert "0 running" not in describe(tmp_path) and "2 interrupted" in describe(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        describe(tmp_path / "nowhere")


EXPERIMENTS = sorted(path.stem for path in Path(config_dir(), "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ("synthetic", "figure1")])
def test_an_experiment_is_the_block_that_the_paper_published(name):
    """Its cells are those of the published table, three seeds each, and its header quotes every number of it."""
    text = Path(config_dir(), "experiment", f"{name}.yaml").read_text()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("train", [f"experiment={name}"], return_hydra_config=True)
    params = {key: value.split(",") for key, value in cfg.hydra.sweeper.params.items()}
    published = csv.DictReader(files("l2d.report").joinpath("published.csv").read_text().splitlines())
    block = [row for row in published if (row["dataset"], row["experts"]) == (cfg.dataset.name, cfg.experts.name)]
    cells = {(row["formulation"], row["base"], row["num_experts"]) for row in block}
    losses = {
        "ce": ("vanilla", "ce"),
        "ova": ("vanilla", "ova"),
        "picce_ce": ("picce", "ce"),
        "picce_ova": ("picce", "ova"),
    }
    assert {(*losses[loss], num) for loss in params["loss"] for num in params["experts.num"]} == cells and cells
    assert params["seed"] == ["0", "1", "2"]
    assert all(f"{float(row['system_error']):.2f}/{float(row['coverage']):.2f}" in text for row in block)


def test_figure_1_has_dog_experts_at_85_percent_under_a_name_of_their_own():
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("train", ["experiment=figure1"])
    assert (cfg.experts.in_domain, cfg.experts.in_group, cfg.experts.name) == (0.85, 0.75, "dog_figure1")
