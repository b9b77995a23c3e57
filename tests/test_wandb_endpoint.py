"""W&B online with its real client: whole runs, the workspace and the report arrive at a local endpoint that speaks its protocol."""

import base64
import csv
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from children import start, wait
from wandb_endpoint import API_KEY, serving

from l2d.cli import main
from l2d.completion import candidates

SMALL = (
    "logger=wandb",
    "dataset.num_train=256",
    "dataset.num_test=200",
    "trainer.epochs=3",
    "experts.num=2",
    "output_dir=out",
)
METRICS = ["system_error", "coverage", "classifier_accuracy"]


def without_wandb() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """(endpoint, folder): a run with weights and a full evaluation, then a multirun of two cells, all online."""
    home, before = tmp_path_factory.mktemp("online"), Path.cwd()
    with serving() as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for name in set(os.environ) - set(without_wandb()):
            patch.delenv(name)
        child = {"HOME": str(home), "OMP_NUM_THREADS": "1", **endpoint.environment()}
        single = ("loss=ce", "evaluation=full", "trainer.eval_every=1", "logger.weights=true", "seed=7")
        for words in ((*SMALL, *single), ("-m", *SMALL, "loss=ce,picce_ce")):
            assert wait(start(*words, **child)) == 0, Path("output.txt").read_text()
            assert "W&B" not in Path("output.txt").read_text(), "a notice about something that went wrong"
        patch.chdir(before)
        yield endpoint, home


def received(sent, seed: int) -> list[tuple[dict, Path]]:
    """The runs of a seed that arrived, each with the folder of its name."""
    endpoint, home = sent
    runs = [(run, home / "out" / "synthetic" / run["displayName"]) for run in endpoint.runs.values()]
    return [(run, folder) for run, folder in runs if f"-seed{seed}-" in folder.name]


def config_of(run: dict) -> dict:
    """W&B wraps the value of every key."""
    return {key: entry["value"] for key, entry in json.loads(run["config"]).items()}


@pytest.mark.slow
def test_a_run_arrives_whole_and_ends_with_exit_code_0(sent):
    ((run, folder),) = received(sent, 7)
    assert (run["project"], run["jobType"]) == ("l2d", "train")
    assert (folder / "wandb_id").read_text().strip() == run["name"]
    assert set(run["tags"]) == {"synthetic", "specialist", "ce"}
    assert (run["complete"], run["exit_code"]) == (True, 0)
    config = config_of(run)
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert {key: config[key] for key in saved} == saved
    result = json.loads((folder / "result.json").read_text())
    assert config["choices"] | result["choices"] == config["choices"] and config["choices"]["method"] == "ce"
    with open(folder / "metrics.csv") as file:
        epochs = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    history = [{key: row[key] for key in row if not key.startswith("_")} for row in run["history"] if "loss" in row]
    assert history == epochs and len(epochs) == 3
    summary = run["summary"]
    assert {key: summary[key] for key in METRICS} == {key: result["metrics"][key] for key in METRICS}
    assert summary["best/system_error"] == min(row["system_error"] for row in epochs)


@pytest.mark.slow
def test_every_key_that_the_panels_read_is_in_the_runs(sent):
    panels = pytest.importorskip("wandb_workspaces.reports.v2")
    from wandb_workspaces.workspaces import Workspace

    from l2d.dashboard import specification, workspace

    view = Workspace._from_model(workspace("me", "l2d", "synthetic")._to_model())  # as the library reads it back
    plots = [panel for section in view.sections for panel in section.panels if isinstance(panel, panels.LinePlot)]
    axes = {(plot.x.name, *(y.name for y in plot.y)) for plot in plots}
    assert axes == {("final/num_experts", f"final/{metric}") for metric in METRICS} | {
        ("epoch", key) for key in ("loss", *METRICS)
    }
    grouped = {plot.groupby.name for plot in plots}
    columns = [column for column in view.runset_settings.pinned_columns if not column.startswith("run:")]
    (filtered,) = specification(view)["spec"]["section"]["runSets"][0]["filters"]["filters"]
    assert len(columns) == 8
    for run, _ in received(sent, 7) + received(sent, 0):
        config, rows = config_of(run), [set(row) for row in run["history"]]
        for pair in axes:
            assert any(set(pair) <= row for row in rows), f"no row of the history has both {pair}"
        for name in grouped:
            group, _, key = name.partition(".")
            assert config[group][key]
        for column in columns:
            section, _, name = column.partition(":")
            group, _, key = name.partition(".value.")
            assert name in run["summary"] if section == "summary" else key in config[group]
        assert all(order.item.name in run["summary"] for order in view.runset_settings.order)
        assert filtered["value"] == ["synthetic"] and "synthetic" in run["tags"]


