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
from children import run_l2d
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from l2d.cli import main
from l2d.config import config_dir
from l2d.errors import UserError
from l2d.identity import choices
from l2d.status import describe
from l2d.sweep import write_manifest
from l2d.tracking import run_folder
from l2d.tracking.read import read_result
from l2d.tracking.run_folder import RunFolder, sweep_manifest

TINY = ("dataset.num_train=256", "dataset.num_test=200", "trainer.epochs=2", "loss=ce,picce_ce", "experts.num=1,3")
COMMAND = (sys.executable, "-m", "l2d.train", "-m", *TINY)


def launch(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """The sweep in an interpreter of its own, which starts others."""
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return run_l2d("train", "-m", *TINY, *arguments, folder=folder)


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


def test_what_is_left_of_a_sweep_is_said_without_reading_an_ended_cell_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ended = []

    def counted(folder: Path) -> dict | None:
        result = read_result(folder)
        ended.extend([folder] if result and result["status"] == "finished" else [])
        return result

    monkeypatch.setattr(run_folder, "read_result", counted)
    main(["train", "-m", *TINY])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert [line.split()[0] for line in lines] == ["[1", "[2", "[3", "[4"]
    assert len(ended) == len(set(ended)) == 4


@pytest.mark.slow
def test_a_killed_sweep_continues_without_repeating_finished_cells(tmp_path, serial):
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


@pytest.mark.slow
def test_a_cell_is_composed_once_and_what_is_done_again_counts_as_not_done_yet(tmp_path):
    command = [sys.executable, "-c", COUNTED, "-m", *TINY, "trainer.epochs=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "composed 2\n" in done.stdout, done.stdout + done.stderr
    again = sweep(tmp_path, "trainer.epochs=1", "force=true", "experts.num=3,5")
    counts = [line.split("]")[0].split(",")[0] for line in again.stdout.splitlines() if line.startswith("[")]
    assert counts == ["[1 of 4", "[2 of 4", "[3 of 4", "[4 of 4"], again.stdout


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(tmp_path, serial):
    done = launch(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert done.returncode == 0, done.stderr
    assert "4 done" in done.stdout and metrics(tmp_path) == serial


@pytest.mark.slow
def test_workers_find_modules_in_the_working_folder_and_groups_in_the_config_dir(tmp_path):
    (tmp_path / "conf/loss").mkdir(parents=True)
    (tmp_path / "conf/loss/own.yaml").write_text("_target_: own_loss.make\nname: own\n")
    (tmp_path / "own_loss.py").write_text(
        "def make(num_classes):\n    return lambda scores, *_: scores.square().mean()\n"
    )
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    done = launch(tmp_path, "--config-dir", "conf", "loss=own", *launcher)
    assert done.returncode == 0, done.stderr
    assert {name.split("-")[0] for name in metrics(tmp_path)} == {"own"} and len(metrics(tmp_path)) == 2
    assert "[2 of 2" in done.stdout, "a worker finds the list of its sweep"


@pytest.mark.slow
def test_submitit_runs_a_cell(tmp_path, serial):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the slurm extra is not installed")
    done = launch(tmp_path, "hydra/launcher=submitit_local", "loss=ce", "experts.num=1")
    assert done.returncode == 0, done.stderr
    found = metrics(tmp_path)
    assert len(found) == 1 and found.items() <= serial.items()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["seed=0,1,2", "hydra.sweep.subdir=x"], ["seed=0 and seed=1", "outputs/x"]),
        (["trainer.log_every=5,6"], ["trainer.log_every=5 and trainer.log_every=6"]),
        (["optim.lr=interval(0,1)"], ["optim.lr=interval(0,1)"]),
        (["logger=choice(1,2)"], ["logger=1"]),
        (["hydra.sweeper.grids=[3]"], ["hydra.sweeper.grids=[3]", "mapping"]),
        (["hydra.sweeper.grids=[{loss: ce}, {los: ce}]"], ["'los'"]),
    ],
)
def test_an_impossible_grid_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", "-m", *words])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and all(text in err for text in named)
    assert not list(tmp_path.iterdir())


DAMAGED = [
    ("metrics", None, "metrics.system_error is null"),
    ("metrics", {"system_error": "low"}, 'metrics.system_error is "low"'),
    ("evaluated_with", "x", 'evaluated_with is "x"'),
    ("schema_version", 1, "another version"),
    ("fingerprint", "00000000", "holds another run"),
]


