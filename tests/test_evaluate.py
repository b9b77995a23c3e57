"""l2d-evaluate: the weights of a run give the metrics that training wrote, and others' weights are refused."""

import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch

from l2d.cli import train
from l2d.evaluate import main
from l2d.training.checkpoint import save_checkpoint

SETTING = (
    "dataset.num_train=400",
    "dataset.num_test=301",
    "trainer.epochs=2",
    "backbone.hidden=16",
    "experts.num=3",
    "seed=4",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run of three experts on forty classes: its folder."""
    before, argv = Path.cwd(), sys.argv
    os.chdir(tmp_path_factory.mktemp("trained"))
    sys.argv = ["l2d-train", *SETTING]
    try:
        train()
        (result,) = Path.cwd().glob("outputs/*/*/result.json")
        return result.parent
    finally:
        os.chdir(before)
        sys.argv = argv


@pytest.fixture
def folder(trained, tmp_path, monkeypatch) -> Path:
    """A copy of the run for one test."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def cli(monkeypatch, capfd):
    """`cli(*arguments)` runs l2d-evaluate and returns (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["l2d-evaluate", *arguments])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capfd.readouterr()

    return run


def metrics(path: Path) -> dict:
    return json.loads(path.read_text())["metrics"]


def refused(answer) -> str:
    """The sentence of a refusal."""
    code, out, err = answer
    assert code == 2 and out == "" and err.startswith("l2d: ") and len(err.splitlines()) == 1, answer
    return err


@pytest.mark.parametrize("what", ["", "model.pt"])
def test_without_changes_the_metrics_are_exactly_those_of_training(cli, folder, what):
    code, out, err = cli(f"ckpt={folder / what}")
    assert code == 0, err
    assert metrics(folder / "evaluation.json") == metrics(folder / "result.json")
    header, ours = out.splitlines()[:2]
    assert header.split() == ["system_error", "coverage", "classifier_accuracy"]
    expected = metrics(folder / "result.json")
    assert [float(number) for number in ours.split()[-3:]] == [round(expected[key], 2) for key in header.split()]


def test_the_full_evaluation_is_the_one_that_training_wrote(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d-train", *SETTING, "evaluation=full"])
    train()
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    assert cli(f"ckpt={result.parent}")[0] == 0
    then, now = (json.loads(result.with_name(name).read_text()) for name in ("result.json", "evaluation.json"))
    assert now["evaluation"] == then["evaluation"] and now["evaluation"]["budget"]
    # With another seed another tenth would be held out, of which the weights have seen the most part.
    assert cli(f"ckpt={result.parent}", "seed=5")[0] == 0
    assert json.loads(result.with_name("evaluation.json").read_text())["evaluation"]["budget"] is None


def test_weights_that_saw_all_data_are_evaluated_in_full_but_for_what_needs_unseen_data(folder, cli):
    assert cli(f"ckpt={folder}", "evaluation=full")[0] == 0
    full = json.loads((folder / "evaluation.json").read_text())["evaluation"]
    assert full["budget"] is None
    assert all(value is not None for key, value in full.items() if key != "budget")


def test_a_checkpoint_is_evaluated_as_the_weights_in_it(cli, folder):
    weights = torch.load(folder / "model.pt", weights_only=True)
    setting = json.loads((folder / "result.json").read_text())["fingerprint"]
    save_checkpoint(folder, {"fingerprint": setting, "model": weights})
    (folder / "model.pt").unlink()
    assert cli(f"ckpt={folder}", "out=mine.json")[0] == 0
    assert metrics(Path("mine.json")) == metrics(folder / "result.json")
    assert not (folder / "evaluation.json").exists()

    save_checkpoint(folder, {"fingerprint": "00000000", "model": weights})
    assert "another setting" in refused(cli(f"ckpt={folder / 'checkpoint.pt'}"))


def test_another_panel_replaces_the_runs_and_leaves_the_classifier_as_it_was(cli, folder):
    """Experts that always answer right cannot be wrong when asked; argmax over the classes does not depend on them."""
    perfect = ("experts=specialist_overlapped", "experts.in_domain=1.0", "experts.in_group=1.0")  # as many as before
    code, _, err = cli(f"ckpt={folder}", *perfect, "dataset.group_size=40")
    assert code == 0, err
    then, now = metrics(folder / "result.json"), metrics(folder / "evaluation.json")
    assert now["classifier_accuracy"] == then["classifier_accuracy"] and now["coverage"] == then["coverage"]
    assert now["expert_accuracy_deferred"] == 100 and now["system_error"] < then["system_error"]
    written = json.loads((folder / "evaluation.json").read_text())
    assert written["choices"]["experts"] == "specialist_overlapped"


def test_another_test_set_of_the_same_classes_is_evaluated_in_full(cli, folder):
    assert cli(f"ckpt={folder}", "dataset.num_test=7")[0] == 0
    kept = metrics(folder / "evaluation.json")["coverage"] * 7 / 100
    assert kept == pytest.approx(round(kept)), "of seven samples"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (("experts.num=4",), "3 experts"),
        (("dataset.num_classes=41",), "41 classes"),
        (("experts.num=2", "dataset.num_classes=41"), "3 experts"),  # as many outputs as before, but not the same
        (("backbone.hidden=17",), "size mismatch"),
        (("dataset.num_tset=5",), "num_tset"),
        (("nothing=5",), "nothing"),
        (("experts=nobody",), "nobody"),
        (("+experts.more=1",), "+experts.more=1"),
        (("experts.num=1,2",), "experts.num=1,2"),
        (("trainer.batch_size=0",), "trainer.batch_size"),
        (("dataset=folder",), "dataset.root"),
        (("out=nowhere/x.json",), "nowhere"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(cli, folder, changes, named):
    assert named in refused(cli(f"ckpt={folder}", *changes))
    assert not (folder / "evaluation.json").exists()


class RunsCode:
    def __reduce__(self):
        return (Path("it-ran").touch, ())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("hurt", "named"),
    [
        (lambda folder: truncate(folder / "model.pt"), "damaged"),
        (lambda folder: flip(folder / "model.pt"), "damaged"),
        (lambda folder: (folder / "model.pt").write_bytes(b""), "damaged"),
        (lambda folder: (folder / "model.pt").write_bytes(pickle.dumps(RunsCode())), "damaged"),
        (lambda folder: torch.save(RunsCode(), folder / "model.pt"), "nothing in it was run"),
        (lambda folder: torch.save([1, 2], folder / "model.pt"), "tensors of a model"),
        (lambda folder: torch.save({"0": torch.zeros(1)}, folder / "model.pt"), "does not fit"),
        (lambda folder: (folder / "model.pt").unlink(), "no weights"),
        (lambda folder: (folder / "config.yaml").unlink(), "config.yaml is missing"),
        (lambda folder: (folder / "config.yaml").write_text("a: [1"), "YAML"),
        (lambda folder: (folder / "config.yaml").write_text("a: 1"), "not a run's"),
    ],
)
def test_damaged_or_dangerous_files_are_refused_and_nothing_is_run(cli, folder, hurt, named):
    hurt(folder)
    assert named in refused(cli(f"ckpt={folder}"))
    assert not Path("it-ran").exists() and not (folder / "evaluation.json").exists()


def test_a_missing_ckpt_is_said(cli, folder):
    assert "ckpt=" in refused(cli("experts.num=3"))
