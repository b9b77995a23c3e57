"""MLflow with its real client and a real server: what arrives there, and what happens when the server is not there."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from children import start, wait

from l2d.cli import main
from l2d.config import flatten
from l2d.errors import UserError
from l2d.tracking import mlflow_tracker
from l2d.tracking.mlflow_tracker import MlflowTracker

NEEDED = (
    "mlflow",
    "flask",
    "flask_cors",
    "sqlalchemy",
    "aiohttp",
    "alembic",
)  # for a server; the extra has the client alone
with_server = pytest.mark.skipif(
    not all(map(find_spec, NEEDED)), reason=f"an MLflow server needs {', '.join(NEEDED)}: pip install 'l2d[dev,mlflow]'"
)
SMALL = ("logger=mlflow", "dataset.num_train=256", "dataset.num_test=200", "experts.num=2", "output_dir=out")
GROUPS = ("dataset", "experts", "backbone", "loss", "optim")
CONFIG = {**{group: {"name": group} for group in GROUPS}, "seed": 0, "rule": {"caps": {"Ann (night)": 3, "a" * 300: 1}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of an MLflow server with a database and artifacts in a temporary folder."""
    home = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{home / 'runs.db'}",
        "--artifacts-destination",
        str(home / "artifacts"),
    ]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(home / "server.log", "w") as log:
        process = subprocess.Popen(
            command, cwd=home, env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True
        )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 180
    try:
        while not answers(url):
            assert process.poll() is None and time.monotonic() < deadline, (home / "server.log").read_text()[-3000:]
            time.sleep(0.1)
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # it has a worker
        process.wait(20)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


@pytest.fixture
def client(server):
    from mlflow import MlflowClient

    return MlflowClient(server)


def runs_of(client, experiment: str) -> list:
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id], order_by=["tags.method"])


def read_epochs(folder: Path) -> list[dict[str, float]]:
    with open(folder / "metrics.csv") as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


def history(client, run, key: str) -> dict[int, float]:
    """The values of a metric by their steps, each of which must be there once."""
    found = client.get_metric_history(run.info.run_id, key)
    assert len({metric.step for metric in found}) == len(found)
    return {metric.step: metric.value for metric in sorted(found, key=lambda metric: metric.step)}


@with_server
@pytest.mark.slow
def test_each_cell_of_a_multirun_is_an_mlflow_run_with_the_facts_of_its_folder(tmp_path, monkeypatch, server, client):
    monkeypatch.chdir(tmp_path)
    words = (
        "-m",
        *SMALL,
        f"logger.tracking_uri={server}",
        "logger.experiment=grid",
        "loss=ce,picce_ce",
        "trainer.epochs=3",
    )
    words += ("trainer.eval_every=1", "evaluation=full", "logger.weights=true", "seed=4")
    assert wait(start(*words)) == 0, Path("output.txt").read_text()
    (manifest,) = Path("out/.sweeps").glob("*.json")
    runs = runs_of(client, "grid")
    assert [run.data.tags["method"] for run in runs] == ["ce", "picce_ce"]
    for run in runs:
        folder = Path("out/synthetic", run.info.run_name)
        assert (folder / "mlflow_id").read_text().strip() == run.info.run_id
        assert run.info.status == "FINISHED"
        result, epochs = json.loads((folder / "result.json").read_text()), read_epochs(folder)
        saved = flatten(yaml.safe_load((folder / "config.yaml").read_text()))
        assert run.data.params == {key: v if isinstance(v, str) else json.dumps(v) for key, v in saved.items()}
        facts = {
            "dataset": "synthetic",
            "experts": "specialist",
            "num_experts": "2",
            "seed": "4",
            "sweep": manifest.stem,
        }
        assert run.data.tags | facts == run.data.tags and run.data.tags.get("git_commit") == result["git_commit"]
        for key in ("loss", "lr", "system_error", "coverage", "classifier_accuracy"):
            assert history(client, run, key) == {int(row["epoch"]): row[key] for row in epochs}
        final = {key: value for key, value in result["metrics"].items() if isinstance(value, float)}
        assert {key: run.data.metrics[f"final/{key}"] for key in final} == final
        assert run.data.metrics["bayes/system_error"] == result["bayes"]["system_error"]
        assert run.data.metrics["best/system_error"] == min(row["system_error"] for row in epochs)
        check_artifacts(client, run, folder, result)


