"""Trackers with the real clients: what W&B's own file and TensorBoard's contain, what happens without W&B, and one's own logger."""

import csv
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from children import start, wait
from omegaconf import OmegaConf
from wandb_endpoint import API_KEY, serving

from l2d.errors import UserError
from l2d.tracking.run_folder import environment
from l2d.tracking.trackers import TensorBoardTracker, WandbTracker, ending

SECRETS = {"WANDB_API_KEY": API_KEY, "SOME_TOKEN": "hunter2-in-the-environment"}
METRICS = {"system_error": 20.0, "coverage": 50.0, "classifier_accuracy": 70.0, "deferred_to": [30.0, 20.0]}
EXPERTS = [{"name": name, "train_accuracy": 75.0, "test_accuracy": None} for name in ("ann", "bob")]


def blocks(path: Path) -> Iterator[bytes]:
    """The records of a LevelDB log behind a header of 7 bytes: blocks of 32 KiB of (checksum, length, kind, bytes)."""
    data, position, record = path.read_bytes(), 7, b""
    assert data[:4] in (b":W&B", b"")  # empty: nothing is written yet
    while position + 7 <= len(data):
        room = 32768 - position % 32768
        if room < 7:
            position += room
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        if position + 7 + length > len(data):
            return  # still being written
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_wandb(path: Path) -> dict:
    """A complete run file of W&B, which another process writes, perhaps some milliseconds later."""
    deadline = time.monotonic() + 10
    while (found := read_records(path))["exit_code"] is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def read_records(path: Path) -> dict:
    """What is in it, through W&B's protobuf messages: run, config, history, summary, artifacts, exit code."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict = {"config": {}, "history": [], "summary": {}, "artifacts": {}, "exit_code": None, "metrics": {}}
    for block in blocks(path):
        record = Record()
        record.ParseFromString(block)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["run"] = record.run
            found["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            found["history"].append(items)
        elif kind == "summary":
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update}
            found["summary"] |= items
        elif kind == "metric":
            found["metrics"][record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "artifact":
            files = {entry.path: Path(entry.local_path) for entry in record.artifact.manifest.contents}
            found["artifacts"][record.artifact.type] = files
        elif kind == "exit":
            found["exit_code"] = record.exit.exit_code
    return found


def run_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/*run-[0-9]*/run-*.wandb"))


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Two jobs of one multirun with both trackers, W&B offline: (folders, the sweep's manifest, the home folder)."""
    home = tmp_path_factory.mktemp("grid")
    arguments = ["-m", "loss=ce,picce_ce", "experts.num=2", "logger=all", "logger.mode=offline", "logger.weights=true"]
    arguments += [
        "output_dir=out",
        "evaluation=full",
        "dataset.num_train=256",
        "dataset.num_test=200",
        "trainer.epochs=3",
        "trainer.eval_every=1",
    ]
    command = [sys.executable, "-c", "from l2d.cli import train; train()", *arguments]
    env = os.environ | SECRETS | {"HOME": str(home), "OMP_NUM_THREADS": "1"}
    for name in [name for name in env if name.startswith("WANDB_") and name not in SECRETS]:
        del env[name]
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (manifest,) = home.glob("out/.sweeps/*.json")
    return sorted(path.parent for path in home.glob("out/synthetic/*/result.json")), manifest, home


@pytest.fixture(scope="module")
def tracked(grid):
    """Per folder: W&B's file, metrics.csv, result.json, config.yaml."""
    found = []
    for folder in grid[0]:
        (file,) = run_files(folder)
        with open(folder / "metrics.csv") as rows:
            epochs = list(csv.DictReader(rows))
        result = json.loads((folder / "result.json").read_text())
        found.append((read_wandb(file), epochs, result, yaml.safe_load((folder / "config.yaml").read_text())))
    return found


@pytest.mark.slow
def test_each_job_of_a_multirun_is_a_wandb_run_and_the_sweep_is_their_group(grid, tracked):
    folders, manifest, _ = grid
    runs = [wandb["run"] for wandb, *_ in tracked]
    assert len({run.run_id for run in runs}) == len(runs) == 2
    assert [run.display_name for run in runs] == [folder.name for folder in folders]
    assert [(folder / "wandb_id").read_text().strip() for folder in folders] == [run.run_id for run in runs]
    assert {run.run_group for run in runs} == {manifest.stem}
    assert {run.job_type for run in runs} == {"train"}
    assert [set(run.tags) for run in runs] == [{"synthetic", "specialist", loss} for loss in ("ce", "picce_ce")]
    assert [wandb["exit_code"] for wandb, *_ in tracked] == [0, 0]


