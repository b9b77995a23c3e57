"""What a user may bring or choose: a loss, a system or a metric of their own, and what losses are compared with."""

import csv
import math

import pytest
from test_report import OWN_METRIC, blocks_of, markdown_rows, write_run

from l2d.errors import UserError
from l2d.report import load_runs, paired_differences, summarize
from l2d.report.cli import write_report
from l2d.report.findings import findings
from l2d.report.render import to_latex, to_markdown, to_text
from l2d.report.style import look

TWO_CE = {"loss__formulation": "my_losses.two_most_confident", "dataset": "synthetic"}


def test_a_custom_loss_is_shown_by_its_name(tmp_path):
    write_run(tmp_path, "two_ce", 4, 0, (30.0, 60, 50), **TWO_CE)
    text = to_markdown(blocks_of(tmp_path))
    assert markdown_rows(text)["Base", "Experts"] == ["two_ce Err", "two_ce Cov", "two_ce Acc", "two_ce n"]
    assert "| CE | 4 | 30.00 | 60.00 | 50.00 | 1 |" in text
    assert "missing" not in text and "my_losses" not in text


def test_a_custom_loss_is_in_the_row_of_its_base(tmp_path):
    for loss, error, more in (("two_ce", 28.0, TWO_CE), ("ce", 30.0, {"dataset": "synthetic"})):
        write_run(tmp_path, loss, 4, 0, (error, 60, 50), **more)
    write_run(tmp_path, "ova", 8, 0, (29.0, 60, 50), dataset="synthetic")
    blocks = blocks_of(tmp_path)
    rows = markdown_rows(to_markdown(blocks))
    assert rows["CE", "4"] == ["30.00", "60.00", "50.00", "1", "**28.00**", "60.00", "50.00", "1"]
    assert rows["OvA", "8"] == ["29.00", "60.00", "50.00", "1", "", "", "", ""]
    assert blocks[0].baselines == {"two_ce": "ce"}


def test_settings_that_differ_are_part_of_the_name(tmp_path):
    for weight in (0.5, 2.0):
        write_run(
            tmp_path, "mine", 4, 0, (10 * weight, 50, 50), dataset="synthetic", loss__weight=weight, loss__base=None
        )
    blocks = blocks_of(tmp_path)
    errors = dict(zip(blocks[0].cells.method, blocks[0].cells.system_error, strict=True))
    assert errors == {"mine weight=0.5": 5, "mine weight=2": 20}
    assert "mine weight=2 Err" in to_markdown(blocks)


def test_a_custom_system_is_part_of_the_name_and_has_a_baseline(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (30.0, 60, 50), dataset="synthetic")
    write_run(tmp_path, "ce", 4, 0, (20.0, 60, 50), dataset="synthetic", system__name="mine")
    (block,) = blocks_of(tmp_path)
    assert block.methods == ["ce", "ce mine"] and block.baselines == {"ce mine": "ce"}
    assert "CE Vanilla mine" in to_text([block])


def test_a_known_loss_with_overridden_parts_is_called_by_its_parts(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (30.0, 60, 50), loss__base="ova")
    assert set(load_runs(tmp_path).method) == {"ova"}


def test_known_losses_keep_their_look_and_others_have_one_of_their_own():
    assert look("ce") == {"color": "#0072B2", "linestyle": "-", "marker": "o"}
    assert look("pice_ova") == {"color": "#D55E00", "linestyle": (0, (1, 1.2)), "marker": "^"}
    assert look("two_ce") == {"color": "#009E73", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "P"}  # always
    assert look("ce weight=1") not in (look("ce"), look("ce weight=2"))


@pytest.fixture
def pairs(tmp_path):
    """picce_ce - ce is -1, -2, -3 on seeds 0 to 2, and seed 3 has no partner; picce_ova - ova is 1 on seed 0."""
    for seed, vanilla, picce in ((0, 20.0, 19.0), (1, 24.0, 22.0), (2, 22.0, 19.0)):
        write_run(tmp_path, "ce", 4, seed, (vanilla, 50, 50))
        write_run(tmp_path, "picce_ce", 4, seed, (picce, 50, 50))
    write_run(tmp_path, "ce", 4, 3, (90.0, 50, 50))
    write_run(tmp_path, "picce_ce", 4, 3, status="failed")
    write_run(tmp_path, "ova", 4, 0, (20.0, 50, 50))
    write_run(tmp_path, "picce_ova", 4, 0, (21.0, 50, 50))
    return tmp_path


def test_paired_difference_over_the_shared_seeds(pairs):
    table = paired_differences(load_runs(pairs)).set_index(["method", "baseline", "metric"])
    assert set(table.index.droplevel("metric")) == {("picce_ce", "ce"), ("picce_ova", "ova")}
    row = table.loc["picce_ce", "ce", "system_error"]
    assert row.n == 3 and row.difference == pytest.approx(-2)
    half = 4.302653 / math.sqrt(3)  # t_{0.975, 2}, and a standard deviation of 1
    assert (row.low, row.high) == (pytest.approx(-2 - half), pytest.approx(-2 + half))
    alone = table.loc["picce_ova", "ova", "system_error"]
    assert alone.difference == 1 and math.isnan(alone.low)


