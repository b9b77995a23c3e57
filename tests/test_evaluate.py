"""l2d evaluate: what a run kept and its weights give what training wrote; other data, names and weights are refused."""

import json
import os
import pickle
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import refused
from PIL import Image

import l2d.evaluate
from l2d.cli import train
from l2d.systems import read_weights
from l2d.training.checkpoint import Checkpoints

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
def cli(command):
    """`cli(*arguments)` runs l2d evaluate and returns (exit code, stdout, stderr)."""
    return partial(command, "evaluate")


def metrics(path: Path) -> dict:
    return json.loads(path.read_text())["metrics"]


def written(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize(("what", "source"), [("", "outcome"), ("model.safetensors", "weights")])
def test_without_changes_the_metrics_are_exactly_those_of_training(cli, folder, what, source):
    code, out, err = cli(folder / what)
    assert code == 0, err
    assert metrics(folder / "evaluation.json") == metrics(folder / "result.json")
    assert written(folder / "evaluation.json")["source"] == source
    header, ours = out.splitlines()[:2]
    assert header.split() == ["system_error", "coverage", "classifier_accuracy"]
    expected = metrics(folder / "result.json")
    assert [float(number) for number in ours.split()[-3:]] == [round(expected[key], 2) for key in header.split()]


@pytest.mark.parametrize("what", ["", "model.safetensors"])
@pytest.mark.parametrize("held_out", ["0.3", "1e-2"])
def test_rules_are_not_fitted_on_samples_that_the_run_was_trained_on(cli, folder, what, held_out):
    """The run held nothing out, so whatever is held out now was trained on; nor are they fitted on other data."""
    err = refused(cli(folder / what, "rule=budget", f"held_out={held_out}"))
    assert f"held_out={float(held_out):g}" in err and "held_out=0," in err
    assert "held_out=0" in refused(cli(folder / what, "rule=budget"))
    assert "held_out=0" in refused(cli(folder / what, "rule=budget", "dataset.num_test=50"))
    assert not (folder / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("defer_at_most=20", "no setting defer_at_most."),
        ("rule.defer=20", "no setting rule.defer; rule=budget has rule.defer_at_most,"),
        ("rule.defer_at_most.x=20", "no setting rule.defer_at_most.x"),
        ("experts.price=1", "experts.costs"),
    ],
)
def test_a_setting_that_does_not_exist_is_named_with_those_that_do(cli, folder, change, named):
    assert named in refused(cli(folder, "rule=budget", change))