@pytest.mark.slow
def test_the_config_of_a_wandb_run_is_the_resolved_config(tracked):
    for wandb, _, result, config in tracked:
        assert {key: wandb["config"][key] for key in config} == config
        chosen = wandb["config"]["choices"]
        assert chosen | result["choices"] == chosen
        assert wandb["config"]["code"]["git_commit"] == result["git_commit"]
        assert wandb["config"]["code"]["versions"] == result["versions"]
    cells = [wandb["config"]["choices"]["cell"] for wandb, *_ in tracked]
    assert cells == ["synthetic/ce-specialist-J2-mlp", "synthetic/picce_ce-specialist-J2-mlp"]


@pytest.mark.slow
def test_the_history_of_a_wandb_run_is_metrics_csv(tracked):
    for wandb, epochs, _, _ in tracked:
        history = [row for row in wandb["history"] if "loss" in row]
        assert len(history) == len(epochs) == 3
        for row, expected in zip(history, epochs, strict=True):
            logged = {key: row[key] for key in row if not key.startswith("_")}
            assert logged == {key: float(value) for key, value in expected.items() if value}
        assert wandb["metrics"]["*"] == "epoch"


@pytest.mark.slow
def test_the_summary_of_a_wandb_run_has_the_final_metrics_and_the_best_epoch(tracked):
    for wandb, epochs, result, _ in tracked:
        summary = wandb["summary"]
        for key, value in result["metrics"].items():
            if isinstance(value, float):
                assert summary[key] == value
        errors = [float(row["system_error"]) for row in epochs]
        assert summary["best/system_error"] == min(errors)
        assert summary["best/epoch"] == 1 + errors.index(min(errors))


@pytest.mark.slow
def test_a_wandb_run_ends_with_final_metrics_deferrals_per_expert_and_files(grid, tracked):
    for folder, (wandb, _, result, _) in zip(grid[0], tracked, strict=True):
        (final,) = [row for row in wandb["history"] if "final/num_experts" in row]
        assert final["final/num_experts"] == 2
        for key in ("system_error", "coverage", "classifier_accuracy"):
            assert final[f"final/{key}"] == result["metrics"][key]
        (table,) = folder.glob("wandb/*run-[0-9]*/files/media/table/deferral*.json")
        asked = {row[0]: row[3] for row in json.loads(table.read_text())["data"]}
        assert list(asked.values()) == result["metrics"]["deferred_to"]
        assert list(asked) == [expert["name"] for expert in result["experts"]]
        assert wandb["artifacts"]["result"] == {name: folder / name for name in ("result.json", "model.safetensors")}


@pytest.mark.slow
def test_a_full_evaluation_logs_reliability_diagrams_to_wandb(grid, tracked):
    for folder, (wandb, _, result, _) in zip(grid[0], tracked, strict=True):
        for who, bins in result["evaluation"]["calibration"].items():
            (table,) = folder.glob(f"wandb/*run-[0-9]*/files/media/table/reliability/{who}*.json")
            content = json.loads(table.read_text())
            assert content["columns"] == ["confidence", "accuracy", "count"]
            assert content["data"] == [
                [c, a, n] for c, a, n in zip(bins["confidence"], bins["accuracy"], bins["count"], strict=True) if n
            ]
            assert sum(row[2] for row in content["data"]) == 200  # every test sample is in one bin
            assert wandb["summary"][f"ece/{who}"] == bins["ece"]


@pytest.mark.slow
def test_no_secret_and_no_description_of_the_machine_is_written(grid):
    *_, home = grid
    files = [path for path in home.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in SECRETS.values()), path
    assert not list(home.rglob("wandb-metadata.json")) and not list(home.rglob("requirements.txt"))


