"""A user's own code is part of what a run is: edited and run again, it is another run."""

import json
import sys
from pathlib import Path

import pytest

from l2d.cli import main
from l2d.source import _folders, code_digests, named_code, source_digest

LOSS = """
import torch.nn.functional as F
from lab.parts import sharpen  # a module beside this one


def weighted(num_classes, weight=1.0):
    return lambda scores, labels, answers: weight * F.cross_entropy(sharpen(scores)[:, :num_classes], labels)
"""
FAST = [
    "backbone.hidden=8",
    "backbone.layers=1",
    "dataset.num_train=60",
    "dataset.num_test=40",
    "trainer.epochs=1",
]
OWN = ["loss._target_=lab.losses.weighted", "loss.name=own", "~loss.formulation", "~loss.base", *FAST]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A package `lab` in the current folder: losses.py imports parts.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "losses.py").write_text(LOSS)
    (folder / "parts.py").write_text("from .more import FACTOR\n\n\ndef sharpen(scores):\n    return FACTOR * scores\n")
    (folder / "more.py").write_text("FACTOR = 2\n")
    (folder / "unrelated.py").write_text("X = 1\n")
    yield folder
    forget()


def forget() -> None:
    """As in a new process: nothing of the lab is imported or remembered."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        del sys.modules[name]
    source_digest.cache_clear()
    _folders.cache_clear()


def digest() -> str:
    forget()
    return source_digest("lab.losses.weighted")


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("losses.py", "weight=1.0", "weight=2.0", False),
        ("parts.py", "FACTOR * scores", "FACTOR + scores", False),
        ("more.py", "2", "3", False),
        ("__init__.py", "", "import os\n", False),
        ("losses.py", "# a module beside this one", "# of ours\n\n# and ours alone", True),
        ("unrelated.py", "1", "2", True),
    ],
)
def test_the_digest_is_of_the_code_and_of_all_that_it_imports(lab, file, old, new, same):
    before = digest()
    assert len(before) == 16 and "lab" not in sys.modules  # nothing was imported for it
    (lab / file).write_text((lab / file).read_text().replace(old, new, 1))
    assert (digest() == before) == same


def test_the_digest_does_not_depend_on_the_place(lab, tmp_path, monkeypatch):
    before = digest()
    (tmp_path / "elsewhere").mkdir()
    lab.rename(tmp_path / "elsewhere/lab")
    assert digest() == ""  # not found
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert digest() == before


@pytest.mark.parametrize("name", ["torch.nn.Linear", "json.dumps", "no_such.thing", "__main__.f", "l2d.losses.base.X"])
def test_installed_code_has_a_version_and_no_digest(name):
    assert source_digest(name) == ""


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("environment", ["user/site-packages", "system/dist-packages"])
def test_what_another_environment_has_installed_is_not_the_users_own(lab, tmp_path, monkeypatch, environment, linked):
    """As torch is below a virtual environment that sees the system's packages, or that has its packages as links."""
    packages = tmp_path / environment
    packages.mkdir(parents=True)
    lab.rename(tmp_path / "store" if linked else packages / "lab")
    if linked:
        (packages / "lab").symlink_to(tmp_path / "store")
    monkeypatch.syspath_prepend(str(packages))
    assert digest() == ""


def test_code_that_python_cannot_read_still_has_a_digest(lab):
    (lab / "losses.py").write_text("def broken(:\n  '''")
    broken = digest()
    (lab / "losses.py").write_text("def broken(:\n  ''' ")
    assert broken and digest() != broken


def test_all_that_names_code_is_found():
    groups = {
        "loss": {"_target_": "l2d.losses.DeferralLoss", "formulation": "lab.losses.weighted", "base": "ce"},
        "backbone": {"_target_": "torchvision.models.resnet18"},
        "evaluation": {"metrics": ["lab.A", "regret", "lab.B"]},
        "seed": 0,
    }
    assert named_code(groups) == {
        "loss._target_": "l2d.losses.DeferralLoss",
        "loss.formulation": "lab.losses.weighted",
        "backbone._target_": "torchvision.models.resnet18",
        "evaluation.metrics.0": "lab.A",
        "evaluation.metrics.2": "lab.B",
    }
    assert code_digests(groups) == {}  # there is no lab here, and torchvision is installed


def test_an_edited_loss_is_trained_again_and_reported_apart(lab, capfd):
    def train() -> list[dict]:
        forget()
        main(["train", "-m", *OWN, "seed=0,1"])
        return [json.loads(path.read_text()) for path in sorted(Path("outputs").rglob("result.json"))]

    before = train()
    assert len(before) == 2 and {*before[0]["code"]} == {"loss._target_"}
    assert train() == before and "2 finished before" in capfd.readouterr().out
    (lab / "more.py").write_text("FACTOR = 20\n")
    capfd.readouterr()
    assert len(train()) == 4 and "0 finished before" in capfd.readouterr().out
    main(["report", "outputs"])
    tables = Path("report/tables.csv").read_text()
    assert tables.count("loss._target_.code=") >= 2


def test_a_run_is_not_evaluated_with_other_code_than_its_own(lab, capfd):
    main(["train", *OWN])
    (folder,) = (path.parent for path in Path("outputs").rglob("result.json"))
    main(["evaluate", str(folder), "trust=true"])
    (lab / "parts.py").write_text((lab / "parts.py").read_text().replace("*", "+"))
    forget()
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(folder), "trust=true"])
    assert stop.value.code == 2 and "loss._target_" in capfd.readouterr().err
