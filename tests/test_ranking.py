"""Many methods in one report: their names, looks and tables, and the ranking against numbers made by hand."""

import csv
import math
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from test_report import blocks_of, markdown_rows, write_old_run, write_run

from l2d.cli import main
from l2d.conf_files import config_dir, group_files
from l2d.config import plain
from l2d.identity import choices
from l2d.report import load_runs, summarize
from l2d.report.cell_figures import ranking
from l2d.report.cli import write_report
from l2d.report.findings import findings
from l2d.report.methods import KNOWN, base_order, column, label, method_name
from l2d.report.ranking import rank_runs
from l2d.report.render import ranking_to_latex, ranking_to_markdown, to_latex, to_markdown, to_text
from l2d.report.settings import packaged
from l2d.report.style import look
from l2d.status import describe

LOSSES = sorted(set(group_files()["loss"]) - {"none"})
SYSTEMS = sorted(group_files()["system"])
REFERENCE = {"best_expert_accuracy": 75.0, "majority_vote_accuracy": 65.0, "any_expert_correct": 95.0}


def experiment():
    with initialize_config_dir(config_dir(), version_base="1.3"):
        return compose("train", ["experiment=all_methods"], return_hydra_config=True)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["loss=ce", "loss.weight=balanced"], "balanced_ce"),
        (["loss=balanced_ova", "loss.weight=1.0"], "ova"),
        (["loss=ce", "loss.weight=0.3"], "ce weight=0.3"),
        (["loss=ce", "loss.base=ova", "loss.weight=0.3"], "ova weight=0.3"),
        (["loss=gce", "loss.q=1"], "mae"),
        (["loss=picce_gce", "loss.q=0.5"], "picce_gce q=0.5"),
        (["loss=rs", "loss.q=0.7"], "rs_gce"),
        (["loss=rs", "loss.alpha=0.5"], "rs alpha=0.5"),
        (["loss=css", "experts.costs=0.1"], "css"),  # the cost is a setting of the experts
        (["loss=css", "experts.costs=0.1", "loss.cost=0.2"], "css cost=0.2"),
        (["loss=css", "loss.classes=best", "experts.costs=0.1"], "liu"),
        (["loss=ce", "loss._target_=mine.Loss"], "ce _target_=mine.Loss"),
        (["loss=ce", "loss.name=mine", "loss.weight=0.3"], "mine"),
        (["system=two_stage", "loss=ova", "system.stage2=naive"], "ova two_stage stage2=naive"),
        (["system=compare_confidence"], "compare_confidence"),
    ],
)
def test_a_method_is_named_by_the_closest_loss_of_the_package_and_what_differs_from_it(composed, overrides, name):
    config = composed(*overrides)
    assert method_name(choices(config), plain(config)) == name


def test_every_loss_has_a_name_a_label_and_a_look_of_its_own():
    bases = {}
    for loss in LOSSES:
        settings = packaged("loss")[loss]
        settings = settings | ({"cost": None} if "cost" in settings else {})  # that of the experts
        assert method_name({"loss": loss}, {"loss": settings, "experts": {"costs": None}}) == loss
        assert loss in KNOWN or label(loss) != loss
        bases[loss] = settings.get("base", "")
    shown = [*LOSSES, *(f"{loss} two_stage" for loss in KNOWN), *(set(SYSTEMS) - {"score", "two_stage"})]
    for what in (look, label):
        assert len({str(what(method)) for method in shown}) == len(shown)
    places = {(base_order(base), column(loss)) for loss, base in bases.items()}
    assert len(places) == len(LOSSES), "two losses would share a cell of a table"