def test_the_full_evaluation_is_the_one_that_training_wrote(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d-train", *SETTING, "evaluation=full", "held_out=0.1"])
    train()
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    for source in (result.parent, result.with_name("model.safetensors")):
        assert cli(source)[0] == 0
        then, now = (written(result.with_name(name)) for name in ("result.json", "evaluation.json"))
        assert now["evaluation"] == then["evaluation"] and now["evaluation"]["budget"]
    # With another seed another tenth would be held out, of which the weights have seen the most part.
    assert cli(result.parent, "seed=5")[0] == 0
    assert written(result.with_name("evaluation.json"))["evaluation"]["budget"] is None


def test_a_full_evaluation_of_a_finished_run_needs_neither_its_weights_nor_its_backbone(folder, cli, monkeypatch):
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(l2d.evaluate, "from_weights", None)
    assert cli(folder, "evaluation=full", "evaluation.bins=7")[0] == 0
    full = written(folder / "evaluation.json")["evaluation"]
    assert full["budget"] is None  # this run held nothing out
    assert all(value is not None for key, value in full.items() if key != "budget")
    assert len(full["calibration"]["classifier"]["count"]) == 7


@pytest.mark.parametrize("record", ["scores", "decisions", "none"])
def test_record_chooses_what_is_kept_and_the_evaluation_stays_the_same(tmp_path, monkeypatch, cli, record):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d-train", *SETTING, f"record={record}"])
    train()
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    assert written(result)["kept"] == record
    assert result.with_name("outcome.safetensors").exists() == (record != "none")
    assert cli(result.parent, "evaluation=full")[0] == 0
    now = written(result.with_name("evaluation.json"))
    assert now["source"] == ("outcome" if record == "scores" else "weights")
    assert now["metrics"] == metrics(result) and now["evaluation"]["regret"]["total"] > 0


def test_scores_above_the_limit_are_kept_in_half_precision_or_as_decisions(tmp_path, monkeypatch, cli):
    """301 samples x 43 scores x 4 bytes = 51,772 bytes: in half precision they fit 0.03 MB, and not 0.02."""
    monkeypatch.chdir(tmp_path)
    sizes = {}
    for limit, kept in (("0.03", "half"), ("0.02", "decisions")):
        monkeypatch.setattr(sys, "argv", ["l2d-train", *SETTING, f"record_mb={limit}", f"output_dir={kept}"])
        train()
        (result,) = tmp_path.glob(f"{kept}/*/*/result.json")
        assert written(result)["kept"] == kept
        assert cli(result.parent)[0] == 0
        assert metrics(result.with_name("evaluation.json")) == metrics(result)
        sizes[kept] = result.with_name("outcome.safetensors").stat().st_size
    assert sizes["decisions"] < sizes["half"] < 51_772


def test_a_checkpoint_is_evaluated_as_the_weights_in_it(cli, folder):
    weights = read_weights(folder / "model.safetensors").tensors
    setting = written(folder / "result.json")["fingerprint"]
    Checkpoints(folder, setting).save({"system": weights})
    (folder / "model.safetensors").unlink()
    assert cli(folder / "checkpoint.pt", "out=mine.json")[0] == 0
    assert metrics(Path("mine.json")) == metrics(folder / "result.json")
    assert not (folder / "evaluation.json").exists()

    Checkpoints(folder, "00000000").save({"system": weights})
    assert "another run" in refused(cli(folder / "checkpoint.pt"))


def test_weights_and_outcomes_of_another_run_are_refused(cli, folder, monkeypatch, capfd):
    """Only the seed differs, so they would fit."""
    monkeypatch.setattr(sys, "argv", ["l2d-train", *SETTING, "seed=5"])
    train()
    capfd.readouterr()
    (other,) = Path("outputs").glob("*/*/result.json")
    for name in ("model.safetensors", "outcome.safetensors"):
        shutil.copy(other.with_name(name), folder)
    assert "outcome.safetensors" in refused(cli(folder))
    assert "model.safetensors" in refused(cli(folder / "model.safetensors"))
    (folder / "result.json").unlink()
    assert "model.safetensors" in refused(cli(folder / "model.safetensors"))
    shutil.copy(other.with_name("config.yaml"), folder)
    assert cli(folder / "model.safetensors")[0] == 0


def test_the_model_pt_of_version_1_is_still_read(cli, folder):
    weights = read_weights(folder / "model.safetensors").tensors
    torch.save({name.removeprefix("backbone."): tensor for name, tensor in weights.items()}, folder / "model.pt")
    (folder / "model.safetensors").unlink()
    assert cli(folder / "model.pt")[0] == 0
    assert metrics(folder / "evaluation.json") == metrics(folder / "result.json")


def test_another_panel_replaces_the_runs_and_leaves_the_classifier_as_it_was(cli, folder):
    """Experts that always answer right cannot be wrong when asked; argmax over the classes does not depend on them."""
    perfect = ("experts=specialist_overlapped", "experts.in_domain=1.0", "experts.in_group=1.0")  # as many as before
    code, _, err = cli(folder, *perfect, "dataset.group_size=40")
    assert code == 0, err
    then, now = metrics(folder / "result.json"), metrics(folder / "evaluation.json")
    assert now["classifier_accuracy"] == then["classifier_accuracy"] and now["coverage"] == then["coverage"]
    assert now["expert_accuracy_deferred"] == 100 and now["system_error"] < then["system_error"]
    written = json.loads((folder / "evaluation.json").read_text())
    assert written["choices"]["experts"] == "specialist_overlapped"


def test_another_test_set_of_the_same_classes_is_evaluated_in_full(cli, folder):
    assert cli(folder, "dataset.num_test=7")[0] == 0
    kept = metrics(folder / "evaluation.json")["coverage"] * 7 / 100
    assert kept == pytest.approx(round(kept)), "of seven samples"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (("experts.num=4",), "3 experts"),
        (("dataset.num_classes=41",), "40 classes"),
        (("experts.num=2", "dataset.num_classes=41"), "40 classes"),  # as many outputs as before, but not the same
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
def test_changes_that_do_not_fit_the_weights_are_rejected(cli, folder, changes, named):
    assert named in refused(cli(folder, *changes))
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


def old(folder: Path) -> Path:
    """model.pt in the place of the weights."""
    (folder / "model.safetensors").unlink()
    return folder / "model.pt"


def replaced(folder: Path, content: bytes) -> None:
    old(folder).write_bytes(content)


@pytest.mark.parametrize("hurt", [truncate, flip, lambda path: path.write_bytes(b"")])
def test_a_damaged_outcome_is_refused(cli, folder, hurt):
    hurt(folder / "outcome.safetensors")
    assert "outcome.safetensors" in refused(cli(folder, "evaluation=full"))


@pytest.mark.parametrize(
    ("hurt", "named"),
    [
        (lambda folder: truncate(folder / "model.safetensors"), "damaged"),
        (lambda folder: flip(folder / "model.safetensors"), "damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(pickle.dumps(RunsCode())), "damaged"),
        (lambda folder: replaced(folder, pickle.dumps(RunsCode())), "damaged"),
        (lambda folder: torch.save(RunsCode(), old(folder)), "nothing in it was run"),
        (lambda folder: torch.save([1, 2], old(folder)), "tensors of a model"),
        (lambda folder: torch.save({"0": torch.zeros(1)}, old(folder)), "does not fit"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "config.yaml").unlink(), "config.yaml is missing"),
        (lambda folder: (folder / "config.yaml").write_text("a: [1"), "YAML"),
        (lambda folder: (folder / "config.yaml").write_text("a: 1"), "config.yaml is not the config of a run"),
    ],
)
def test_damaged_or_dangerous_files_are_refused_and_nothing_is_run(cli, folder, hurt, named):
    (folder / "outcome.safetensors").unlink()
    hurt(folder)
    assert named in refused(cli(folder))
    assert not Path("it-ran").exists() and not (folder / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("loss", "_target_", "subprocess.getoutput"),
        ("loss", "formulation", "os.system"),
        ("dataset", "_target_", "os.getcwd"),
        ("rule", "_target_", "shutil.rmtree"),
        ("backbone", "_target_", "l2d.data.import_module"),  # importlib's, which l2d/data/__init__.py uses
        ("experts", "_target_", "l2d.config.locate"),
        ("loss", "_target_", "l2d.models.MLP"),  # l2d's own, and no loss
        ("evaluation", "metrics", ["antigravity.fly"]),
    ],
)
def test_a_folder_from_someone_else_runs_no_code_of_its_own(cli, folder, group, key, value):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config[group][key] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    named = f"={value}" if isinstance(value, str) else f".0={value[0]}"
    for what in ("", "model.safetensors"):
        assert f"{group}.{key}{named}" in refused(cli(folder / what))
    assert "trust=maybe" in refused(cli(folder, "trust=maybe"))