@pytest.mark.slow
def test_tensorboard_has_the_rows_of_metrics_csv(grid, tracked):
    pytest.importorskip("tensorboard")
    for folder, (_, epochs, _, _) in zip(grid[0], tracked, strict=True):
        events = read_tensorboard(folder / "tensorboard")
        for key in ("loss", "lr", "system_error", "coverage"):
            assert [step for step, _ in events[key]] == [1, 2, 3]
            assert [value for _, value in events[key]] == pytest.approx([float(row[key]) for row in epochs], rel=1e-6)


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_repeated_epochs_of_a_resumed_run_once(tmp_path):
    pytest.importorskip("tensorboard")
    for losses in ({1: 3.0, 2: 2.0, 3: 1.0}, {2: 2.5, 3: 1.5}):
        tracker = TensorBoardTracker()
        tracker.start("name", {"seed": 0}, tmp_path)
        for epoch, loss in losses.items():
            tracker.log({"epoch": epoch, "loss": loss, "deferred_to": [1.0], "classifier_accuracy_kept": None})
        tracker.finish({"status": "finished"})
        time.sleep(1.1)  # its files are ordered by the second in their names
    assert read_tensorboard(tmp_path / "tensorboard") == {
        "epoch": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "loss": [(1, 3.0), (2, 2.5), (3, 1.5)],
    }


def test_tensorboard_not_installed_is_a_user_error(monkeypatch):
    monkeypatch.setattr("l2d.tracking.trackers.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'l2d\[tensorboard\]'"):
        TensorBoardTracker()


@pytest.fixture
def offline(tmp_path, monkeypatch, composed):
    """`offline(epochs)` is one attempt at the same run, in the folder that it returns; nothing is sent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "ce-mixed-J2-mlp-seed0-12345678"
    folder.mkdir()

    def attempt(*overrides, mode="offline", error=None):
        tracker = WandbTracker("l2d", None, mode, weights=False)
        config = OmegaConf.to_container(composed("loss=ce", *overrides), resolve=True)
        (folder / "metrics.csv").write_text("epoch,system_error\n1,21.5\n2,\n3,22.0\n")
        result = {"status": "finished", "metrics": METRICS, "experts": EXPERTS}
        (folder / "result.json").write_text(json.dumps(result))
        with ending(tracker, Mock()):
            tracker.start(folder.name, config, folder)
            tracker.log({"epoch": 1, "loss": 2.0})
            if error:
                raise error
        tracker.finish(result)
        return folder

    return attempt


def test_a_second_attempt_continues_the_wandb_run_unless_forced(offline):
    for _ in range(2):
        folder = offline()
    first, second = (read_wandb(path)["run"].run_id for path in run_files(folder))
    assert first == second == (folder / "wandb_id").read_text().strip()
    assert read_wandb(run_files(folder)[0])["artifacts"]["result"].keys() == {"result.json"}
    offline("force=true")
    assert (folder / "wandb_id").read_text().strip() != first
    assert len(run_files(folder)) == 3


@pytest.mark.parametrize("error", [ValueError("diverged"), KeyboardInterrupt()])
def test_a_failed_or_stopped_run_is_finished_in_wandb_as_failed(offline, tmp_path, error):
    with pytest.raises(type(error)):
        offline(error=error)
    (file,) = tmp_path.glob("*/wandb/*run-[0-9]*/run-*.wandb")
    assert read_wandb(file)["exit_code"] == 1


def test_mode_disabled_writes_nothing(offline):
    folder = offline(mode="disabled")
    assert {path.name for path in folder.iterdir()} == {"metrics.csv", "result.json"}


def test_a_later_failure_of_wandb_is_reported_once_and_stops_nothing(tmp_path, capsys):
    class Broken:
        def log(self, row):
            raise ConnectionError("the service is gone")

    tracker = WandbTracker("l2d", None, "online", weights=False)
    tracker.run, tracker.failed = Broken(), False
    for epoch in (1, 2):
        tracker.log({"epoch": epoch})
    tracker.finish({"status": "finished"})
    assert capsys.readouterr().err.count("the service is gone") == 1


ONLINE = """
import json, sys, time
from pathlib import Path
from l2d.tracking import trackers
from l2d.tracking.trackers import WandbTracker

trackers.FINISH_SECONDS = 4
folder, config = Path(sys.argv[1]), json.loads(sys.argv[2])
tracker = WandbTracker("l2d", None, "online", weights=False)
began = time.monotonic()
tracker.start(folder.name, config, folder)
for epoch in (1, 2):
    tracker.log({"epoch": epoch, "loss": 1.0 / epoch})