def test_overridden_losses_never_share_a_cell_and_older_runs_have_the_weight_1(tmp_path):
    write_old_run(tmp_path, "ce", 4, 0, (10.0, 50, 50))
    write_run(tmp_path, "ce", 4, 1, (20.0, 50, 50), loss__weight=1.0)
    write_run(tmp_path, "ce", 4, 0, (30.0, 50, 50), loss__weight=0.3)
    write_run(tmp_path, "ce", 4, 0, (40.0, 50, 50), loss__weight="balanced")
    write_run(tmp_path, "balanced_ce", 4, 1, (50.0, 50, 50), loss__formulation="vanilla", loss__weight="balanced")
    cells = summarize(load_runs(tmp_path)).query("n > 0").set_index("method")
    assert cells.system_error.to_dict() == {"ce": 15, "ce weight=0.3": 30, "balanced_ce": 45}
    (block,) = blocks_of(tmp_path)
    assert block.baselines.items() >= {"ce weight=0.3": "ce", "balanced_ce": "ce"}.items()
    assert "CE Vanilla weight=0.3" in to_text([block]) and "Balanced" in to_markdown([block])


def test_only_the_plain_vanilla_loss_with_the_standard_system_is_a_baseline(tmp_path):
    plain_parts = {"loss__formulation": "vanilla", "dataset": "synthetic"}
    for loss, base in (("balanced_ce", "ce"), ("css", "ce"), ("mae", "gce"), ("rs", None), ("decoupled", "decoupled")):
        write_run(tmp_path, loss, 4, 0, (30.0, 60, 50), loss__base=base, **plain_parts)
    assert blocks_of(tmp_path)[0].baselines == {}
    write_run(tmp_path, "ce", 4, 0, (30.0, 60, 50), dataset="synthetic", system__name="other")
    assert blocks_of(tmp_path)[0].baselines == {}
    for loss in ("ce", "gce"):
        write_run(tmp_path, loss, 4, 0, (30.0, 60, 50), dataset="synthetic", loss__base=loss)
    found = {method.split(" ")[0]: other for method, other in blocks_of(tmp_path)[0].baselines.items()}
    assert found == {"balanced_ce": "ce", "css": "ce", "mae": "gce", "ce": "ce"}  # the last with the other system


@pytest.fixture
def many(tmp_path):
    """Six methods, 1 and 4 experts, two seeds; MAE has three of its four runs. Errors are those of seed 0; seed 1 has one more."""
    errors = {"ce": (20, 30), "picce_ce": (20, 24), "balanced_ce": (20, 22), "rs": (26, 18), "decoupled": (40, 41)}
    classifier = {"decoupled": 70}
    for loss, at in {**errors, "mae": (10, 10)}.items():
        base = {"rs": None, "decoupled": "decoupled", "mae": "gce"}.get(loss, "ce")
        formulation = {"picce_ce": "picce", "rs": None}.get(loss, "vanilla")
        target = f"l2d.losses.{'Realizable' if loss == 'rs' else 'DeferralLoss'}"
        parts = {"loss__base": base, "loss__formulation": formulation, "loss___target_": target}
        more = {**parts, "dataset": "synthetic", "metrics": REFERENCE}
        for num, error in zip((1, 4), at, strict=True):
            for seed in (0, 1):
                if (loss, num, seed) != ("mae", 4, 1):
                    found = {"regret": {"total": error - 9.5, "classifier": 1, "decision": 1, "expert": 1}}
                    values = (error + seed, 50, classifier.get(loss, 50))
                    best = {"system_error": 10.0}
                    write_run(tmp_path / "runs", loss, num, seed, values, bayes=best, evaluation=found, **more)
    return tmp_path / "runs"


