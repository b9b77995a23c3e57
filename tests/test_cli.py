"""The command line as a user types it: whole runs, whole sweeps, and what happens when something is wrong."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

TINY = ("dataset.num_train=256", "dataset.num_test=200", "trainer.epochs=2")
REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def cli(tmp_path, monkeypatch, capfd):
    """`cli(*arguments)` runs l2d-train in an empty folder and returns (exit code, stdout, stderr)."""
    from l2d.cli import train

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["l2d-train", *arguments])
        try:
            train()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capfd.readouterr()

    return run


def only_run():
    (result,) = Path("outputs").glob("*/*/result.json")
    return json.loads(result.read_text()), result.parent


def test_the_default_run_reports_the_three_metrics_beside_the_best_achievable(cli):
    code, out, _ = cli()
    assert code == 0
    header, ours, best = [line for line in out.splitlines() if line.strip()][-4:-1]
    assert header.split() == ["system_error", "coverage", "classifier_accuracy"]
    result, folder = only_run()
    shown = [float(number) for number in ours.split()[-3:]]
    assert shown == [round(result["metrics"][key], 2) for key in header.split()]
    assert best.startswith("best achievable")
    assert float(best.split()[-3]) < shown[0], "no system can beat the Bayes optimum by chance at this size"
    assert result["status"] == "finished" and result["seed"] == 0
    assert len(result["experts"]) == 4 and all(0 < e["test_accuracy"] < 100 for e in result["experts"])
    assert {"versions", "git_commit", "device", "seconds", "peak_memory_mb", "fingerprint"} <= result.keys()
    with open(folder / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(1, 31))
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    assert rows[0]["system_error"] == "" and float(rows[-1]["system_error"]) == result["metrics"]["system_error"]
    assert (folder / "model.pt").stat().st_size > 0 and folder.name.endswith(result["fingerprint"])


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(cli):
    metrics = []
    for arguments in (("seed=3",), ("seed=3", "force=true"), ("seed=4",)):
        assert cli(*TINY, *arguments)[0] == 0
        newest = max(Path("outputs").glob("*/*/result.json"), key=lambda p: p.stat().st_mtime_ns)
        metrics.append(json.loads(newest.read_text())["metrics"])
    assert metrics[0] == metrics[1] != metrics[2]


def test_a_finished_run_is_not_repeated_unless_forced(cli):
    cli(*TINY)
    _, folder = only_run()
    before = (folder / "result.json").stat().st_mtime_ns
    code, out, _ = cli(*TINY, "trainer.log_every=7")  # a display setting is not another run
    assert code == 0 and "finished before" in out and "system_error" in out
    assert (folder / "result.json").stat().st_mtime_ns == before
    cli(*TINY, "force=true")
    assert (folder / "result.json").stat().st_mtime_ns > before


def test_a_grid_runs_every_cell_in_the_folder_a_single_run_would_use(cli):
    code, out, _ = cli("-m", *TINY, "loss=ce,picce_ova", "experts.num=1,3")
    assert code == 0 and "4 done, 0 finished before, 0 failed" in out and "[4 of 4" in out
    assert len(list(Path("outputs").glob("synthetic/*/result.json"))) == 4
    code, out, _ = cli(*TINY, "experts.num=3", "loss=ce")
    assert code == 0 and "finished before" in out
    code, out, _ = cli("-m", *TINY, "loss=ce,picce_ova", "experts.num=1,3,5", "plan=true")
    assert code == 0 and "6 cells: 2 to run, 4 to skip" in out.replace("4 to skip, 2 to run", "2 to run, 4 to skip")
    assert len(list(Path("outputs").glob("synthetic/*"))) == 4, "a plan makes no folders"


def test_a_refused_cell_does_not_stop_the_others_and_the_sweep_says_so(cli):
    code, out, err = cli("-m", *TINY, "experts.num=40,2")
    assert code == 2 and "1 done, 0 finished before, 1 failed" in out
    assert "experts.num=40" in err and "at most 20 experts fit" in err
    assert len(list(Path("outputs").glob("synthetic/*"))) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["experts.nmu=3"], "experts.nmu"),
        (["loss=hinge"], "picce_ce"),
        (["experts=animal"], "class group 'animal'"),
        (["experts=dog"], "class group 'dog'"),
        (["experts=human"], "no"),
        (["experts.num=21"], "at most 20 experts fit"),
        (["experts.num=0"], "experts.num=0 "),
        (["experts=specialist_overlapped", "experts.num=19"], "at most 18 experts fit"),
        (["experts.in_domain=1.5"], "experts.in_domain=1.5 "),
        (["experts.in_domain=[]"], "experts.in_domain=[] "),
        (["experts.in_domain=[a]"], "experts.in_domain=['a'] "),
        (["experts.resample=sometimes"], "once or per_epoch"),
        (["backbone=timm"], "backbone.name has no value"),
        (["backbone=timm", "backbone.name=resnet19"], "resnet18"),
        (["backbone=wrn28", "backbone.depth=27"], "6n + 4"),
        (["trainer.device=tpu"], "auto, cpu, cuda"),
        (["trainer.precision=int4"], "float32"),
        (["trainer.epochs=0"], "trainer.epochs=0"),
        (["trainer.epochs=many"], "trainer.epochs=many "),
        (["optim.lr=nan"], "optim.lr"),
        (["plan=${oc.env:NOWHERE}"], "NOWHERE"),
        (["~trainer.checkpoint_minutes"], "trainer.checkpoint_minutes is required"),
        (["optim.schedule=steps"], "cosine or constant"),
        (["optim=adamw", "+optim.betas=[0.5]"], "optim.betas=[0.5] "),
        (["hydra/job_logging=disabled", "seed=-1"], "seed=-1"),
        (["optim.warmup_epochs=99"], "warmup"),
        (["+loss.temperature=2"], "loss"),
        (["loss.formulation=no.such.function"], "vanilla, picce, pice"),
        (["loss._target_=no.such.Loss"], "cannot be imported"),
        (["logger=wandb", "logger.mode=sideways"], "online, offline or disabled"),
        (["trainer"], "trainer"),
        (["backbone.name=ü"], """'backbone.name="ü"'"""),
        (["output_dir=my (data)"], """'output_dir="my (data)"'"""),
        (["ü=3"], "ü=3 "),
    ],
)
def test_what_a_user_can_get_wrong_ends_in_a_sentence_and_leaves_nothing_behind(cli, arguments, says):
    code, _, err = cli(*TINY, *arguments)
    assert code == 2
    assert err.startswith("l2d: ") and says in err and err.count("\n") == 1, err
    assert not Path("outputs").exists()


def test_a_folder_given_by_hand_that_holds_another_run_is_refused_with_the_keys_that_differ(cli):
    assert cli(*TINY, "hydra.run.dir=mine")[0] == 0
    before = Path("mine/result.json").read_text()
    code, _, err = cli(*TINY, "hydra.run.dir=mine", "experts.num=2", "optim.lr=0.2")
    assert code == 2 and "experts.num, optim.lr" in err
    assert Path("mine/result.json").read_text() == before


def test_a_bug_keeps_its_traceback_and_the_run_is_recorded_as_failed(cli):
    Path("broken.py").write_text("def loss(num_classes):\n    return lambda *a: 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        cli(*TINY, "loss._target_=broken.loss", "~loss.formulation", "~loss.base")
    result, _ = only_run()
    assert result["status"] == "failed" and "division" in result["error"]


def test_a_failing_cell_has_its_traceback_in_its_own_log(cli):
    Path("crashing.py").write_text("def loss(num_classes):\n    return lambda *a: 1 / 0\n")
    arguments = ("loss._target_=crashing.loss", "~loss.formulation", "~loss.base", "seed=0,1")
    code, out, err = cli("-m", *TINY, *arguments)
    assert code == 1 and "0 done, 0 finished before, 2 failed" in out and "ZeroDivisionError" in err
    for log in Path("outputs").glob("*/*/train.log"):
        assert "Traceback" in log.read_text()
    assert len(list(Path("outputs").glob("*/*/train.log"))) == 2


def test_a_full_evaluation_says_what_the_excess_error_is_made_of(cli):
    code, out, _ = cli(*TINY, "evaluation=full", "trainer.eval_every=1")
    assert code == 0
    result, folder = only_run()
    regret = result["evaluation"]["regret"]
    assert regret["total"] == pytest.approx(regret["classifier"] + regret["decision"] + regret["expert"])
    assert f"regret {regret['total']:.2f}: classifier {regret['classifier']:.2f}" in out
    assert regret["expected_system_error"] == pytest.approx(result["bayes"]["system_error"] + regret["total"])
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert all(0 < float(row["class_gradient_share"]) < 100 and float(row["expert_aggregation"]) > 0 for row in rows)


OWN_PARTS = """
import torch
from l2d.data import Dataset, Split