@pytest.mark.parametrize(("key", "value", "named"), DAMAGED)
def test_a_sweep_finds_what_a_single_run_finds_in_a_finished_folder(tmp_path, monkeypatch, capsys, key, value, named):
    monkeypatch.chdir(tmp_path)
    words = ["dataset.num_train=64", "dataset.num_test=50", "trainer.epochs=1", "trainer.batch_size=32"]
    main(["train", "-m", *words, "seed=0,1"])
    (path,) = tmp_path.glob("outputs/*/*-seed0-*/result.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    capsys.readouterr()
    said = []
    for more in (["seed=0"], ["-m", "seed=0,1,2"]):
        with pytest.raises(SystemExit) as stop:
            main(["train", *words, *more])
        out, err = capsys.readouterr()
        assert stop.value.code == 2 and err.count("\n") == 1 and str(path.parent) in err and named in err
        said.append(err.removeprefix("l2d: ").removeprefix("failed: " + " ".join([*words, "seed=0: "])))
    assert said[0] == said[1] and "1 done, 1 finished before, 1 failed" in out
    main(["train", "-m", *words, "seed=0,1", "plan=true"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["refuse", "skip", "2"]


def test_a_result_that_is_cut_short_is_refused_unless_forced(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "-m",
        "dataset.num_train=64",
        "dataset.num_test=50",
        "trainer.epochs=1",
        "trainer.batch_size=32",
        "seed=0,1",
    ]
    main(["train", *words])
    (path,) = tmp_path.glob("outputs/*/*-seed0-*/result.json")
    path.write_text(path.read_text()[:100])
    with pytest.raises(SystemExit):
        main(["train", *words])
    out, err = capsys.readouterr()
    assert "0 done, 1 finished before, 1 failed" in out and str(path) in err
    main(["train", *words, "force=true"])
    assert "2 done" in capsys.readouterr().out and len(metrics(tmp_path)) == 2


@pytest.mark.parametrize("setting", ["verbose=3", "trainer.log_every=0", "record=all"])
def test_a_setting_that_cannot_work_is_refused_of_a_finished_cell_too(tmp_path, monkeypatch, capsys, setting):
    """These are not part of the run's identity."""
    monkeypatch.chdir(tmp_path)
    words = ["-m", "dataset.num_train=64", "dataset.num_test=50", "trainer.epochs=1", "trainer.batch_size=32", "seed=0"]
    main(["train", *words])
    with pytest.raises(SystemExit) as stop:
        main(["train", *words, setting])
    assert stop.value.code == 2 and setting.partition("=")[0] in capsys.readouterr().err


def test_the_same_setting_twice_is_one_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["train", "-m", "seed=1,1", "optim.lr=1,1.0", "plan=true"])
    assert len(capsys.readouterr().out.splitlines()) == 2


GRIDS = "hydra.sweeper.grids=[{system: score, loss: 'ce,ova'}, {loss: rs, seed: '3,4'}, {freeze: '[]'}]"


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ([], "ce-J1-0 ova-J1-0 rs-J1-3 rs-J1-4 picce_ce-J1-0"),
        (["experts.num=1,2"], "ce-J1-0 ce-J2-0 ova-J1-0 ova-J2-0 rs-J1-3 rs-J2-3 rs-J1-4 rs-J2-4 picce_ce-J1-0 picce_ce-J2-0"),
        (["loss=ce,rs"], "ce-J1-0 rs-J1-0 ce-J1-3 ce-J1-4 rs-J1-3 rs-J1-4 picce_ce-J1-0"),
        (["seed=0", "loss=ova"], "ova-J1-0 picce_ce-J1-0"),  # three grids, and one cell of two of them
        (["hydra.sweeper.grids=[]", "loss=moe"], "moe-J1-0"),
    ],
)  # fmt: skip
def test_grids_are_united_and_a_word_replaces_a_key_where_a_grid_has_it(tmp_path, monkeypatch, capsys, words, cells):
    monkeypatch.chdir(tmp_path)
    main(["train", "-m", GRIDS, "+hydra.sweeper.params={experts.num: 1}", "plan=true", *words])
    *lines, last = capsys.readouterr().out.splitlines()
    names = [Path(line.split()[1]).name.split("-") for line in lines]
    shown = [f"{loss}-{num}-{seed.removeprefix('seed')}" for loss, _, num, _, seed, _ in names]
    assert shown == cells.split() and last.startswith(f"{len(shown)} cell")


def test_a_run_belongs_to_the_newest_sweep_that_lists_it(tmp_path, monkeypatch):
    settings = {
        "mode": RunMode.MULTIRUN,
        "sweep": {"dir": "out"},
        "runtime": {"cwd": str(tmp_path), "output_dir": "/a"},
    }
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": settings}))
    assert sweep_manifest() is None
    for folders, moment in ((["/a", "/b"], 1.0), (["/a"], 3.0), (["/a", "/c"], 2.0), (["/b"], 4.0)):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        write_manifest(tmp_path / "out", [{"folder": folder} for folder in folders])
    path, manifest = sweep_manifest()
    assert manifest["started"] == 3.0 and json.loads(path.read_text()) == manifest


def test_the_slurm_preset_composes_with_requeueing():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the slurm extra is not installed")
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("train", ["hydra/launcher=slurm"], return_hydra_config=True)
    assert cfg.hydra.launcher.additional_parameters.requeue is True and cfg.hydra.launcher.max_num_timeout > 0


def test_a_second_process_on_the_same_run_is_refused_while_the_first_lives(tmp_path, composed):
    cfg = composed()
    with RunFolder(tmp_path / "run", cfg), pytest.raises(UserError, match=f"process {os.getpid()} on "):
        RunFolder(tmp_path / "run", cfg).__enter__()
    with RunFolder(tmp_path / "run", cfg):
        pass  # released


def test_status_shows_what_is_finished_running_interrupted_failed_and_missing(tmp_path, composed):
    cells = []
    for name, num in (("done", 1), ("live", 2), ("dead", 3), ("bad", 4), ("never", "null")):
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
    live.add_epoch({"epoch": 7, "loss": 1.25}, last=False)
    bad.write_result({"status": "failed", "error": "out of memory"})
    for folder in (done, dead, bad):
        folder.lock.release()

    text = describe(tmp_path)
    assert "1 finished #, 1 running >, 1 interrupted !, 1 failed x, 1 missing ." in text
    assert "running: live  epoch 7  loss 1.25" in text and "failed: bad  out of memory" in text
    (row,) = [line for line in text.splitlines() if "picce_ce" in line]
    assert row.split()[-5:] == ["#", ">", "!", "x", "."]
    assert "J=1 J=2 J=3 J=4 J=all" in " ".join(text.split())
    live.lock.release()
    assert "0 running" not in describe(tmp_path) and "2 interrupted" in describe(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        describe(tmp_path / "nowhere")


EXPERIMENTS = sorted(path.stem for path in Path(config_dir(), "experiment").glob("*.yaml"))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in EXPERIMENTS
        if name not in ("all_methods", "synthetic", "figure1", "regimes", "embedded_default")
    ],
)
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