tracker.finish({"status": "failed"})
print(time.monotonic() - began, time.monotonic())
"""


@pytest.fixture
def endpoint(request):
    """The address of a W&B that is not there, never answers, refuses every key, or falls silent once a run began."""
    if request.param in ("refuses the key", "falls silent"):
        refuses = request.param == "refuses the key"
        with serving(refuses_keys=refuses, silent_after="" if refuses else "UpsertBucket") as server:
            yield server.url
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "hangs":
            listener.listen(100)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("endpoint", "key"),
    [("is not there", True), ("hangs", True), ("refuses the key", True), ("hangs", False), ("falls silent", True)],
    indirect=["endpoint"],
)
def test_if_wandb_does_not_answer_the_run_is_kept_on_disk_within_seconds(tmp_path, composed, endpoint, key):
    folder = tmp_path / "run"
    folder.mkdir()
    config = json.dumps(OmegaConf.to_container(composed("loss=ce"), resolve=True))
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    env |= {"HOME": str(tmp_path), "WANDB_BASE_URL": endpoint} | (SECRETS if key else {})
    command = [sys.executable, "-c", ONLINE, str(folder), config]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    over = time.monotonic()  # the same clock in all processes
    assert done.returncode == 0, done.stderr
    seconds, finished = map(float, done.stdout.split())
    assert seconds < 12 and over < finished + 8, "no delay at the end of the program either"
    (path,) = re.findall(r"upload (?:it|the rest) with: wandb sync (\S+)", done.stderr)
    (file,) = Path(path).glob("*.wandb")
    kept = read_wandb(file)
    assert [row["loss"] for row in kept["history"]] == [1.0, 0.5] and kept["exit_code"] == 1
    assert kept["run"].run_id == (folder / "wandb_id").read_text().strip()


def test_hydra_composes_the_command_of_a_wandb_agent(composed):
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    sweep = yaml.safe_load((Path(__file__).parents[1] / "conf" / "wandb_sweep.yaml").read_text())
    drawn = {name: {"value": parameter["values"][-1]} for name, parameter in sweep["parameters"].items()}
    words = create_sweep_command_args({"args": drawn})
    words |= {"env": ["/usr/bin/env"], "program": [sweep["program"]]}
    command = [w for c in create_sweep_command(sweep["command"]) for w in (words[c[2:-1]] if c[:2] == "${" else [c])]
    assert command[:2] == ["/usr/bin/env", "l2d-train"]
    cfg = composed(*command[2:])
    assert (cfg.logger.name, cfg.loss.name, cfg.experts.num, cfg.seed) == ("wandb", "picce_ova", 20, 2)
    assert sweep["metric"]["name"] in METRICS


def test_the_recorded_commit_is_that_of_the_checkout():
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout
    assert environment()["git_commit"].removesuffix("+changes") == head.strip()


OWN_LOGGER = """
import json

class JsonLines:
    def __init__(self, file):
        self.file = file

    def start(self, name, config, folder):
        self.path = folder / self.file
        self.write("start", name=name, seed=config["seed"])

    def log(self, row):
        self.write("log", epoch=row["epoch"], loss=row["loss"])

    def finish(self, result):
        self.write("finish", status=result["status"], system_error=result["metrics"]["system_error"])

    def write(self, event, **values):
        with open(self.path, "a") as file:
            file.write(json.dumps({"event": event, **values}) + "\\n")
"""


@pytest.mark.slow
def test_a_logger_from_outside_is_one_module_and_one_yaml_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_logger.py").write_text(OWN_LOGGER)
    (tmp_path / "conf" / "logger").mkdir(parents=True)
    (tmp_path / "conf" / "logger" / "lines.yaml").write_text(
        "_target_: my_logger.JsonLines\nname: lines\nfile: l.jsonl\n"
    )
    small = ("dataset.num_train=256", "dataset.num_test=200", "trainer.epochs=2", "seed=3")
    assert wait(start("--config-dir", "conf", "logger=lines", *small)) == 0, (tmp_path / "output.txt").read_text()
    (path,) = tmp_path.glob("outputs/*/*/l.jsonl")
    begun, first, second, finished = map(json.loads, path.read_text().splitlines())
    assert begun == {"event": "start", "name": path.parent.name, "seed": 3}
    with open(path.with_name("metrics.csv")) as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert [first["loss"], second["loss"]] == losses and (first["epoch"], second["epoch"]) == (1, 2)
    result = json.loads(path.with_name("result.json").read_text())
    assert finished["status"] == "finished" and finished["system_error"] == result["metrics"]["system_error"]