def check_artifacts(client, run, folder: Path, result: dict) -> None:
    kept = Path(client.download_artifacts(run.info.run_id, "", str(folder.parent)))
    for name in ("config.yaml", "metrics.csv", "result.json", "model.safetensors"):
        assert (kept / name).read_bytes() == (folder / name).read_bytes()
    with open(kept / "tables" / "deferral.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["deferred_to"]) for row in rows] == result["metrics"]["deferred_to"]
    assert [row["expert"] for row in rows] == [expert["name"] for expert in result["experts"]]
    for who, bins in result["evaluation"]["calibration"].items():
        with open(kept / "tables" / f"reliability_{who}.csv") as file:
            assert [float(row["count"]) for row in csv.DictReader(file)] == [n for n in bins["count"] if n]
        assert run.data.metrics[f"ece/{who}"] == bins["ece"]


@with_server
@pytest.mark.slow
def test_a_run_that_was_killed_continues_its_mlflow_run(tmp_path, monkeypatch, server, client):
    monkeypatch.chdir(tmp_path)
    words = (*SMALL, f"logger.tracking_uri={server}", "logger.experiment=killed", "trainer.epochs=30")
    words += ("dataset.num_train=6000", "trainer.checkpoint_epochs=2")
    child = start(*words)
    deadline = time.monotonic() + 180
    try:
        while not (found := list(Path("out").glob("*/*/metrics.csv"))) or len(found[0].read_text().splitlines()) < 5:
            assert child.is_alive() and time.monotonic() < deadline, Path("output.txt").read_text()
            time.sleep(0.02)
    finally:
        child.kill()
    assert wait(child) == -signal.SIGKILL
    (before,) = runs_of(client, "killed")
    assert before.info.status == "RUNNING" and 0 < before.data.metrics["epoch"] < 30
    assert wait(start(*words)) == 0, Path("output.txt").read_text()
    (run,) = runs_of(client, "killed")
    assert (run.info.run_id, run.info.status) == (before.info.run_id, "FINISHED")
    losses = {int(row["epoch"]): row["loss"] for row in read_epochs(found[0].parent)}
    assert history(client, run, "loss") == losses and list(losses) == list(range(1, 31))
    assert json.loads((found[0].parent / "result.json").read_text())["attempts"] == 2


@with_server
@pytest.mark.slow
def test_force_begins_another_mlflow_run_and_a_failure_is_shown_as_one(tmp_path, server, client):
    tracker = MlflowTracker(server, "forced", weights=False)
    for force, status in ((False, "failed"), (False, "interrupted"), (True, "failed")):
        tracker.start("ce-seed0-0", {**CONFIG, "force": force}, tmp_path)
        tracker.log({"epoch": 1, "loss": 1.0})
        tracker.finish({"status": status})
    assert sorted(run.info.status for run in runs_of(client, "forced")) == ["FAILED", "KILLED"]


def refused(words, capsys, says: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["train", *words])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.startswith("l2d: ") and said.count("\n") == 1 and says in said, said
    assert not Path("out").exists()
    return said


@pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed: pip install 'l2d[mlflow]'")
def test_a_server_that_is_not_there_is_a_user_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        said = refused((*SMALL, f"logger.tracking_uri={url}"), capsys, f"logger.tracking_uri={url}")
    assert "mlflow server" in said
    secret = refused((*SMALL, "logger.tracking_uri=http://me:hunter2@127.0.0.1:1"), capsys, "MLFLOW_TRACKING_PASSWORD")
    assert "hunter2" not in secret


def test_mlflow_not_installed_is_a_user_error(monkeypatch):
    monkeypatch.setattr("l2d.tracking.mlflow_tracker.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'l2d\[mlflow\]'"):
        MlflowTracker("http://127.0.0.1:5000", "l2d", False)


@pytest.mark.parametrize(("wait_for", "tried"), [(0, [1, 2, 2, 2, 3, 4, 5]), (60, [1, 2, 2, 3, 4, 5])])
def test_epochs_that_the_server_did_not_take_are_sent_again(tmp_path, monkeypatch, capsys, wait_for, tried):
    """It is away in epochs 2 and 3. Where the tracker waits long after a failure, what is missing is sent when the run ends."""
    now, attempts, taken = [0], [], []

    def log_batch(run_id, metrics=(), params=()):
        attempts.extend(metrics[:1])
        if metrics and now[0] in (2, 3):
            raise ConnectionError("the server is away")
        taken.extend(metrics[:1])

    client = Mock(log_batch=log_batch)
    client.create_run.return_value = Mock(info=Mock(run_id="0"), data=Mock(params={}, metrics={}))
    entities = Mock(Metric=lambda key, value, timestamp, step: step)
    monkeypatch.setattr(mlflow_tracker, "find_spec", lambda name: True)
    monkeypatch.setattr(
        mlflow_tracker, "import_module", lambda name: Mock(MlflowClient=lambda _: client, entities=entities)
    )
    monkeypatch.setattr(mlflow_tracker, "RETRY_SECONDS", wait_for)
    tracker = MlflowTracker("http://127.0.0.1:5000", "l2d", False)
    tracker.start("ce-seed0-0", {**CONFIG, "force": False}, tmp_path)
    for epoch in range(1, 6):
        now[0] = epoch
        tracker.log({"epoch": epoch, "loss": 1.0, "stage": "only"})
    tracker.finish({"status": "failed"})
    assert taken == [1, 2, 3, 4, 5] and attempts == tried
    assert capsys.readouterr().err.count("the server is away") == 1
    client.set_terminated.assert_called_once_with("0", "FAILED")
