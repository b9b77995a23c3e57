"""From outside: every part that a user may bring, in one file and one YAML each, found the same way by all commands."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from l2d.cli import main

PARTS = '''
import csv
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from l2d.data import Dataset, Split
from l2d.decisions import decide
from l2d.evaluation import Metric
from l2d.experts import ExpertPanel
from l2d.systems import ScoreSystem, Stage


class Decoupled(torch.nn.Module):
    """A softmax over the classes and a sigmoid per expert; with a temperature that is learnt."""

    vouches_for = "all"

    def __init__(self, num_classes, sharpness):
        super().__init__()
        self.num_classes = num_classes
        self.temperature = torch.nn.Parameter(torch.tensor(float(sharpness)))
        self.register_buffer("weight", torch.tensor(0.5))

    def forward(self, scores, labels, answers):
        scores = self.temperature * scores.float()
        right, given = (answers == labels[:, None]).float(), (answers >= 0).float()
        experts = F.binary_cross_entropy_with_logits(scores[:, self.num_classes :], right, given)
        return F.cross_entropy(scores[:, : self.num_classes], labels) + self.weight * experts

    def beliefs(self, scores):
        scores = self.temperature.double() * scores
        return torch.cat([scores[:, : self.num_classes].softmax(1), scores[:, self.num_classes :].sigmoid()], 1)


class HeadLast(ScoreSystem):
    """Everything first, then the last layer alone."""

    def __init__(self, backbone, loss, num_classes, num_experts, head_epochs):
        super().__init__(backbone, loss, num_classes, num_experts)
        self.head_epochs = head_epochs

    def stages(self):
        head = list(self.backbone[-1].parameters())
        return [*super().stages(), Stage("head", head, self.taught, self.head_epochs)]


def careful(beliefs, num_classes, available, order, margin):
    """Ask only where the gain is large."""
    return decide(beliefs, num_classes, available=available, order=order).at_price(margin)


def rationed(beliefs, num_classes, available, order, held_out):
    """Ask in at most a tenth of the cases, at the price that held-out data tell."""
    free = decide(beliefs, num_classes, available=available, order=order)
    return free if held_out is None else free.at_price(held_out.decision.margin.quantile(0.9).item())


def questions(outcome):
    return 100 * outcome.decision.deferred.double().mean().item()


QUESTIONS = Metric("questions", "Questions asked (%)", "lower", questions, short="Ask", role="headline")


def night_shift(dataset, num):
    """Recorded answers: expert j answers class j rightly, and nothing else."""
    def answers(labels):
        right = labels.numpy()[:, None] == np.arange(num)
        return np.where(right, labels.numpy()[:, None], -1).astype(np.int8)
    recorded = {split: answers(getattr(dataset, split).labels) for split in ("train", "test")}
    return ExpertPanel([f"nurse_{j}" for j in range(num)], recorded=recorded)


def stripes(name, count):
    labels = torch.arange(count) % 3
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 6, 6, generator=generator) + labels.view(-1, 1, 1, 1)
    half = count // 2
    return Dataset(name, ["a", "b", "c"], Split(images[:half], labels[:half]), Split(images[half:], labels[half:]))


class Diary:
    """A logger that writes what it is told."""

    def __init__(self, file):
        self.file = Path(file)

    def start(self, name, config, folder):
        self.file.write_text(f"start {name}\\\\n")

    def log(self, row):
        self.file.write_text(self.file.read_text() + f"epoch {row['epoch']}\\\\n")

    def finish(self, result):
        self.file.write_text(self.file.read_text() + result["status"])
'''
FILES = {
    "loss/apart.yaml": "_target_: brought.Decoupled\nname: apart\nsharpness: 1.5\n",
    "system/head_last.yaml": "_target_: brought.HeadLast\nname: head_last\nhead_epochs: 2\n",
    "rule/rationed.yaml": "_target_: brought.rationed\nname: rationed\n",
    "rule/careful.yaml": "_target_: brought.careful\nname: careful\nmargin: 0.3\n",
    "experts/night.yaml": "_target_: brought.night_shift\nname: night\nnum: 2\nresample: once\n",
    "dataset/stripes.yaml": "_target_: brought.stripes\nname: stripes\ncount: 240\n",
    "logger/diary.yaml": "_target_: brought.Diary\nname: diary\nfile: diary.txt\n",
}
SETTING = (
    "loss=apart", "system=head_last", "rule=careful", "experts=night", "dataset=stripes", "logger=diary",
    "evaluation.metrics=[brought.QUESTIONS]", "backbone.hidden=8", "backbone.layers=1", "trainer.epochs=3",
    "trainer.batch_size=20",
)  # fmt: skip


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with brought.py and my_conf/, and nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    monkeypatch.delitem(sys.modules, "brought", raising=False)
    Path("brought.py").write_text(PARTS.replace("\\\\n", "\\n"))
    for file, text in FILES.items():
        path = Path("my_conf", file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    yield tmp_path
    sys.modules.pop("brought", None)


def test_parts_from_outside_are_found_by_all_commands(workplace, capfd):
    own = ("--config-dir", "my_conf")
    main(["data", "check", *own, *SETTING])
    said = capfd.readouterr().out
    assert "nurse_0" in said and "240" not in said.split("classes")[0]
    main(["train", *own, *SETTING])
    (file,) = Path("outputs").glob("*/*/result.json")
    result = json.loads(file.read_text())
    assert file.parent.name.startswith("head_last-apart-night-J2-mlp-seed0-")
    assert result["vouches_for"] == "all" and [e["name"] for e in result["experts"]] == ["nurse_0", "nurse_1"]
    assert [e["test_accuracy"] for e in result["experts"]] == [100, 100]  # over the answers that they gave
    assert result["metrics"]["questions"] == pytest.approx(100 - result["metrics"]["coverage"])
    stages = pd.read_csv(file.with_name("metrics.csv"))
    assert stages["stage"].tolist() == ["train"] * 3 + ["head"] * 2
    assert Path("diary.txt").read_text().splitlines() == [
        f"start {file.parent.name}", *(f"epoch {n}" for n in range(1, 6)), "finished",
    ]  # fmt: skip

    main(["evaluate", str(file.parent), *own, "trust=true"])
    again = json.loads(file.with_name("evaluation.json").read_text())
    assert again["metrics"] == result["metrics"] and again["source"] == "outcome"
    main(["evaluate", str(file.parent / "model.safetensors"), *own, "trust=true"])
    assert json.loads(file.with_name("evaluation.json").read_text())["metrics"] == result["metrics"]
    main(["evaluate", str(file.parent), *own, "rule=best", "trust=true"])
    bold = json.loads(file.with_name("evaluation.json").read_text())["metrics"]
    assert bold["questions"] > result["metrics"]["questions"]  # a rule is a choice after the training

    capfd.readouterr()
    main(["report", "outputs", "--out", "report"])
    assert "apart" in capfd.readouterr().out
    tables = Path("report/tables.md").read_text()
    assert "Ask" in tables and "apart" in tables


def test_parameters_of_a_loss_are_trained_checkpointed_and_saved_with_the_system(workplace):
    from safetensors.torch import load_file

    main(["train", "--config-dir", "my_conf", *SETTING, "trainer.checkpoint_epochs=1"])
    (file,) = Path("outputs").glob("*/*/model.safetensors")
    weights = load_file(file)
    assert weights["loss.temperature"].item() != 1.5 and weights["loss.weight"].item() == 0.5


def test_a_run_is_an_input_of_another_and_keeps_what_fits(workplace, capfd):
    """The class columns and the body come along, the columns of experts are new; what is frozen stays."""
    from safetensors.torch import load_file

    data = ("--config-dir", "my_conf", "dataset=stripes", "experts=night", "backbone.hidden=8", "backbone.layers=1",
            "trainer.batch_size=20")  # fmt: skip
    main(["train", *data, "trainer.epochs=3", "experts.num=2", "output_dir=first"])
    (first,) = Path("first").glob("*/*/model.safetensors")
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main(["train", *data, f"init={first.parent}", "experts.num=3", "freeze=[backbone]", "trainer.epochs=1"])
    assert "freeze=['backbone']" in capfd.readouterr().err
    frozen = (*data, f"init={first.parent}", "experts.num=3", "freeze=[backbone.1]", "trainer.epochs=1", "optim.lr=0")
    main(["train", *frozen, "output_dir=second"])
    said = capfd.readouterr().err
    assert "4 of 4 tensors" in said
    (second,) = Path("second").glob("*/*/model.safetensors")
    before, after = load_file(first), load_file(second)
    assert (before["backbone.1.weight"] == after["backbone.1.weight"]).all()
    head, new = before["backbone.3.weight"], after["backbone.3.weight"]  # [3 + 2, 8], [3 + 3, 8]
    assert (head[:3] == new[:3]).all() and not (head[3:] == new[3:5]).all()
    assert (
        json.loads(second.with_name("result.json").read_text())["fingerprint"]
        != json.loads(first.with_name("result.json").read_text())["fingerprint"]
    )


@pytest.mark.parametrize("held_out", [0, 0.25])
def test_a_rule_that_is_fitted_on_held_out_data_works_in_every_evaluation(workplace, held_out):
    words = (
        *SETTING,
        "rule=rationed",
        "experts=specialist",
        "experts.num=1",
        "experts.group=a",
        "trainer.eval_every=1",
    )
    Path("brought.py").write_text(Path("brought.py").read_text().replace(
        "Split(images[half:], labels[half:]))", 'Split(images[half:], labels[half:]), {"a": [0, 1, 2]})'
    ))  # fmt: skip
    main(["train", "--config-dir", "my_conf", *words, f"held_out={held_out}"])
    (file,) = Path("outputs").glob("*/*/metrics.csv")
    coverage = pd.read_csv(file)["coverage"]
    assert coverage.notna().all()
    if held_out:
        assert coverage.iloc[-1] > 70  # a tenth on held-out data, and not far from it on the test split