@pytest.mark.slow
def test_the_artifact_arrives_whole(sent):
    endpoint, _ = sent
    for seed, names in ((7, {"result.json", "model.safetensors"}), (0, {"result.json"})):
        for run, folder in received(sent, seed):
            artifact = endpoint.artifacts[f"result-{run['name']}"]
            assert (artifact["type"], artifact["run"], artifact["committed"]) == ("result", run["name"], True)
            files = endpoint.artifact_files(f"result-{run['name']}")
            assert files == {name: (folder / name).read_bytes() for name in names}
            manifest = json.loads(endpoint.uploads[f"/upload/artifact/{artifact['id']}/wandb_manifest.json"])
            digests = {name: entry["digest"] for name, entry in manifest["contents"].items()}
            assert digests == {n: base64.b64encode(hashlib.md5(data).digest()).decode() for n, data in files.items()}


@pytest.mark.slow
def test_the_tables_of_a_run_arrive(sent):
    ((run, folder),) = received(sent, 7)
    result, final = json.loads((folder / "result.json").read_text()), run["history"][-1]
    uploaded = {
        path: data for path, data in sent[0].uploads.items() if path.startswith(f"/upload/run/{run['name']}/media/")
    }
    keys = ["deferral_table", *(f"reliability/{who}_table" for who in result["evaluation"]["calibration"])]
    assert len(uploaded) == len(keys) == 3
    for key in keys:
        (table,) = [data for path, data in uploaded.items() if path.endswith(f"/{final[key]['path']}")]
        assert hashlib.sha256(table).hexdigest() == final[key]["sha256"]
        if key == "deferral_table":
            assert [row[3] for row in json.loads(table)["data"]] == result["metrics"]["deferred_to"]


@pytest.mark.slow
def test_the_cells_of_a_multirun_are_runs_of_their_own(sent):
    endpoint, home = sent
    cells = received(sent, 0)
    assert len(endpoint.runs) == 3 and len(cells) == 2
    assert {config_of(run)["loss"]["name"] for run, _ in cells} == {"ce", "picce_ce"}
    (manifest,) = home.glob("out/.sweeps/*.json")
    assert {run["groupName"] for run, _ in cells} == {manifest.stem}
    for run, folder in cells:
        assert (folder / "wandb_id").read_text().strip() == run["name"] and (run["complete"], run["exit_code"]) == (
            True,
            0,
        )
        result = json.loads((folder / "result.json").read_text())
        assert [row["epoch"] for row in run["history"] if "loss" in row] == [1, 2, 3]
        assert run["summary"]["system_error"] == result["metrics"]["system_error"]


@pytest.mark.slow
def test_nothing_else_is_contacted_and_nothing_is_sent_twice(sent):
    endpoint, _ = sent
    assert endpoint.elsewhere == [] and endpoint.gaps == []


