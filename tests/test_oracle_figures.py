"""The figures of evaluation=full draw the means over seeds of what result.json holds, and only where it holds it."""

import json

import pytest
from test_report import write_run

from l2d.report import load_runs
from l2d.report.epoch_figures import epoch_figures
from l2d.report.full_figures import full_figures
from l2d.report.load import load_curves

METHODS = ["ce", "picce_ce"]


def bins(count, confidence, accuracy):
    return {"ece": 1.0, "count": count, "confidence": confidence, "accuracy": accuracy}


def add_evaluation(folder, **parts):
    """As a run with evaluation=full leaves it, with the given parts."""
    known = dict.fromkeys(("regret", "estimates", "calibration", "posterior", "budget"))
    curve = {"area": 60.0, "coverage": [0.0, 50.0, 100.0], "accuracy": [None, 70.0, 60.0]}
    result = json.loads((folder / "result.json").read_text())
    result["evaluation"] = {**known, "curve": curve, **parts}
    (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture
def full(tmp_path):
    """Vanilla with two seeds, PiCCE evaluated without the oracle, and a run without a full evaluation."""
    for seed, regret, count, accuracy, first in ((0, (1, 2, 3), 10, 40.0, 30.0), (1, (3, 4, 5), 30, 60.0, 20.0)):
        add_evaluation(
            write_run(tmp_path, "ce", 4, seed, (30.0, 60, 50)),
            regret=dict(zip(("classifier", "decision", "expert"), regret, strict=True)) | {"total": sum(regret)},
            calibration=dict.fromkeys(("classifier", "expert"), bins([0, count], [None, 80.0], [None, accuracy])),
            posterior={"before": [1.0, 1.0], "after": [first, 5.0], "true": [80.0, 10.0]},
            budget=[{"defer_at_most": 10, "price": 1.0, "coverage": 90.0 + seed, "system_error": 30.0}],
        )
    add_evaluation(write_run(tmp_path, "picce_ce", 4, 0, (29.0, 60, 50)))
    write_run(tmp_path, "picce_ce", 4, 1, (29.0, 60, 50))
    write_run(tmp_path, "picce_ce", 4, 2, status="failed")
    return full_figures(load_runs(tmp_path), METHODS)


def test_runs_without_a_full_evaluation_have_no_figures(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (30.0, 60, 50))
    assert full_figures(load_runs(tmp_path), METHODS) == {}


def test_regret_is_stacked_from_its_parts(full):
    (ax,) = full["regret"].axes
    bars = sorted((bar.get_x(), bar.get_width()) for bar in ax.patches)
    assert bars == [(0, 2), (2, 3), (5, 4)]  # the means of (1, 3), (2, 4), (3, 5), end to end; PiCCE has none


def test_reliability_pools_the_bins_of_all_seeds(full):
    for ax in full["reliability"].axes:
        diagonal, line = ax.get_lines()
        assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 100]
        assert line.get_label() == "CE Vanilla"
        # the empty bin is not drawn; (10 * 40 + 30 * 60) / 40
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([80], [55])


def test_the_curve_and_its_budgets(full):
    (ax,) = full["budget_curve"].axes
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines["CE PiCCE"].get_ydata())[1:] == [70, 60]
    (cross,) = (line for line in ax.get_lines() if line.get_marker() == "x")
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([90.5], [70])


def test_the_posterior_before_and_after_experts(full):
    (ax,) = full["posterior"].axes
    assert [bar.get_height() for bar in ax.patches] == [80, 10]  # the truth, where it is known
    (line,) = ax.get_lines()
    assert list(line.get_ydata()) == [25, 5]


def test_an_evaluation_with_other_settings_is_named_and_not_averaged(tmp_path, capsys):
    for seed in (0, 1, 2):
        folder = write_run(tmp_path, "ce", 4, seed, (30.0, 60, 50))
        add_evaluation(
            folder,
            posterior={"before": [seed] * (3 - seed // 2), "after": [10.0 + seed] * (3 - seed // 2), "true": None},
        )
    (ax,) = full_figures(load_runs(tmp_path), METHODS)["posterior"].axes
    assert list(ax.get_lines()[0].get_ydata()) == [10.5] * 3
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folder) in line and "evaluation.posterior" in line


def test_the_error_with_fewer_experts_is_drawn_whatever_other_numbers_of_experts_there_are(tmp_path, capsys):
    curve = {"questions": [0.0, 100.0], "error": [50.0, 30.0], "spent": [0.0, 0.0], "optimum": None}
    for num, seeds in ((1, (0, 1)), (3, (0,))):
        for seed in seeds:
            fewer = {"present": list(range(num + 1)), "system_error": [50.0 - k for k in range(num + 1)]}
            add_evaluation(write_run(tmp_path, "ce", num, seed, (30.0, 60, 50)), questions=curve, fewer_experts=fewer)
    _, present = full_figures(load_runs(tmp_path), METHODS)["questions"].axes
    assert [list(line.get_ydata()) for line in present.get_lines()] == [[50, 49, 48, 47]]
    assert capsys.readouterr().err == ""


def test_underfitting_over_the_epochs(tmp_path):
    for seed, end in ((0, 20), (1, 40)):
        folder = write_run(tmp_path, "ce", 4, seed, (30.0, 60, 50))
        (folder / "metrics.csv").write_text(f"epoch,loss,label_margin\n1,2.5,10\n2,1.5,{end}\n")
    figures = epoch_figures(load_curves(load_runs(tmp_path)), ["ce"], [])
    (ax,) = figures["underfitting"].axes
    (line,) = ax.get_lines()
    assert list(line.get_ydata()) == [10, 30]