def test_the_ranking_by_system_error(many):
    table = rank_runs(load_runs(many)).query("by == 'system_error'")
    average = table[table.num_experts.isna()].set_index("entry")
    expected = {
        "Any expert right": 5, "Best achievable": 10, "balanced_ce": 21.5, "picce_ce": 22.5, "rs": 22.5,
        "Best single expert": 25, "ce": 25.5, "Best classifier alone (Decoupled)": 30, "Majority vote": 35, "decoupled": 41,
    }  # fmt: skip
    assert {name: average["mean"][name] for name in expected} == expected
    means = average["mean"].tolist()
    assert means == sorted(means) and "mae" not in average.index  # it lacks a seed
    assert list(dict.fromkeys(table.entry))[-1] == "mae"
    ranks = average["rank"].dropna().to_dict()
    assert ranks == {"balanced_ce": 1, "picce_ce": 2, "rs": 2, "ce": 4, "decoupled": 5}
    # 1 expert: three share 1 to 3, then rs; 4 experts: rs, balanced_ce, picce_ce, ce
    places = {"ce": (2, 4), "picce_ce": (2, 3), "balanced_ce": (2, 2), "rs": (4, 1), "decoupled": (5, 5)}
    assert average["mean_rank"].dropna().to_dict() == {name: sum(two) / 2 for name, two in places.items()}
    assert average["std"]["ce"] == pytest.approx(math.sqrt(0.5)) and average["n"]["ce"] == 2
    four = table[table.num_experts == 4].set_index("entry")
    assert four["rank"].dropna().to_dict() == {"rs": 1, "balanced_ce": 2, "picce_ce": 3, "ce": 4, "decoupled": 5}
    assert four.loc["mae", ["mean", "n"]].tolist() == [10, 1]
    one = table[table.num_experts == 1].set_index("entry")
    assert one["rank"].dropna().to_dict() == {
        "mae": 1, "ce": 2, "picce_ce": 2, "balanced_ce": 2, "rs": 5, "decoupled": 6,
    }  # fmt: skip


def test_the_ranking_by_regret_is_there_where_it_is_known(many, tmp_path):
    table = rank_runs(load_runs(many)).query("by == 'regret'")
    average = table[table.num_experts.isna()].set_index("entry")["mean"]
    assert average["balanced_ce"] == 11.5 and average["Best achievable"] == 0 and average["Best single expert"] == 15
    write_run(tmp_path / "other", "ce", 4, 0, (10.0, 50, 50))
    assert set(rank_runs(load_runs(tmp_path / "other")).by) == {"system_error"}


def test_the_ranking_as_text(many):
    blocks = blocks_of(many)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ranking_to_markdown(blocks).splitlines()]
    table = {line[1]: [line[0], *line[2:]] for line in reversed(lines) if len(line) > 1}  # the first: system error
    assert table["Method"] == ["", "Average", "1 expert", "4 experts", "Mean rank"]
    deviation = "± 0.71"
    assert table["CE Balanced"] == [
        "1", f"**21.50 {deviation}**", f"20.50 {deviation} (2)", f"22.50 {deviation} (2)", "2.0",
    ]  # fmt: skip
    assert table["*Best single expert*"] == ["", "25.00 ± 0.00", "25.00 ± 0.00", "25.00 ± 0.00", ""]
    assert table["MAE"] == ["", "", f"**10.50 {deviation}** (1)", "10.00 (1 of 2 seeds)", ""]
    tex = ranking_to_latex(blocks)
    assert r"\textit{Best single expert}" in tex and tex.count(r"\toprule") == 2 == tex.count(r"\bottomrule")
    assert r"1 & CE Balanced & \textbf{21.50 $\pm$ 0.71} & 20.50 $\pm$ 0.71 {\footnotesize (2)}" in tex
    (line,) = [line for line in to_text(blocks).splitlines() if line.startswith("CE Balanced  ") and "(2)" in line][:1]
    assert line.split()[2:6] == ["1", "21.50", "±", "0.71"]


def test_many_methods_are_rows_and_the_best_of_all_is_bold(many):
    blocks = blocks_of(many)
    text = to_markdown(blocks)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert [name for name in rows if name not in ("---", "1", "4", "Experts")] == [
        "Method", "CE Vanilla", "CE PiCCE", "CE Balanced", "MAE", "Decoupled", "RS",
    ]  # fmt: skip
    assert "1 expert Err" in rows["Method"] and "4 experts n" in rows["Method"]
    assert rows["CE Vanilla"].count("|") == 2 + 8
    assert "**18.50 ± 0.71**" in rows["RS"] and "**22.50" not in rows["CE Balanced"]
    assert r" & \multicolumn{4}{c}{1 expert} & \multicolumn{4}{c}{4 experts} \\" in to_latex(blocks)
    assert r"\cmidrule(lr){2-5}\cmidrule(lr){6-9}" in to_latex(blocks)
    first = to_text(blocks).splitlines()[2].split()
    assert first == ["System", "error", "(%)", "1", "expert", "4", "experts"]


