"""The report against a set of results made by hand, entry by entry."""

import csv
import json
import math
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import yaml
from matplotlib.colors import to_hex
from PIL import Image

from l2d.config import plain
from l2d.errors import UserError
from l2d.report import load_runs, summarize
from l2d.report.blocks import make_blocks
from l2d.report.cell_figures import deferred_to, overview
from l2d.report.cli import main, write_report
from l2d.report.findings import findings
from l2d.report.load import load_curves
from l2d.report.render import to_latex, to_markdown, to_text
from l2d.report.settings import VERSION_1
from l2d.report.tables import load_published, name_repeated

DATA = {"digest": "", "train": 10, "test": 10, "complete": True, "truth": False}


def write_run(root, loss, num, seed, values=None, status="finished", dataset="cifar100", experts="animal", **more):
    """A run's folder as l2d train leaves it; values are system error, coverage, classifier accuracy. Keys of `more` are
    config keys with `__` for the dot, or keys of result.json; status None leaves no result.json."""
    formulation, _, base = loss.rpartition("_")
    parts = {"name": loss, "formulation": formulation or "vanilla", "base": base}
    config = {
        "experts": {"_target_": "l2d.experts.disjoint", "name": experts, "num": num},
        "backbone": {"_target_": "l2d.models.wide_resnet", "name": "wrn28"},
        "loss": {"_target_": "l2d.losses.DeferralLoss", **parts},
        "system": {"_target_": "l2d.systems.ScoreSystem", "name": "score"},
        "rule": {
            "_target_": "l2d.decisions.best",
            "name": "best",
            "loss_matrix": None,
            "available": None,
            "absence": None,
        },
        "optim": {"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.1},
        "trainer": {"epochs": 2, "device": "auto"},
        "evaluation": {"_target_": None, "metrics": []},
        "logger": {"name": "csv"},
        "dataset": {"_target_": f"l2d.data.{dataset}", "name": dataset},
        "seed": seed,
        "held_out": 0,
        "init": None,
        "freeze": [],
        "record": "scores",
    }
    for key in [key for key in more if "__" in key]:
        group, _, name = key.partition("__")
        config[group][name] = more.pop(key)
    metrics = dict(zip(("system_error", "coverage", "classifier_accuracy"), values or (), strict=bool(values)))
    metrics |= {"deferred_to": [3.0] + [1.0] * (num - 1)} if values else {}
    result = {
        "schema_version": 2,
        "status": status,
        "seed": seed,
        "fingerprint": "0123abcd",
        "versions": {"l2d": "0"},
        "data": DATA,
        "own_metrics": [],
        "bayes": None,
        **({"metrics": metrics} if values else {}),
        **({"error": "The disk is full."} if status == "failed" else {}),
    }
    result = {**result, **more, "metrics": result["metrics"] | more["metrics"]} if "metrics" in more else result | more
    folder = root / f"{loss}-J{num}-seed{seed}-{len(list(root.iterdir())) if root.exists() else 0}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.csv").write_text("epoch,loss,system_error\n1,2.5,\n" + ("2,1.5,20\n" if values else ""))
    if status:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def write_old_run(root, loss, num, seed, values):
    """A run's folder as version 0.1 left it: no schema_version, no data, none of the later settings."""
    folder = write_run(root, loss, num, seed, values)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config = {
        key: config[key] for key in ("experts", "backbone", "loss", "optim", "trainer", "logger", "dataset", "seed")
    }
    config |= {
        "evaluation": {"_target_": None, "holdout": 0},
        "output_dir": "outputs",
        "verbose": True,
        "resume": "auto",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    metrics = dict(zip(("system_error", "coverage", "classifier_accuracy"), values, strict=True))
    metrics |= {"classifier_accuracy_kept": 79.4, "expert_accuracy_deferred": None}
    metrics |= {"best_expert_accuracy": 39.0, "any_expert_correct": 40.0, "deferred_to": [1.0] * num}
    result = {
        "status": "finished",
        "metrics": metrics,
        "bayes": None,
        "evaluation": None,
        "seconds": 1.6,
        "choices": {"dataset": "cifar100", "experts": "animal", "num_experts": num, "loss": loss, "seed": seed},
        "seed": seed,
        "device": "cpu",
        "precision": "float32",
        "parameters": 125737,
        "ranks": 1,
        "experts": [{"name": f"expert_{j}", "train_accuracy": 39.75, "test_accuracy": 39.0} for j in range(num)],
        "versions": {"l2d": "0.1.0"},
        "git_commit": None,
        "fingerprint": "f1cb173d",
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


OWN_METRIC = {"name": "regret_per_question", "label": "Regret per question", "better": "lower", "short": "Rpq"}


def blocks_of(*folders, baseline=None):
    return make_blocks(load_runs(*folders), baseline)


def markdown_rows(text):
    """(base, number of experts) -> entries, of the last table with such a row."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {tuple(cells[:2]): cells[2:] for cells in lines}


@pytest.fixture
def outputs(tmp_path):
    """CIFAR-100, animal experts, CE: 4 experts complete, 8 one vanilla seed failed and PiCCE all failed, 12 begun; 16,
    20 and all of OvA absent."""
    root = tmp_path / "outputs"
    for seed, vanilla, picce in (
        (0, (18.0, 74, 70), (18.1, 77, 71)),
        (1, (18.5, 75, 71), (18.2, 77, 71)),
        (2, (19.0, 76, 72), (18.6, 77, 71)),
    ):
        write_run(root, "ce", 4, seed, vanilla)
        write_run(root, "picce_ce", 4, seed, picce)
        write_run(root, "picce_ce", 8, seed, status="failed")
    write_run(root, "ce", 8, 0, (20.0, 70, 60))
    write_run(root, "ce", 8, 1, (22.0, 72, 62))
    write_run(root, "ce", 8, 2, status="failed")
    write_run(root, "ce", 12, 0, status=None)
    write_run(root, "picce_ce", 12, 0, status="interrupted")
    return root


def cell_of(cells, num, method):
    (found,) = cells[(cells.num_experts == num) & (cells.method == method)].itertuples()
    return found


def test_a_row_per_run_with_its_choices_status_and_epoch(outputs):
    runs = load_runs(outputs)
    assert len(runs) == 14
    assert runs.groupby("status").size().to_dict() == {"failed": 4, "finished": 8, "interrupted": 1, "partial": 1}
    one = runs[(runs.loss == "picce_ce") & (runs.num_experts == 4) & (runs.seed == 2)].iloc[0]
    assert (one.dataset, one.experts, one.base, one.method) == ("cifar100", "animal", "ce", "picce_ce")
    assert (one.backbone, one.formulation, one.system) == ("wrn28", "picce", "score")
    assert (one.system_error, one.coverage, one.classifier_accuracy, one.epoch, one.epochs) == (18.6, 77, 71, 2, 2)
    begun = runs[runs.status == "partial"].iloc[0]
    assert begun.epoch == 1 and math.isnan(begun.system_error) and len(begun.fingerprint) == 8
    assert set(runs[runs.status == "failed"].error) == {"The disk is full."}


def test_means_deviations_and_published_differences(outputs):
    cells = summarize(load_runs(outputs))
    vanilla, picce = (cell_of(cells, 4, method) for method in ("ce", "picce_ce"))
    assert (vanilla.n, vanilla.seeds, vanilla.state) == (3, 3, "complete")
    assert vanilla.system_error == pytest.approx(18.5) and vanilla.system_error_std == pytest.approx(0.5)
    assert picce.system_error == pytest.approx(18.3) and picce.system_error_std == pytest.approx(math.sqrt(0.07))
    assert vanilla.system_error_published == 18.48 and vanilla.system_error_difference == pytest.approx(0.02)
    assert picce.coverage_published == 77.5 and picce.coverage_difference == pytest.approx(-0.5)
    # 18.5 against 18.3; 75 against 77; 71 against 71, where neither is better
    assert (vanilla.system_error_better, picce.system_error_better) == (False, True)
    assert (vanilla.coverage_better, picce.coverage_better) == (False, True)
    assert (vanilla.classifier_accuracy_better, picce.classifier_accuracy_better) == (False, False)


def test_missing_failed_and_partial_cells_are_marked(outputs):
    cells = summarize(load_runs(outputs))
    states = {(c.num_experts, c.method): (c.state, c.n) for c in cells.itertuples()}
    published = [(num, method) for num in (4, 8, 12, 16, 20) for method in ("ce", "picce_ce", "ova", "picce_ova")]
    assert states == {
        **dict.fromkeys(published, ("missing", 0)),
        (4, "ce"): ("complete", 3),
        (4, "picce_ce"): ("complete", 3),
        (8, "ce"): ("partial", 2),
        (8, "picce_ce"): ("failed", 0),
        (12, "ce"): ("unfinished", 0),
        (12, "picce_ce"): ("unfinished", 0),
    }
    assert cell_of(cells, 8, "ce").system_error == 21.0


def test_markdown_entry_by_entry(outputs):
    text = to_markdown(blocks_of(outputs))
    rows = markdown_rows(text)
    assert rows["Base", "Experts"] == [f"{m} {h}" for m in ("Vanilla", "PiCCE") for h in ("Err", "Cov", "Acc", "n")]
    assert rows["CE", "4"] == [
        "18.50 ± 0.50 [18.48, +0.02]", "75.00 ± 1.00 [74.58, +0.42]", "71.00 ± 1.00", "3",
        "**18.30 ± 0.26** [18.32, -0.02]", "**77.00 ± 0.00** [77.50, -0.50]", "71.00 ± 0.00", "3",
    ]  # fmt: skip
    assert rows["CE", "8"] == [
        "21.00 ± 1.41 [18.91, +2.09]", "71.00 ± 1.41 [74.35, -3.35]", "61.00 ± 1.41", "2 of 3 seeds",
        "failed [18.21]", "failed [76.35]", "failed", "0",
    ]  # fmt: skip
    assert rows["CE", "12"][0] == "unfinished [19.08]"
    assert rows["OvA", "20"][4] == "missing [18.63]"
    assert len(rows) == 12 and "## cifar100, animal experts (the paper's Table 1)" in text


def test_one_seed_shows_no_deviation_and_other_data_no_published_number(tmp_path):
    write_run(tmp_path, "ce", 1, 0, (30.0, 60, 50), dataset="synthetic", experts="specialist")
    write_run(tmp_path, "pice_ce", 1, 0, (29.0, 61, 50), dataset="synthetic", experts="specialist")
    text = to_markdown(blocks_of(tmp_path))
    assert "| CE | 1 | 30.00 | 60.00 | 50.00 | 1 | **29.00** | **61.00** | 50.00 | 1 |" in text
    assert "ublished" not in text and "[" not in text and "missing" not in text


def test_text_for_the_terminal_and_the_findings(tmp_path):
    for num, vanilla, picce, pice in ((1, 30.0, 30.0, 30.0), (8, 34.5, 31.25, 28.25)):
        for loss, error in (("ova", vanilla), ("picce_ova", picce), ("pice_ova", pice)):
            best = {"system_error": 20.5 - num, "coverage": 80, "classifier_accuracy": 75}
            write_run(tmp_path, loss, num, 0, (error, 60, 50), dataset="synthetic", experts="specialist", bayes=best)
    (block,) = blocks_of(tmp_path)
    rows = [[part.strip() for part in line.split("  ") if part.strip()] for line in to_text([block]).splitlines()]
    assert rows[2] == ["System error (%)", "OvA Vanilla", "OvA PiCCE", "OvA PiCE", "best"]
    assert rows[3] == ["1 expert", "30.00", "30.00", "30.00", "19.50"]
    assert rows[4] == ["8 experts", "34.50", "31.25", "28.25", "12.50"]
    assert findings(block) == [
        "from 1 to 8 experts the system error of OvA Vanilla rose by 4.50 to 34.50.",
        "from 1 to 8 experts the system error of OvA PiCCE rose by 1.25 to 31.25, which is 3.25 below that of OvA Vanilla.",
        "from 1 to 8 experts the system error of OvA PiCE fell by 1.75 to 28.25, which is 6.25 below that of OvA Vanilla.",
    ]


def test_findings_say_when_seeds_are_missing_and_need_two_counts(tmp_path):
    for loss, error in (("ce", 20.0), ("picce_ce", 20.0)):
        write_run(tmp_path, loss, 4, 0, (error, 60, 50))
    (block,) = blocks_of(tmp_path)
    assert findings(block) == []
    for seed, loss, error in ((0, "ce", 25.0), (0, "picce_ce", 19.0), (1, "ce", 27.0)):
        write_run(tmp_path, loss, 8, seed, (error, 60, 50))
    (block,) = blocks_of(tmp_path)
    assert not block.cells.system_error_better.any()
    assert findings(block)[1] == (
        "from 4 to 8 experts the system error of CE PiCCE fell by 1.00 to 19.00, which is 7.00 below that of CE Vanilla "
        "(some seeds are missing)."
    )


def test_the_reference_table_says_what_experts_reach_without_a_system(tmp_path):
    for seed, best in ((0, 80.0), (1, 90.0)):
        reference = {"best_expert_accuracy": best, "majority_vote_accuracy": 70.0, "any_expert_correct": 95.0}
        reference["random_expert_accuracy"] = 60.0
        for loss in ("ce", "ova"):
            write_run(tmp_path, loss, 4, seed, (16.0, 60, 50), metrics=reference, bayes={"system_error": 10.0})
    blocks = blocks_of(tmp_path)
    heads = ["Best single expert (%)", "Majority vote (%)", "Random expert (%)", "Any expert right (%)"]
    heads.append("Best achievable (%)")
    assert f"| Experts | {' | '.join(heads)} |" in to_markdown(blocks)
    row = ["85.00", "70.00", "60.00", "95.00", "90.00"]
    assert f"| 4 | {' | '.join(row)} |" in to_markdown(blocks) and " & ".join(["4", *row]) in to_latex(blocks)
    assert to_text(blocks).split()[-7:] == ["4", "experts", *row]
    assert findings(blocks[0]) == [
        "with 4 experts, always asking the best single one has an error of 15.00, below that of every trained system "
        "(the lowest is 16.00, CE Vanilla)."
    ]


def test_reference_numbers_that_no_run_has_are_not_shown(tmp_path):
    write_old_run(tmp_path, "ce", 4, 0, (61.5, 60, 50))
    blocks = blocks_of(tmp_path)
    text = to_markdown(blocks)
    assert "Best single expert (%) | Any expert right (%) |" in text and "Majority" not in text
    assert len(findings(blocks[0])) == 1  # 61.00 without a system
    write_run(tmp_path / "none", "ce", 4, 0, (30.0, 60, 50))
    assert "single" not in to_markdown(blocks_of(tmp_path / "none"))


def test_runs_that_differ_in_a_setting_are_never_averaged(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (10.0, 50, 50))
    write_run(tmp_path, "ce", 4, 1, (20.0, 50, 50), trainer__epochs=200)
    write_run(tmp_path, "ce", 4, 2, (30.0, 50, 50), trainer__epochs=2.0)  # as 2
    blocks = blocks_of(tmp_path)
    done = pd.concat(block.cells for block in blocks).query("n > 0").set_index("setting")
    assert done.system_error.to_dict() == {"trainer.epochs=2": 20.0, "trainer.epochs=200": 20.0}
    assert done.n.to_dict() == {"trainer.epochs=2": 2, "trainer.epochs=200": 1}
    assert "## cifar100, animal experts (trainer.epochs=200)" in to_markdown(blocks)


def test_settings_that_do_not_affect_the_result_do_not_split_a_block(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (10.0, 50, 50))
    write_run(tmp_path, "ce", 4, 1, (10.0, 50, 50), trainer__device="cpu", trainer__eval_every=5, logger__name="wandb")
    write_run(tmp_path, "ce", 4, 2, (10.0, 50, 50), dataset__root="elsewhere", evaluation__bins=20)
    assert cell_of(summarize(load_runs(tmp_path)), 4, "ce").n == 3


def test_the_decision_rule_splits_a_block(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (10.0, 50, 50))
    write_run(tmp_path, "ce", 4, 1, (10.0, 90, 50), rule__name="budget")
    assert set(load_runs(tmp_path).setting) == {"rule.name=best", "rule.name=budget"}


def test_runs_on_other_data_are_another_block(tmp_path):
    for seed, digest in ((0, "ab12cd34"), (1, "ab12cd34"), (2, "ffff0000")):
        write_run(tmp_path, "ce", 4, seed, (10.0, 50, 50), data=DATA | {"digest": digest})
    blocks = blocks_of(tmp_path)
    assert [block.title for block in blocks] == [
        "cifar100, animal experts (data=ab12cd)",
        "cifar100, animal experts (data=ffff00)",
    ]
    assert [cell_of(block.cells, 4, "ce").n for block in blocks] == [2, 1]


def test_runs_of_version_1_are_averaged_with_runs_of_version_2_where_the_data_follow_from_the_settings(tmp_path):
    write_old_run(tmp_path, "ce", 4, 0, (10.0, 50, 50))
    write_run(tmp_path, "ce", 4, 1, (20.0, 50, 50))
    cell = cell_of(summarize(load_runs(tmp_path)), 4, "ce")
    assert (cell.n, cell.system_error, cell.state) == (2, 15.0, "complete")
    write_run(tmp_path, "ce", 4, 2, (20.0, 50, 50), data=DATA | {"digest": "ab12cd34"})
    assert set(load_runs(tmp_path).setting) == {"data=unknown", "data=ab12cd"}


def test_settings_that_version_1_did_not_have_get_defaults(composed):
    defaults = {key: plain(composed()[key]) for key in VERSION_1}
    assert defaults == VERSION_1


def test_a_seed_run_twice_counts_once_and_is_named(tmp_path, capsys):
    write_run(tmp_path / "a", "ce", 4, 0, status="failed")
    write_run(tmp_path / "a", "ce", 4, 0, (10.0, 50, 50))
    write_run(tmp_path / "b", "ce", 4, 0, (10.0, 50, 50))
    runs = load_runs(tmp_path / "a", tmp_path)
    assert len(runs) == 3
    cell = cell_of(summarize(runs), 4, "ce")
    assert (cell.n, cell.seeds, cell.state) == (1, 1, "complete")
    name_repeated(runs)
    failed, copy = capsys.readouterr().err.splitlines()
    assert "/a/ce-J4-seed0-0 repeats another run" in failed and "/b/ce-J4-seed0-0 repeats another run" in copy


def test_metrics_of_an_unfinished_run_do_not_count(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (10.0, 50, 50), status="interrupted")
    write_run(tmp_path, "ce", 4, 1, (30.0, 50, 50))
    runs = load_runs(tmp_path)
    assert runs.system_error.isna().sum() == 1
    cell = cell_of(summarize(runs), 4, "ce")
    assert (cell.n, cell.state, cell.system_error) == (1, "partial", 30.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"status": "fini', "Unterminated"),
        ("[]", "is []"),
        ("{}", "status"),
        ("[" * 100000, "nested"),
        ("1" * 5000, "4300 digits"),
        ('{"status": "done"}', 'status is "done"'),
        ('{"status": "finished", "metrics": null}', "metrics.system_error is null"),
        ('{"status": "finished", "metrics": {"coverage": 3}}', "metrics.system_error is null"),
        ('{"status": "finished", "metrics": {"system_error": "low"}}', 'metrics.system_error is "low"'),
        ('{"status": "finished", "metrics": {"system_error": -1}}', "metrics.system_error is -1"),
        ('{"status": "finished", "metrics": {"system_error": NaN}}', "metrics.system_error is NaN"),
        (
            '{"status": "finished", "metrics": {"system_error": 1, "coverage": 1, "classifier_accuracy": 1,'
            ' "best_expert_accuracy": []}}',
            "metrics.best_expert_accuracy is []",
        ),
        (
            '{"status": "finished", "metrics": {"system_error": 1, "coverage": 1, "classifier_accuracy": 1,'
            ' "best_expert_accuracy": 1e308}}',
            "metrics.best_expert_accuracy is 1e+308",
        ),
        ('{"status": "running", "seconds": "many"}', 'seconds is "many"'),
        ('{"status": "running", "seconds": 1e999}', "seconds is Infinity"),
        ('{"status": "running", "bayes": {"coverage": []}}', "bayes.coverage"),
        ('{"status": "running", "seed": "one"}', 'seed is "one"'),
        ('{"status": "running", "seed": 1' + "0" * 40 + "}", "seed=10000"),
        ('{"status": "running", "experts": [{"name": "a"}]}', "1 experts"),
        ('{"status": "running", "versions": []}', "versions is []"),
        ('{"status": "running", "schema_version": 3}', "schema_version=3"),
        ('{"status": "running", "own_metrics": [{"name": "mine", "better": "red"}]}', "better='red'"),
        ('{"status": "running", "own_metrics": [{"name": "coverage", "better": "lower"}]}', "'coverage'"),
    ],
)
def test_a_broken_result_is_named_and_the_others_are_kept(outputs, capsys, text, reason):
    broken = write_run(outputs, "ova", 4, 0, (1.0, 1, 1)) / "result.json"
    broken.write_text(text)
    assert len(load_runs(outputs)) == 14
    (line,) = capsys.readouterr().err.splitlines()
    assert str(broken) in line and reason in line


@pytest.mark.parametrize("text", ["loss: [", "loss: ce\n", "", "- a\n", "loss: {name: ce}\nseed: 0\ntrainer: null\n"])
def test_a_broken_config_is_named_and_the_others_are_kept(outputs, capsys, text):
    broken = write_run(outputs, "ova", 4, 0, (1.0, 1, 1)) / "config.yaml"
    broken.write_text(text)
    assert len(load_runs(outputs)) == 14
    (line,) = capsys.readouterr().err.splitlines()
    assert str(broken) in line


def test_an_epoch_whose_line_was_never_completed_is_not_read(tmp_path):
    """0.12 may be the beginning of 0.1234, or of 0.12e9."""
    folder = write_run(tmp_path, "ce", 4, 0, (10.0, 50, 50))
    (folder / "metrics.csv").write_text("epoch,loss,system_error\n1,2.5,\n2,1.5,20\n3,0.12")
    assert load_curves(load_runs(tmp_path))["epoch"].tolist() == [1, 2]


@pytest.mark.slow
def test_broken_parts_of_a_run_do_not_end_the_command(tmp_path, capsys):
    name = "a$\\foo$b"  # broken mathematics, if a figure took it for mathematics
    write_run(tmp_path / "runs", "ce", 4, 0, (30.0, 60, 50), dataset=name, metrics={"deferred_to": [1.0]})
    folder = write_run(tmp_path / "runs", "ce", 4, 1, (30.0, 60, 50), dataset=name, evaluation={"regret": {"total": 1}})
    (folder / "metrics.csv").write_text("epoch,system_error\n1,text\n2,20\n")
    write_report([str(tmp_path / "runs")], tmp_path / "report")
    said = capsys.readouterr()
    assert name in said.out and "2 of" not in said.out
    (line,) = said.err.splitlines()
    assert str(folder) in line and "evaluation.regret" in line


def test_a_folder_inside_a_run_is_not_a_run(tmp_path, capsys):
    inner = write_run(tmp_path, "ce", 4, 0, (10.0, 50, 50)) / "wandb" / "files"
    inner.mkdir(parents=True)
    (inner / "config.yaml").write_text("_wandb: {}\n")
    assert len(load_runs(tmp_path)) == 1 and not capsys.readouterr().err


def test_nothing_to_report_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="No runs found"):
        load_runs(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        load_runs(tmp_path / "absent")


def test_published_numbers_ship_with_the_package():
    published = load_published()
    assert len(published) == 152
    rows = published.set_index(["dataset", "experts", "num_experts", "method"])
    assert rows.system_error["imagenet_dogs", "dog", 20, "ova"] == 66.56
    assert rows.coverage["micebone", "human", 2, "picce_ce"] == 69.28
    assert rows.system_error["cifar100", "animal_varying", 16, "ce"] == 22.46


@pytest.mark.slow
def test_latex_compiles(outputs, tmp_path):
    own = {
        "own_metrics": [{**OWN_METRIC, "role": "detail"}],
        "metrics": {"regret_per_question": 1.0, "any_expert_correct": 9.0},
    }
    write_run(outputs, "ce", 4, 0, (50.0, 50, 50), dataset="my_data & 100%", experts="a^b~c#{}\\$", **own)
    text = to_latex(blocks_of(outputs))
    assert r"\textbf{18.30 $\pm$ 0.26} {\footnotesize [18.32, -0.02]}" in text
    assert text.count(r"\toprule") == 4 == text.count(r"\bottomrule")  # results; results, further metrics, reference
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed: the LaTeX was not compiled")
    document = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\n" + text + "\\end{document}\n"
    (tmp_path / "tables.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-800:]
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000


def test_overview_draws_the_means_in_the_papers_lines(tmp_path):
    for num, errors in ((1, (30.0, 30.0, 30.0)), (8, (34.0, 31.0, 28.0))):
        for loss, error in zip(("ce", "picce_ce", "pice_ova"), errors, strict=True):
            for seed in (0, 1):
                best = {"system_error": 20.0 - num}
                write_run(tmp_path, loss, num, seed, (error + seed, 60, 50), dataset="synthetic", bayes=best)
    ax = overview(blocks_of(tmp_path)).axes[0]
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert set(lines) == {"CE Vanilla", "CE PiCCE", "OvA PiCE", "Best achievable"}
    assert list(lines["CE PiCCE"].get_xdata()) == [1, 8] and list(lines["CE PiCCE"].get_ydata()) == [30.5, 31.5]
    assert list(lines["Best achievable"].get_ydata()) == [19, 12]
    assert lines["CE Vanilla"].get_linestyle() == "-" and lines["CE PiCCE"].get_linestyle() == "--"
    assert to_hex(lines["CE Vanilla"].get_color()) == to_hex(lines["CE PiCCE"].get_color())
    assert to_hex(lines["OvA PiCE"].get_color()) != to_hex(lines["CE PiCCE"].get_color())


def test_deferrals_per_expert_are_percentages_of_the_deferred_samples(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (30.0, 60, 50), dataset="synthetic")  # deferred_to 3, 1, 1, 1
    (block,) = blocks_of(tmp_path)
    (row,) = deferred_to(block).axes[0].collections
    assert row.get_array().ravel().tolist() == pytest.approx([50, 100 / 6, 100 / 6, 100 / 6])


def test_importing_the_report_draws_nothing_and_chooses_no_backend():
    code = "import sys, l2d.report.cli; assert not {'torch', 'matplotlib'} & set(sys.modules)\n"
    code += "import l2d.report.page; assert 'matplotlib.pyplot' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_command_writes_everything_without_torch(outputs, tmp_path):
    code = "import sys; from l2d.report.cli import main; main(); sys.exit(3 if 'torch' in sys.modules else 0)"
    command = [sys.executable, "-c", code, str(outputs), "--out", str(tmp_path / "report")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "18.30 ± 0.26" in done.stdout and "21.00 ± 1.41 (2 of 3 seeds)" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Page: {tmp_path / 'report' / 'index.html'}"
    folder = tmp_path / "report"
    names = ("system_error", "coverage", "classifier_accuracy", "coverage_accuracy", "training_curves", "deferred_to")
    drawn = [folder / "overview", *(folder / "figures" / "1-cifar100-animal-experts" / name for name in names)]
    for figure in drawn:
        image = Image.open(figure.with_suffix(".png")).convert("RGB")
        assert image.width > 500 and len(image.getcolors(1 << 24)) > 50, figure
        assert figure.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert len(list(csv.DictReader((folder / "runs.csv").read_text().splitlines()))) == 14
    cells = list(csv.DictReader((folder / "tables.csv").read_text().splitlines()))
    (one,) = (c for c in cells if (c["num_experts"], c["method"]) == ("4", "ce"))
    assert float(one["system_error_difference"]) == pytest.approx(0.02)


@pytest.mark.slow
def test_a_report_leaves_no_figure_of_an_older_one_and_nothing_else_is_touched(tmp_path):
    out, mine = tmp_path / "report", tmp_path / "report" / "figures" / "mine.png"
    for experts in ("animal", "specialist"):
        write_run(tmp_path / experts, "ce", 4, 0, (30.0, 60, 50), experts=experts)
    write_report([str(tmp_path / "animal"), str(tmp_path / "specialist")], out)
    mine.write_text("the user's own")
    assert len(list(out.glob("figures/*/system_error.png"))) == 2
    write_report([str(tmp_path / "specialist")], out)
    assert [path.name for path in out.glob("figures/*-*")] == ["1-cifar100-specialist-experts"] and mine.exists()


def test_only_failures_still_make_a_report(tmp_path, capsys):
    write_run(tmp_path / "outputs", "ce", 4, 0, status="failed", dataset="synthetic")
    main([str(tmp_path / "outputs"), "--out", str(tmp_path / "report")])
    assert "failed" in capsys.readouterr().out and (tmp_path / "report" / "index.html").exists()


@pytest.mark.slow
def test_a_pipe_closed_early_leaves_a_complete_report(outputs, tmp_path):
    code = "from l2d.report.cli import main; main()"
    command = [sys.executable, "-c", code, str(outputs), "--out", str(tmp_path / "report")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait(timeout=120) == 0
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["absent"], "absent"),
        (["empty"], "empty"),
        (["outputs", "--out", "file"], "--out=file"),
        (["outputs", "--baseline", "other"], "--baseline=other"),
    ],
)
def test_mistakes_end_in_a_sentence_and_exit_code_2(outputs, tmp_path, monkeypatch, capsys, arguments, named):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and not (tmp_path / "report").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