def test_no_interpolation_of_a_saved_config_is_resolved(cli, folder, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("name: synthetic", "name: ${oc.env:SECRET}"))
    for more in ((), ("trust=true",)):
        code, out, err = cli(folder, *more)
        assert code == 2 and "hunter2" not in out + err
    assert not (folder / "evaluation.json").exists()


def test_a_path_without_weights_is_refused(cli, folder):
    assert "nowhere" in refused(cli("nowhere"))
    assert "experts.num=3" in refused(cli("experts.num=3"))


PEOPLE = ("ada", "bob", "eve")
KINDS = ("cat", "dog", "owl")


def write_photos(root: Path, people=PEOPLE, kinds=KINDS) -> None:
    """18 training and 9 test images of three kinds, whose colour tells the kind; a column of answers per person."""
    rng = np.random.default_rng(0)
    root.mkdir()
    rows = []
    for i in range(27):
        kind, colour = i % 3, [0, 0, 0]
        colour[kind] = 200
        Image.new("RGB", (36, 36), tuple(colour)).save(root / f"{i}.png")
        answers = {"ada": kind, "bob": (kind + 1) % 3, "eve": int(rng.integers(3))}
        rows.append([f"{i}.png", kinds[kind], "train" if i < 18 else "test", *(kinds[answers[p]] for p in people)])
    header = ["path", "label", "split", *people]
    (root / "labels.csv").write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A finished run on photos with three annotators: its folder, two levels below the images' own."""
    before, argv = Path.cwd(), sys.argv
    place = tmp_path_factory.mktemp("photos")
    os.chdir(place)
    write_photos(place / "images")
    sys.argv = [
        "l2d-train", "dataset=folder", f"dataset.root={place / 'images'}", "dataset.manifest=labels.csv",
        "dataset.size=32", "dataset.resize=36", f"dataset.cache={place / 'cache'}", "backbone=mlp", "backbone.hidden=8",
        "experts.num=null", "trainer.epochs=2", "trainer.batch_size=6", "loss=ova",
    ]  # fmt: skip
    try:
        train()
        (result,) = Path.cwd().glob("outputs/*/*/result.json")
        return result.parent
    finally:
        os.chdir(before)
        sys.argv = argv