def test_the_findings_of_many_methods_are_few(many):
    assert findings(blocks_of(many)[0]) == [
        "on average over 1 and 4 experts the system error is lowest with CE Balanced (21.50), then CE PiCCE (22.50), and highest "
        "with Decoupled (41.00).",
        "of these 5 methods, on average, 4 below the majority vote, 4 below the best classifier alone (Decoupled), 3 below the best "
        "single expert.",
        "from 1 to 4 experts it rises with 4 of them and falls with 1; the change is between -8.00 (RS) and +10.00 (CE Vanilla).",
    ]


def test_few_methods_stay_columns_and_one_has_no_ranking(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (30.0, 60, 50), dataset="synthetic")
    assert ranking_to_markdown(blocks_of(tmp_path)) == "# Ranking\n"
    write_run(tmp_path, "Majority vote", 4, 0, (31.0, 60, 50), dataset="synthetic", metrics=REFERENCE)
    blocks = blocks_of(tmp_path)
    assert ("Base", "Experts") in markdown_rows(to_markdown(blocks)) and "Mean rank" not in to_text(blocks)
    assert "| 2 | Majority vote | 31.00 (2) | 2.0 |" in ranking_to_markdown(blocks)


def test_a_name_at_the_beginning_of_a_latex_row_is_no_argument_of_the_row_before(tmp_path):
    for i in range(6):
        write_run(tmp_path, f"[{i}]*", 4, 0, (30.0 + i, 60, 50), dataset="synthetic", loss__base=None)
    assert not [line for line in to_latex(blocks_of(tmp_path)).splitlines() if line.startswith(("[", "*"))]


def test_the_figure_of_the_ranking_has_a_point_per_entry_and_number_of_experts(many):
    (block,) = blocks_of(many)
    figure = ranking(block)
    error, regret = figure.axes
    names = [text.get_text() for text in error.get_yticklabels()]
    assert names[0] == "Any expert right" and names[-1] == "MAE" and len(names) == 11
    points = [point.lines[0].get_xydata()[0] for point in error.containers]
    at_one = {y: x for x, y in points[:11]}
    assert at_one[names.index("RS")] == 26.5 and len(at_one) == 11
    assert regret.get_xlabel() == "Regret (%)"


def test_the_experiment_names_every_loss_and_system():
    sweeper = experiment().hydra.sweeper
    named = {key: set() for key in ("loss", "system")}
    for grid in sweeper.grids:
        for key in named:
            named[key] |= {value.strip() for value in str(grid.get(key, "none")).split(",")}
    assert named["loss"] - {"none"} == set(LOSSES) - {"css", "liu"}
    assert named["system"] == set(SYSTEMS)


@pytest.mark.slow
def test_all_methods_run_and_are_ranked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = ["dataset.num_train=160", "dataset.num_test=60", "trainer.epochs=1", "trainer.batch_size=32"]
    command = ["train", "-m", "experiment=all_methods", *tiny, "experts.num=2", "seed=0", "verbose=false"]
    main(command)
    assert "0 failed" in capsys.readouterr().out
    cells = len(list(Path("outputs").glob("*/*/result.json")))
    assert cells >= len(LOSSES) - 2 + len(SYSTEMS) - 1
    assert describe(Path("outputs")).splitlines()[1].strip() == f"{cells} finished #"
    write_report(["outputs"], tmp_path / "report")
    with open(tmp_path / "report" / "ranking.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "method" and not row["num_experts"]]
    assert len(rows) == 2 * cells == 2 * len({row["entry"] for row in rows})  # by system error and by regret
    assert len(list(tmp_path.glob("report/figures/*/ranking.png"))) == 1
    assert "Best single expert" in (tmp_path / "report" / "index.html").read_text()
