"""The command line as a user types it: whole runs, whole sweeps, and what happens when something is wrong."""

import csv
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from l2d import __version__
from l2d.cli import COMMANDS, main, train
from l2d.conf_files import config_dir

TINY = ("dataset.num_train=256", "dataset.num_test=200", "trainer.epochs=2")


@pytest.fixture
def cli(tmp_path, monkeypatch, capfd):
    """`cli(*arguments)` runs l2d-train in an empty folder and returns (exit code, stdout, stderr)."""
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
    header, ours, best = [line for line in out.splitlines() if line.strip()][-5:-2]
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
    assert [int(row["epoch"]) for row in rows] == list(range(1, 16))
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    assert rows[0]["system_error"] == "" and float(rows[-1]["system_error"]) == result["metrics"]["system_error"]
    assert (folder / "model.safetensors").stat().st_size > 0 and folder.name.endswith(result["fingerprint"])


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


@pytest.mark.slow
def test_a_grid_runs_every_cell_in_the_folder_a_single_run_would_use(cli):
    code, out, _ = cli("-m", *TINY, "loss=ce,picce_ova", "experts.num=1,3")
    assert code == 0 and "4 done, 0 finished before, 0 failed" in out and "[4 of 4" in out
    assert len(list(Path("outputs").glob("synthetic/*/result.json"))) == 4
    code, out, _ = cli(*TINY, "experts.num=3", "loss=ce")
    assert code == 0 and "finished before" in out
    code, out, _ = cli("-m", *TINY, "loss=ce,picce_ova", "experts.num=1,3,5", "plan=true")
    assert code == 0 and {line.split()[0] for line in out.splitlines()} == {"run", "skip", "6"}
    assert "2 to run" in out and "4 to skip" in out
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
def test_user_mistakes_end_in_a_sentence_and_leave_no_files(cli, arguments, says):
    code, _, err = cli(*TINY, *arguments)
    assert code == 2
    assert err.startswith("l2d: ") and says in err and err.count("\n") == 1, err
    assert not Path("outputs").exists()


def test_a_refused_run_leaves_no_folder_that_hydra_made_for_it(cli, tmp_path):
    code, _, err = cli(*TINY, "hydra.output_subdir=x", "loss._target_=torch.nn.Linear")
    assert code == 2 and "torch.nn.Linear" in err
    assert not list(tmp_path.rglob("*"))


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


def test_a_full_evaluation_prints_the_parts_of_the_regret(cli):
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
    images = torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(0)) + labels.view(-1, 1, 1, 1)
    half = count // 2
    return Dataset(name, ["a", "b", "c"], Split(images[:half], labels[:half]), Split(images[half:], labels[half:]))

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
    main(["data", "check", "--config-dir", "my_conf", *arguments])  # the same words find the same parts


@pytest.mark.parametrize("command", ["train", "data check"])
def test_a_config_dir_that_does_not_exist_is_refused(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "seed=1", "--config-dir", "nowhere", "loss=ce"])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and "nowhere" in err and err.count("\n") == 1


def test_run_is_importable(tmp_path):
    from hydra import compose, initialize_config_dir

    from l2d.config import config_dir
    from l2d.train import run

    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("train", [*TINY, f"output_dir={tmp_path}", "verbose=false"])
    metrics = run(cfg)
    assert {"system_error", "coverage", "classifier_accuracy"} <= metrics.keys()
    assert len(list(tmp_path.glob("synthetic/*/result.json"))) == 1


