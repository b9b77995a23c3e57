"""What should I deploy: finished systems decided again under one rule, from the command line."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from test_report_page import Elements, browse

from l2d.evaluate import main as evaluate
from l2d.report.cli import main as report
from l2d.report.deploy import deploy
from l2d.report.load import load_runs
from l2d.train import run

TINY = (
    "dataset.num_train=300", "dataset.num_test=200", "trainer.epochs=3", "backbone.hidden=16", "experts.num=3", "held_out=0.2",
    "verbose=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Two seeds of two losses."""
    from conftest import compose_once

    folder = tmp_path_factory.mktemp("deploy") / "outputs"
    for loss in ("ova", "picce_ce"):
        for seed in (0, 1):
            cfg = compose_once(*TINY, f"loss={loss}", f"seed={seed}").copy()
            cfg.output_dir = str(folder)
            run(cfg)
    return folder


@pytest.fixture
def runs(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, "outputs"))


def test_systems_are_ranked_by_what_errors_and_questions_cost(runs, capsys):
    report([str(runs), "--deploy", "experts.costs=0.1"])
    out = capsys.readouterr().out
    assert "What should I deploy? Under experts.costs=0.1:" in out
    ranking = pd.read_csv("report/deploy.csv")
    assert sorted(ranking["method"]) == ["ova", "picce_ce"] and ranking["rank"].tolist() == [1, 2]
    assert (ranking["seeds"] == 2).all() and ranking["system_cost"].is_monotonic_increasing
    assert (
        (ranking["system_cost_low"] < ranking["system_cost"]) & (ranking["system_cost"] < ranking["system_cost_high"])
    ).all()
    assert ranking["system_cost_behind"].tolist()[0] == 0 < ranking["system_cost_behind"].tolist()[1]
    spent = 0.1 * ranking["questions_asked"]
    assert ranking["system_cost"].tolist() == pytest.approx((ranking["system_error"] + spent).tolist())
    asked = pd.read_csv("report/deploy_asked.csv")
    assert asked["asked"].sum() == pytest.approx(ranking["questions_asked"].iloc[0])
    assert "Whom" in out and "expert_0" in out
    page = Path("report/index.html").read_text()
    assert "What should I deploy?" in page and "behind the best" in page
    assert "expert_0" in Path("report/deploy.md").read_text()


def test_areas_are_those_of_the_full_evaluation_and_differences_are_paired(runs, capsys):
    """Under limits too: a curve moves the price itself. The best method is behind itself by nothing."""
    for folder in runs.glob("*/*"):
        evaluate([str(folder), "evaluation=full"])
    files = [json.loads(path.read_text()) for path in runs.rglob("evaluation.json")]
    ranking = deploy(load_runs(runs), ["rule=budget", "rule.defer_at_most=10"]).ranking.set_index("method")
    for loss in ("ova", "picce_ce"):
        curves = [file["evaluation"]["curve"] for file in files if file["choices"]["loss"] == loss]
        for name in ("area", "augrc"):
            row = ranking.loc[loss]
            assert row[name] == pytest.approx(sum(curve[name] for curve in curves) / 2)
            assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
            behind = [row[f"{name}_behind{end}"] for end in ("_low", "", "_high")]
            assert behind == sorted(behind) and (behind == [0, 0, 0]) == (row["rank"] == 1)
    several = deploy(load_runs(runs), ["rule=combine"])
    assert "area" not in several.ranking and all(row[-3:-1] == ["", ""] for row in several.tables[0].rows)


def test_the_runs_themselves_stay_as_they_were(runs):
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    report([str(runs), "--deploy", "rule=budget", "rule.defer_at_most=10"])
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before
    ranking = pd.read_csv("report/deploy.csv")
    assert len(ranking) == 2 and (ranking["coverage"] > 70).all()
    assert json.loads(next(runs.rglob("result.json")).read_text())["status"] == "finished"


def test_runs_that_were_reported_under_other_rules_and_costs_are_compared_all_the_same(runs, composed):
    """Also with a loss that is trained for a cost. How they were reported changes no number."""
    alike = deploy(load_runs(runs), ["rule=best", "experts.costs=0.05"]).ranking
    run(composed(*TINY, "loss=ova", "seed=0", "rule=budget", "rule.defer_at_most=5"))
    run(composed(*TINY, "loss=picce_ce", "seed=1", "experts.costs=0.2"))
    frame = load_runs(runs)
    assert len(set(frame["setting"])) == 3 and set(frame["trained_with"]) == {""}
    pd.testing.assert_frame_equal(deploy(frame, ["rule=best", "experts.costs=0.05"]).ranking, alike)
    run(composed(*TINY, "loss=liu", "seed=0", "experts.costs=0.05"))
    (table,) = deploy(load_runs(runs), ["rule=best", "experts.costs=0.05"]).tables
    assert sorted(row[1] for row in table.rows) == ["CE PiCCE", "Liu et al.", "OvA Vanilla"]


def test_what_a_loss_cannot_do_leaves_its_runs_out_and_says_so(runs, capsys):
    report([str(runs), "--deploy", "experts.costs=[0.1,0.2,0.3]"])
    captured = capsys.readouterr()
    (notice,) = captured.err.splitlines()
    assert notice.count("picce_ce-") == 2 and "experts.costs=[0.1, 0.2, 0.3]" in notice
    assert pd.read_csv("report/deploy.csv")["method"].tolist() == ["ova"]


@pytest.mark.parametrize("wrong", ["seed=3", "rule=nothing", "experts.costs=-1"])
def test_changes_that_no_run_can_take_end_in_a_sentence(runs, capsys, wrong):
    with pytest.raises(SystemExit) as ended:
        report([str(runs), "--deploy", wrong])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and wrong.partition("=")[0] in err
    assert not Path("report").exists()


@pytest.mark.browser
@pytest.mark.slow
def test_the_tables_of_the_page_follow_its_filters(runs, tmp_path):
    report([str(runs), "--deploy", "experts.costs=0.1"])
    best, other = pd.read_csv("report/deploy.csv")["method"]
    for method, asked in ((best, 1), (other, 0)):
        dom, said = browse(Path("report/index.html").resolve().as_uri() + f"#loss={method}", tmp_path, "--dump-dom")
        elements = Elements(dom)
        rows = [row["data-loss"] for row in elements.shown("tr", **{"class": "deploy"})]
        assert said == [] and rows == [method] and "2 runs" in elements.texts
        assert len(elements.shown("div", **{"data-loss": best})) == asked  # whom the best one asks