def two_most_confident(expert_scores, correct):
    best = expert_scores.masked_fill(~correct, -torch.inf).topk(min(2, correct.shape[1]), dim=1).indices
    return torch.zeros_like(expert_scores).scatter(1, best, 1.0) * correct

def night_shift(num, num_classes, skill):
    matrix = torch.full((num, num_classes), skill)
    matrix[:, 0] = 1.0
    return matrix.numpy()

def stripes(name, count):
    labels = torch.arange(count) % 3
    images = torch.randn(count, 3, 6, 6) + labels.view(-1, 1, 1, 1)
    half = count // 2
    return Dataset(name, ["a", "b", "c"], Split(images[:half], labels[:half]), Split(images[half:], labels[half:]), (3, 6, 6))

class Linear(torch.nn.Module):
    def __init__(self, num_outputs, image_shape):
        super().__init__()
        self.layer = torch.nn.Linear(image_shape[0] * image_shape[1] * image_shape[2], num_outputs)
    def forward(self, images):
        return self.layer(images.flatten(1))
"""


def test_a_user_adds_a_loss_experts_a_dataset_and_a_backbone_without_touching_the_package(cli):
    Path("own_parts.py").write_text(OWN_PARTS)
    for file, text in {
        "loss/two.yaml": "_target_: l2d.losses.DeferralLoss\nname: two\nformulation: own_parts.two_most_confident\nbase: ce\n",
        "experts/night.yaml": "_target_: own_parts.night_shift\nname: night\nnum: 3\nskill: 0.6\nresample: once\n",
        "dataset/stripes.yaml": "_target_: own_parts.stripes\nname: stripes\ncount: 120\n",
        "backbone/linear.yaml": "_target_: own_parts.Linear\nname: linear\n",
    }.items():
        path = Path("my_conf", file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    arguments = ("dataset=stripes", "experts=night", "backbone=linear", "loss=two", "trainer.epochs=2")
    code, _, err = cli("--config-dir", "my_conf", *arguments)
    assert code == 0, err
    result, folder = only_run()
    assert folder.parent.name == "stripes" and folder.name.startswith("two-night-J3-linear-seed0-")
    assert result["choices"]["num_experts"] == 3 and len(result["metrics"]["deferred_to"]) == 3


def test_run_is_importable(tmp_path):
    from hydra import compose, initialize_config_dir

    from l2d.config import config_dir
    from l2d.train import run

    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("train", [*TINY, f"output_dir={tmp_path}", "verbose=false"])
    metrics = run(cfg)
    assert {"system_error", "coverage", "classifier_accuracy"} <= metrics.keys()
    assert len(list(tmp_path.glob("synthetic/*/result.json"))) == 1


def test_the_wheel_carries_the_configs_and_works_from_any_folder(tmp_path):
    source = tmp_path / "a checkout"
    shutil.copytree(REPOSITORY / "l2d", source / "l2d", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "conf", source / "conf")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed, elsewhere = tmp_path / "installed", tmp_path / "some where"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(installed),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import l2d.config; print(l2d.config.config_dir())"]
    found = subprocess.run(where, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == installed / "l2d" / "conf"
    script = [sys.executable, str(installed / "bin" / "l2d-train"), *TINY]
    done = subprocess.run(script, cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(elsewhere.glob("outputs/synthetic/*/result.json"))) == 1


def test_help_shows_the_choices_and_the_defaults_as_hydra_composes_them(composed):
    """Read from the files without Hydra; the same values as the composed config has."""
    code = "import sys; sys.argv[1:] = ['--help']; from l2d.cli import train; train(); print('loaded', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    said, _, loaded = out.rpartition("\nloaded ")
    assert not {"torch", "hydra", "pydantic"} & set(loaded.split())
    assert "loss: ce, ova, picce_ce, picce_ova, pice_ce, pice_ova" in said and "$" not in said.partition("defaults:")[0]
    shown = yaml.safe_load(said.partition("the keys and their defaults:\n")[2])
    assert shown == OmegaConf.to_container(composed(), resolve=False)