def test_a_chosen_baseline_is_compared_with_all_others(pairs):
    table = paired_differences(load_runs(pairs), baseline="ova").query("metric == 'system_error'").set_index("method")
    assert set(table.baseline) == {"ova"}
    assert table.difference.to_dict() == {"ce": 0, "picce_ce": -1, "picce_ova": 1}  # on seed 0
    with pytest.raises(UserError, match=r"baseline=pice_ce.*picce_ova"):
        paired_differences(load_runs(pairs), baseline="pice_ce")


def test_findings_follow_the_chosen_baseline(pairs):
    for loss, error in (("ce", 25.0), ("picce_ova", 24.0)):
        write_run(pairs, loss, 8, 0, (error, 50, 50))
    (block,) = blocks_of(pairs, baseline="picce_ova")
    ce, picce_ova = findings(block)
    assert "1.00 above that of OvA PiCCE" in ce and "that of OvA" not in picce_ova.replace("error of OvA", "")


@pytest.fixture
def own_metric(tmp_path):
    """Two losses with a metric from outside, of the given role."""

    def write(role):
        for loss, value in (("ce", 3.0), ("picce_ce", 2.0)):
            for seed in (0, 1):
                more = {"own_metrics": [{**OWN_METRIC, "role": role}], "metrics": {OWN_METRIC["name"]: value + seed}}
                write_run(tmp_path / "runs", loss, 4, seed, (30.0, 60, 50), dataset="synthetic", **more)
        return tmp_path / "runs"

    return write


def test_a_custom_headline_metric_is_shown_beside_the_three(own_metric):
    blocks = blocks_of(own_metric("headline"))
    rows = markdown_rows(to_markdown(blocks))
    assert rows["Base", "Experts"][:5] == ["Vanilla Err", "Vanilla Cov", "Vanilla Acc", "Vanilla Rpq", "Vanilla n"]
    assert rows["CE", "4"][3] == "3.50 ± 0.71" and rows["CE", "4"][8] == "**2.50 ± 0.71**"
    assert "Regret per question  3.50" in " ".join(to_text(blocks).split()).replace("CE Vanilla CE PiCCE 4 experts", "")
    assert r"\multicolumn{5}{c}{PiCCE}" in to_latex(blocks) and r"\cmidrule(lr){3-7}\cmidrule(lr){8-12}" in to_latex(
        blocks
    )


@pytest.mark.slow
def test_a_custom_metric_has_a_table_of_further_metrics_a_figure_and_a_difference(own_metric, tmp_path):
    write_report([str(own_metric("detail"))], tmp_path / "report")
    rows = markdown_rows((tmp_path / "report" / "tables.md").read_text())
    assert rows["Base", "Experts"] == ["Vanilla Rpq", "Vanilla n", "PiCCE Rpq", "PiCCE n"]
    assert rows["CE", "4"] == ["3.50 ± 0.71", "2", "**2.50 ± 0.71**", "2"]
    cells = list(csv.DictReader((tmp_path / "report" / "tables.csv").read_text().splitlines()))
    assert [cell["regret_per_question"] for cell in cells] == ["3.5", "2.5"]
    pairs = list(csv.DictReader((tmp_path / "report" / "paired.csv").read_text().splitlines()))
    assert {pair["difference"] for pair in pairs if pair["metric"] == "regret_per_question"} == {"-1.0"}
    assert len(list((tmp_path / "report").glob("figures/*/own-regret-per-question.png"))) == 1
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Further metrics" in page and "Regret per question against the number of experts" in page


def test_a_custom_metric_may_be_missing_in_some_runs(tmp_path):
    for loss, seed, value in (("ce", 0, 1.0), ("ce", 1, None), ("ova", 0, [1.0, 2.0]), ("ova", 1, [1.0, 2.0])):
        more = {"own_metrics": [{**OWN_METRIC, "role": "detail"}], "metrics": {OWN_METRIC["name"]: value}}
        write_run(tmp_path / loss, loss, 2, seed, (30.0, 60, 50), dataset="synthetic", **more)
    assert markdown_rows(to_markdown(blocks_of(tmp_path / "ce")))["CE", "2"] == ["n/a", "2"]
    assert "further" not in to_markdown(blocks_of(tmp_path / "ova"))


def test_a_custom_metric_cannot_overwrite_a_column(tmp_path):
    more = {"own_metrics": [{"name": "loss", "label": "Test loss", "better": "lower"}], "metrics": {"loss": 0.7}}
    write_run(tmp_path, "ce", 4, 0, (30.0, 60, 50), dataset="synthetic", **more)
    (cell,) = summarize(load_runs(tmp_path)).itertuples()
    assert (cell.method, cell.own_loss) == ("ce", 0.7)