def test_imports_are_not_searched_for_garbage_and_what_follows_is(tmp_path):
    """In a process of its own: another test may have imported it all."""
    code = f"""
import gc, sys
from l2d.lazy import importing
with importing():
    was = gc.isenabled()
    import json.tool
assert gc.isenabled() and not was and gc.get_freeze_count()
before = gc.get_freeze_count()
try:
    with importing():
        raise ValueError
except ValueError:
    assert gc.isenabled() and gc.get_freeze_count() == before  # nothing was imported
gc.disable()
with importing():
    import fractions
assert not gc.isenabled()  # as it was
gc.enable()

collections = []
gc.callbacks.append(lambda phase, info: collections.append("torch._dynamo" in sys.modules))
from l2d.cli import main
main({["train", *TINY, f"output_dir={tmp_path}"]!r})
assert gc.isenabled() and gc.get_freeze_count() > 100_000 and any(collections)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


HEAVY = frozenset({"torch", "hydra", "omegaconf", "pandas", "matplotlib", "pydantic"})


def said_and_loaded_no_more(*arguments: str, heavy: frozenset[str] = HEAVY) -> str:
    """What `l2d ...` prints in a process of its own, which must not import a heavy package."""
    code = f"import sys; from l2d.cli import main; main({list(arguments)!r}); print('loaded', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    said, _, loaded = out.rpartition("loaded ")
    assert not heavy & set(loaded.split())
    return said


def test_a_finished_run_is_recognised_without_torch(cli):
    cli(*TINY)
    assert "finished before" in said_and_loaded_no_more(
        "train", *TINY, heavy=HEAVY - {"hydra", "omegaconf", "pydantic"}
    )


def test_help_shows_the_choices_and_the_defaults_as_hydra_composes_them(composed):
    """Read from the files without Hydra; the same values as the composed config has."""
    said = said_and_loaded_no_more("train", "--help")
    losses = ", ".join(sorted(path.stem for path in Path(config_dir(), "loss").glob("*.yaml")))
    assert f"loss: {losses}" in said and "$" not in said.partition("defaults:")[0]
    shown = yaml.safe_load(said.partition("the keys and their defaults:\n")[2])
    assert shown == OmegaConf.to_container(composed(), resolve=False)


def test_the_help_of_l2d_has_a_line_per_command_and_three_examples():
    said = said_and_loaded_no_more("--help")
    assert all(said.count(f"\n  l2d {name} {command.usage}  ") == 1 for name, command in COMMANDS.items())
    examples = said.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) == 3 and all(line.startswith("  l2d ") for line in examples)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_help_with_the_options_that_are_completed(name, capsys):
    with suppress(SystemExit):
        main([name, "--help"])
    said = capsys.readouterr().out
    assert f"l2d {name}" in said
    explained = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", said, re.MULTILINE)) - {"--config-dir"}
    if name not in ("train", "completion"):  # they explain no options
        assert explained == {*re.findall("--[a-z-]+", COMMANDS[name].options), "--help"}


@pytest.mark.parametrize(
    ("word", "suggested"),
    [("trian", "train"), ("reprot", "report"), ("seed=1", "`l2d train seed=1`"), ("zzz", "status")],
)
def test_an_unknown_command_is_refused_with_the_closest(word, suggested, capsys):
    with pytest.raises(SystemExit) as stop:
        main([word])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and word in err and suggested in err


def test_python_m_l2d_is_the_command_l2d(tmp_path):
    done = subprocess.run([sys.executable, "-m", "l2d", "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, __version__, "")


@pytest.mark.slow
def test_python_m_l2d_train_loads_its_module_once_and_no_package_that_the_run_does_not_use(tmp_path):
    (tmp_path / "own.py").write_text(
        "import atexit, sys\n"
        "atexit.register(lambda: print('loaded', *sys.modules))\n"
        "def loss(num_classes):\n"
        "    assert sys.modules['l2d.train'] is sys.modules['__main__']\n"
        "    return lambda scores, labels, answers: scores.square().mean()\n"
    )
    command = [sys.executable, "-m", "l2d.train", *TINY, "loss._target_=own.loss", "~loss.formulation", "~loss.base"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rpartition("loaded ")[2].split())
    assert "torch" in loaded and not {"wandb", "timm", "matplotlib", "tensorboard", "onnx"} & loaded


def test_an_import_changes_neither_hydra_nor_omegaconf_nor_the_path():
    code = """
import sys
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf
import os
before = list(sys.path), dict(os.environ), dict(Plugins.instance().class_name_to_class)
import l2d.check, l2d.cli, l2d.compose, l2d.completion, l2d.job, l2d.status, l2d.sweep, l2d.train, l2d.evaluate, l2d.inspect
assert before[:1] == (sys.path,) and before[2] == Plugins.instance().class_name_to_class
assert not OmegaConf.has_resolver("l2d.run_name")
assert not [key for key in os.environ.keys() - before[1].keys() if key.startswith(("L2D", "HYDRA"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["status outputs", "report outputs --out report", "train --help", "train -m seed=1,2 plan=true"]
)
def test_a_closed_pipe_is_no_error(cli, command):
    cli(*TINY)
    process = subprocess.Popen(
        [sys.executable, "-m", "l2d", *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()  # before anything is written
    assert (process.stderr.read(), process.wait()) == ("", 0)
    process.stderr.close()
    assert Path("report/index.html").exists() == command.startswith("report")


def completed(line: str) -> list[str]:
    """What bash offers where `line` ends, with the script that `l2d completion bash` prints."""
    code = """
    l2d() { "$PYTHON" -m l2d "$@"; }
    eval "$(l2d completion bash)"
    compopt() { :; }  # works only while a person completes
    COMP_LINE=$LINE COMP_POINT=${#LINE}
    [[ $(complete -p l2d) == *"-F _l2d "* ]] && _l2d
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PYTHON": sys.executable, "LINE": line}
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_groups_options_and_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine/loss").mkdir(parents=True)
    Path("mine/loss/picky.yaml").write_text("name: picky\nmargin: 2\n")
    assert completed("l2d ") == sorted(COMMANDS)
    assert completed("l2d ev") == ["evaluate"]
    assert completed("l2d completion ") == ["bash", "fish", "zsh"]
    assert completed("l2d data ") == ["check"]
    assert completed("l2d bench ") == ["full", "quick"]
    assert completed("l2d report out --") == ["--baseline", "--deploy", "--help", "--out", "--samples"]
    assert completed("l2d check ") == ["loss.", "loss="]
    assert completed("l2d train se") == completed("l2d-train -m se") == ["seed="]
    assert completed("l2d data check lo") == ["logger.", "logger=", "loss.", "loss="]
    # after `=` bash replaces only what follows it
    assert completed("l2d train loss=picce") == ["picce_ce", "picce_gce", "picce_ova"]
    assert completed("l2d train -m seed=1 loss=ce,o") == ["ce,ova"]
    assert completed("l2d train --config-dir mine loss=pick") == ["picky"]
    assert completed("l2d train --config-dir mine loss=picky loss.m") == ["loss.margin="]
    assert completed("l2d evaluate out/RUN optim=adamw optim.w") == ["optim.warmup_epochs=", "optim.weight_decay="]
    assert completed("l2d evaluate ") == completed("l2d status ") == completed("l2d train --config-dir ") == []  # files


def test_completion_loads_nothing_heavy_and_knows_its_shells(capsys):
    assert said_and_loaded_no_more("completion", "words", "l2d", "train", "loss=ov").split() == ["loss=ova"]
    for shell in ("zsh", "fish"):
        main(["completion", shell])
        assert "l2d completion words" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["completion", "tcsh"])
    assert stop.value.code == 2 and "tcsh" in capsys.readouterr().err