@pytest.mark.slow
def test_the_workspace_and_the_report_with_the_tables_arrive(sent):
    pytest.importorskip("wandb_workspaces")
    endpoint, home = sent
    words = [sys.executable, "-m", "l2d", "dashboard", "me/l2d", "out", "--dataset", "synthetic"]
    child = without_wandb() | endpoint.environment() | {"HOME": str(home)}
    done = subprocess.run(words, cwd=home, env=child, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    workspace, report = endpoint.views
    assert [(v["entityName"], v["projectName"], v["type"]) for v in (workspace, report)] == [
        ("me", "l2d", "project-view"),
        ("me", "l2d", "runs"),
    ]
    assert len(done.stdout.split()) == 2 and done.stdout.split()[0].startswith(f"{endpoint.url}/me/l2d?nw=")
    bank = workspace["spec"]["section"]["panelBankConfig"]["sections"]
    panels = [panel for section in bank for panel in section["panels"]]
    (grid,) = [block for block in report["spec"]["blocks"] if block["type"] == "panel-grid"]
    shown = grid["metadata"]["panelBankSectionConfig"]["panels"]
    metrics = [panel["config"]["metrics"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert [panel["config"]["metrics"] for panel in shown] == metrics and len(metrics) == 7
    text = "\n".join(block["content"] for block in report["spec"]["blocks"] if block["type"] == "markdown-block")
    for loss in ("ce", "picce_ce"):
        results = [json.loads(file.read_text()) for file in home.glob(f"out/synthetic/{loss}-*/result.json")]
        means = {metric: fmean(result["metrics"][metric] for result in results) for metric in METRICS}
        assert all(f"{means[metric]:.2f}" in text for metric in METRICS) and len(results) in (1, 2)
    assert endpoint.elsewhere == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library, about itself
def test_a_dry_run_of_the_dashboard_prints_it_without_network(capsys, monkeypatch, embedded_run):
    pytest.importorskip("wandb_workspaces")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))
    folder = embedded_run()
    capsys.readouterr()
    main(["dashboard", "team/l2d", "--dry-run"])
    assert json.loads(capsys.readouterr().out).keys() == {"workspace"}
    main(["dashboard", "team/l2d", str(folder), "--dry-run"])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["workspace"]["entity"], printed["workspace"]["project"]) == ("team", "l2d")
    assert printed["report"]["project"]["name"] == "l2d"
    error = json.loads((folder / "result.json").read_text())["metrics"]["system_error"]
    (tables,) = [block["content"] for block in printed["report"]["spec"]["blocks"] if block["type"] == "markdown-block"]
    assert f"{error:.2f}" in tables


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library, about itself
@pytest.mark.parametrize(
    ("words", "says"),
    [(["l2d"], "ENTITY/PROJECT"), (["me/l2d", "nowhere"], "nowhere"), (["me/l2d", "RUN", "--dataset", "mars"], "mars")],
)
def test_a_wrong_dashboard_is_a_user_error(capsys, words, says, embedded_run):
    pytest.importorskip("wandb_workspaces")
    words = [str(embedded_run()) if word == "RUN" else word for word in words]
    with pytest.raises(SystemExit) as stop:
        main(["dashboard", *words, "--dry-run"])
    assert stop.value.code == 2 and says in capsys.readouterr().err


def test_completion_offers_the_options_of_the_dashboard():
    assert candidates(["l2d", "dash"]) == ["dashboard"]
    assert candidates(["l2d", "dashboard", "me/l2d", "--d"]) == ["--dataset", "--dry-run"]


def test_a_dashboard_without_its_library_is_a_user_error(capsys, monkeypatch):
    monkeypatch.setattr("l2d.dashboard.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        main(["dashboard", "me/l2d"])
    assert stop.value.code == 2 and "l2d[wandb-dashboard]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dashboard_that_wandb_refuses_is_a_user_error(tmp_path):
    pytest.importorskip("wandb_workspaces")
    command = [sys.executable, "-m", "l2d", "dashboard", "me/l2d"]
    done = subprocess.run(command, env=without_wandb() | {"HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "No API key configured" in done.stderr
    with serving(refuses_keys=True) as endpoint:
        child = without_wandb() | endpoint.environment() | {"HOME": str(tmp_path)}
        done = subprocess.run(command, env=child, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr and API_KEY not in done.stderr
    assert endpoint.views == [] and done.stderr.rstrip().endswith("--dry-run shows it without W&B.")