def test_a_run_says_which_classes_experts_and_preprocessing_it_has(photos):
    result = written(photos / "result.json")
    assert result["class_names"] == list(KINDS) and [e["name"] for e in result["experts"]] == list(PEOPLE)
    assert result["preprocessing"]["shape"] == [3, 32, 32] and result["preprocessing"]["resize"] == 36
    facts = read_weights(photos / "model.safetensors").facts
    assert facts["class_names"] == list(KINDS) and facts["expert_names"] == list(PEOPLE)
    assert facts["preprocessing"] == result["preprocessing"]
    assert photos.name.startswith("ova-human-Jall-")


def test_experts_and_classes_are_matched_by_name(cli, photos, tmp_path):
    """Other columns, other numbers of the classes: the same metrics, the same experts."""
    write_photos(tmp_path / "images", people=("eve", "ada", "bob"))
    changes = (f"dataset.root={tmp_path / 'images'}", f"out={tmp_path / 'moved.json'}", "dataset.classes=[owl,cat,dog]")
    code, _, err = cli(photos, *changes)
    assert code == 0, err
    assert metrics(tmp_path / "moved.json") == metrics(photos / "result.json")


@pytest.mark.parametrize(
    ("people", "kinds", "named"),
    [
        (("ada", "bob", "joe"), KINDS, "joe"),
        (PEOPLE, ("cat", "dog", "hen"), "hen"),
        (("ada", "bob"), KINDS, "eve"),
    ],
)
def test_names_that_do_not_match_are_refused(cli, photos, tmp_path, people, kinds, named):
    people = tuple("eve" if person == "joe" else person for person in people)
    write_photos(tmp_path / "images", people, kinds)
    file = tmp_path / "images" / "labels.csv"
    if named == "joe":
        file.write_text(file.read_text().replace("eve", "joe"))
    assert named in refused(cli(photos, f"dataset.root={tmp_path / 'images'}", f"out={tmp_path / 'x.json'}"))


def test_data_that_changed_since_are_refused_unless_asked_for(cli, photos, tmp_path):
    run = shutil.copytree(photos, tmp_path / "run")
    (run / "outcome.safetensors").unlink()
    root = photos.parents[2] / "images"
    changed = (root / "labels.csv").read_text()
    try:
        (root / "labels.csv").write_text(changed.replace("0.png,cat,train", "0.png,dog,train"))
        assert "no longer those that it was trained on" in refused(cli(run))
        code, _, err = cli(run, f"dataset.root={root}")
        assert code == 0, err
    finally:
        (root / "labels.csv").write_text(changed)
