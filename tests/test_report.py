"""The report against a set of results made by hand, entry by entry."""

import csv
import json
import math
import shutil
import subprocess
import sys

import pytest
import yaml
from matplotlib.colors import to_hex
from PIL import Image

from l2d.errors import UserError
from l2d.report import load_runs, paired_differences, summarize
from l2d.report.cli import main, write_report
from l2d.report.figures import deferred_to, overview
from l2d.report.render import finding, to_latex, to_markdown, to_text
from l2d.report.statistics import t_quantile
from l2d.report.tables import load_published, repeated


def write_run(
    root, loss, num, seed, values=None, status="finished", dataset="cifar100", experts="animal", bayes=None, **more
):
    """A run's folder as l2d-train leaves it; values are system error, coverage, classifier accuracy. Keys of `more` are
    config keys with `__` for the dot; status None leaves no result.json."""
    formulation, _, base = loss.rpartition("_")
    config = {
        "experts": {"_target_": "l2d.experts.disjoint", "name": experts, "num": num},
        "backbone": {"_target_": "l2d.models.wide_resnet", "name": "wrn28"},
        "loss": {
            "_target_": "l2d.losses.DeferralLoss",
            "name": loss,
            "formulation": formulation or "vanilla",
            "base": base,
        },
        "optim": {"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.1},
        "trainer": {"epochs": 2, "device": "auto"},
        "logger": {"name": "csv"},
        "dataset": {"_target_": f"l2d.data.{dataset}", "name": dataset},
        "seed": seed,
    }
    for key, value in more.items():
        group, _, name = key.partition("__")
        config[group][name] = value
    folder = root / f"{loss}-J{num}-seed{seed}-{len(list(root.iterdir())) if root.exists() else 0}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.csv").write_text("epoch,loss,system_error\n1,2.5,\n" + ("2,1.5,20\n" if values else ""))
    metrics = dict(zip(("system_error", "coverage", "classifier_accuracy"), values or (), strict=bool(values)))
    result = {"status": status, "seed": seed, "bayes": bayes, "versions": {"l2d": "0"}, "fingerprint": "0123abcd"}
    result |= {"metrics": {**metrics, "deferred_to": [3.0] + [1.0] * (num - 1)}} if values else {}
    result |= {"error": "The disk is full."} if status == "failed" else {}
    if status:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


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


def cell_of(cells, base, num, method):
    (found,) = cells[(cells.base == base) & (cells.num_experts == num) & (cells.method == method)].itertuples()
    return found


def test_a_row_per_run_with_its_choices_status_and_epoch(outputs):
    runs = load_runs(outputs)
    assert len(runs) == 14
    assert runs.groupby("status").size().to_dict() == {"failed": 4, "finished": 8, "interrupted": 1, "partial": 1}
    one = runs[(runs.loss == "picce_ce") & (runs.num_experts == 4) & (runs.seed == 2)].iloc[0]
    assert (one.dataset, one.experts, one.base, one.method, one.backbone) == (
        "cifar100",
        "animal",
        "ce",
        "picce",
        "wrn28",
    )
    assert (one.system_error, one.coverage, one.classifier_accuracy, one.epoch, one.epochs) == (18.6, 77, 71, 2, 2)
    begun = runs[runs.status == "partial"].iloc[0]
    assert begun.epoch == 1 and math.isnan(begun.system_error) and len(begun.fingerprint) == 8
    assert set(runs[runs.status == "failed"].error) == {"The disk is full."}


def test_means_deviations_and_published_differences(outputs):
    cells = summarize(load_runs(outputs))
    vanilla, picce = (cell_of(cells, "ce", 4, method) for method in ("vanilla", "picce"))
    assert (vanilla.n, vanilla.seeds, vanilla.state) == (3, 3, "complete")
    assert vanilla.system_error == pytest.approx(18.5) and vanilla.system_error_std == pytest.approx(0.5)
    assert picce.system_error == pytest.approx(18.3) and picce.system_error_std == pytest.approx(math.sqrt(0.07))
    assert vanilla.system_error_published == 18.48 and vanilla.system_error_difference == pytest.approx(0.02)
    assert picce.coverage_published == 77.5 and picce.coverage_difference == pytest.approx(-0.5)
    # 18.5 against 18.3; 75 against 77; 71 against 71, where neither is better
    assert (vanilla.system_error_better, picce.system_error_better) == (False, True)
    assert (vanilla.coverage_better, picce.coverage_better) == (False, True)
    assert (vanilla.classifier_accuracy_better, picce.classifier_accuracy_better) == (False, False)


def test_missing_failed_and_partial_cells_are_said_to_be_so(outputs):
    cells = summarize(load_runs(outputs))
    states = {(c.base, c.num_experts, c.method): (c.state, c.n) for c in cells.itertuples()}
    expected = {
        **{
            (base, num, method): ("missing", 0)
            for base in ("ce", "ova")
            for num in (4, 8, 12, 16, 20)
            for method in ("vanilla", "picce")
        },
        ("ce", 4, "vanilla"): ("complete", 3),
        ("ce", 4, "picce"): ("complete", 3),
        ("ce", 8, "vanilla"): ("partial", 2),
        ("ce", 8, "picce"): ("failed", 0),
        ("ce", 12, "vanilla"): ("unfinished", 0),
        ("ce", 12, "picce"): ("unfinished", 0),
    }
    assert states == expected
    assert cell_of(cells, "ce", 8, "vanilla").system_error == 21.0


def test_markdown_entry_by_entry(outputs):
    lines = to_markdown(summarize(load_runs(outputs))).splitlines()
    rows = {
        tuple(cells[:2]): cells[2:]
        for line in lines
        if line.startswith("|")
        for cells in [[c.strip() for c in line.split("|")[1:-1]]]
    }
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
    assert len(rows) == 12 and any("Table 1" in line for line in lines if line.startswith("## "))


def test_one_seed_shows_no_deviation_and_other_data_no_published_number(tmp_path):
    write_run(tmp_path, "ce", 1, 0, (30.0, 60, 50), dataset="synthetic", experts="specialist")
    write_run(tmp_path, "pice_ce", 1, 0, (29.0, 61, 51), dataset="synthetic", experts="specialist")
    text = to_markdown(summarize(load_runs(tmp_path)))
    assert (
        "| CE | 1 | 30.00 | 60.00 | 50.00 | 1 | missing | missing | missing | 0 | 29.00 | 61.00 | 51.00 | 1 |" in text
    )
    assert "ublished" not in text and "[" not in text


def test_text_for_the_terminal_and_the_finding(tmp_path):
    for num, vanilla, picce, pice in ((1, 30.0, 30.0, 30.0), (8, 34.5, 31.25, 28.25)):
        for loss, error in (("ova", vanilla), ("picce_ova", picce), ("pice_ova", pice)):
            best = {"system_error": 20.5 - num, "coverage": 80, "classifier_accuracy": 75}
            write_run(tmp_path, loss, num, 0, (error, 60, 50), dataset="synthetic", experts="specialist", bayes=best)
    cells = summarize(load_runs(tmp_path))
    lines = [line.split("  ") for line in to_text(cells).splitlines()]
    rows = [[part.strip() for part in line if part.strip()] for line in lines]
    assert rows[2] == ["system error", "OvA Vanilla", "OvA PiCCE", "OvA PiCE", "best"]
    assert rows[3] == ["1 expert", "30.00", "30.00", "30.00", "19.50"]
    assert rows[4] == ["8 experts", "34.50", "31.25", "28.25", "12.50"]
    assert finding(cells) == (
        "synthetic, specialist experts, OvA: from 1 to 8 experts vanilla's system error rose by 4.50 to 34.50 and "
        "PiCCE's rose by 1.25 to 31.25; with 8, PiCCE's is 3.25 below vanilla's and PiCE's 3.00 below PiCCE's."
    )


def test_the_finding_says_when_seeds_are_missing_and_needs_two_counts(tmp_path):
    for loss, error in (("ce", 20.0), ("picce_ce", 20.0)):
        write_run(tmp_path, loss, 4, 0, (error, 60, 50))
    assert finding(summarize(load_runs(tmp_path))) == ""
    for seed, loss, error in ((0, "ce", 25.0), (0, "picce_ce", 19.0), (1, "ce", 27.0)):
        write_run(tmp_path, loss, 8, seed, (error, 60, 50))
    cells = summarize(load_runs(tmp_path))
    assert not cells.system_error_better.any()
    assert finding(cells) == (
        "cifar100, animal experts, CE: from 4 to 8 experts vanilla's system error rose by 6.00 to 26.00 and "
        "PiCCE's fell by 1.00 to 19.00; with 8, PiCCE's is 7.00 below vanilla's (some seeds are missing)."
    )


def test_runs_that_differ_in_a_setting_are_never_averaged(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (10.0, 50, 50))
    write_run(tmp_path, "ce", 4, 1, (20.0, 50, 50), trainer__epochs=200)
    write_run(
        tmp_path,
        "ce",
        4,
        2,
        (30.0, 50, 50),
        trainer__epochs=2.0,
        trainer__device="cpu",
        logger__name="wandb",
        dataset__root="elsewhere",
    )
    cells = summarize(load_runs(tmp_path))
    done = cells[cells.n > 0].set_index("setting")
    assert done.system_error.to_dict() == {"trainer.epochs=2": 20.0, "trainer.epochs=200": 20.0}
    assert done.n.to_dict() == {"trainer.epochs=2": 2, "trainer.epochs=200": 1}
    assert "## cifar100, animal experts (trainer.epochs=200)" in to_markdown(cells)


def test_a_loss_of_ones_own_has_its_own_columns(tmp_path):
    for weight in (0.5, 2.0):
        folder = write_run(tmp_path, "ce", 4, 0, (10 * weight, 50, 50), dataset="synthetic")
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["loss"] = {"_target_": "mine.Loss", "name": "mine", "weight": weight}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    cells = summarize(load_runs(tmp_path))
    assert {c.method: c.system_error for c in cells.itertuples() if c.n} == {"mine weight=0.5": 5, "mine weight=2": 20}
    assert "mine weight=2 Err" in to_markdown(cells)


def test_a_seed_run_twice_counts_once_and_is_named(tmp_path, capsys):
    write_run(tmp_path / "a", "ce", 4, 0, status="failed")
    write_run(tmp_path / "a", "ce", 4, 0, (10.0, 50, 50))
    write_run(tmp_path / "b", "ce", 4, 0, (10.0, 50, 50))
    runs = load_runs(tmp_path / "a", tmp_path)
    assert len(runs) == 3
    cell = cell_of(summarize(runs), "ce", 4, "vanilla")
    assert (cell.n, cell.seeds, cell.state) == (1, 1, "complete")
    repeated(runs)
    failed, copy = capsys.readouterr().err.splitlines()
    assert "/a/ce-J4-seed0-0 repeats another run" in failed and "/b/ce-J4-seed0-0 repeats another run" in copy


def test_metrics_of_an_unfinished_run_do_not_count(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (10.0, 50, 50), status="interrupted")
    write_run(tmp_path, "ce", 4, 1, (30.0, 50, 50))
    runs = load_runs(tmp_path)
    assert runs.system_error.isna().sum() == 1
    cell = cell_of(summarize(runs), "ce", 4, "vanilla")
    assert (cell.n, cell.state, cell.system_error) == (1, "partial", 30.0)


@pytest.mark.parametrize("text", ['{"status": "fini', "[]", '{"status": "finished", "metrics": {"coverage": 3}}', "{}"])
def test_a_broken_result_is_named_and_the_others_are_kept(outputs, capsys, text):
    broken = write_run(outputs, "ova", 4, 0, (1.0, 1, 1)) / "result.json"
    broken.write_text(text)
    assert len(load_runs(outputs)) == 14
    (line,) = capsys.readouterr().err.splitlines()
    assert str(broken) in line and "left out" in line


def test_what_a_run_keeps_below_its_folder_is_no_run(tmp_path, capsys):
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
    rows = published.set_index(["dataset", "experts", "base", "num_experts", "method"])
    assert rows.system_error["imagenet_dogs", "dog", "ova", 20, "vanilla"] == 66.56
    assert rows.coverage["micebone", "human", "ce", 2, "picce"] == 69.28
    assert rows.system_error["cifar100", "animal_varying", "ce", 16, "vanilla"] == 22.46


@pytest.mark.parametrize(
    ("freedom", "probability", "value"),
    [(1, 0.975, 12.706), (2, 0.975, 4.303), (3, 0.975, 3.182), (4, 0.975, 2.776), (9, 0.975, 2.262), (30, 0.975, 2.042),
     (120, 0.975, 1.980), (1, 0.95, 6.314), (5, 0.995, 4.032)],
)  # fmt: skip
def test_t_quantiles_are_those_of_the_printed_table(freedom, probability, value):
    assert t_quantile(probability, freedom) == pytest.approx(value, abs=5e-4)


def test_paired_difference_over_the_shared_seeds(tmp_path):
    # differences -1, -2, -3 on seeds 0..2: mean -2, std 1, half width 4.3027 / sqrt(3); seed 3 has no partner
    for seed, vanilla, picce in ((0, 20.0, 19.0), (1, 24.0, 22.0), (2, 22.0, 19.0)):
        write_run(tmp_path, "ce", 4, seed, (vanilla, 50, 50))
        write_run(tmp_path, "picce_ce", 4, seed, (picce, 50, 50))
    write_run(tmp_path, "ce", 4, 3, (90.0, 50, 50))
    write_run(tmp_path, "picce_ce", 4, 3, status="failed")
    write_run(tmp_path, "ova", 4, 0, (20.0, 50, 50))
    write_run(tmp_path, "picce_ova", 4, 0, (21.0, 50, 50))
    table = paired_differences(load_runs(tmp_path)).set_index(["base", "metric"])
    row = table.loc["ce", "system_error"]
    assert row.n == 3 and row.difference == pytest.approx(-2)
    assert (row.low, row.high) == (pytest.approx(-2 - 2.4841, abs=1e-3), pytest.approx(-2 + 2.4841, abs=1e-3))
    assert table.loc["ova", "system_error"].difference == 1 and math.isnan(table.loc["ova", "system_error"].low)


def test_latex_compiles(outputs, tmp_path):
    write_run(outputs, "ce", 4, 0, (50.0, 50, 50), dataset="my_data & 100%", experts="a^b~c#{}\\$")
    text = to_latex(summarize(load_runs(outputs)))
    assert r"\textbf{18.30 $\pm$ 0.26} {\footnotesize [18.32, -0.02]}" in text
    assert text.count(r"\toprule") == 2 == text.count(r"\bottomrule")
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
                write_run(
                    tmp_path,
                    loss,
                    num,
                    seed,
                    (error + seed, 60, 50),
                    dataset="synthetic",
                    bayes={"system_error": 20.0 - num},
                )
    ax = overview(summarize(load_runs(tmp_path))).axes[0]
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert set(lines) == {"CE Vanilla", "CE PiCCE", "OvA PiCE", "Best achievable"}
    assert list(lines["CE PiCCE"].get_xdata()) == [1, 8] and list(lines["CE PiCCE"].get_ydata()) == [30.5, 31.5]
    assert list(lines["Best achievable"].get_ydata()) == [19, 12]
    assert lines["CE Vanilla"].get_linestyle() == "-" and lines["CE PiCCE"].get_linestyle() == "--"
    assert to_hex(lines["CE Vanilla"].get_color()) == to_hex(lines["CE PiCCE"].get_color())
    assert to_hex(lines["OvA PiCE"].get_color()) != to_hex(lines["CE PiCCE"].get_color())


def test_who_is_deferred_to_is_a_share_of_what_is_deferred(tmp_path):
    write_run(tmp_path, "ce", 4, 0, (30.0, 60, 50))  # deferred_to 3, 1, 1, 1
    image = deferred_to(load_runs(tmp_path), [("ce", "vanilla")]).axes[0].get_images()[0].get_array()
    assert image.tolist() == [pytest.approx([50, 100 / 6, 100 / 6, 100 / 6])]


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
    (one,) = (c for c in cells if (c["base"], c["num_experts"], c["method"]) == ("ce", "4", "vanilla"))
    assert float(one["system_error_difference"]) == pytest.approx(0.02)


def test_a_report_leaves_no_figure_of_an_older_one_and_nothing_else_is_touched(tmp_path):
    out, mine = tmp_path / "report", tmp_path / "report" / "figures" / "mine.png"
    for experts in ("animal", "specialist"):
        write_run(tmp_path / experts, "ce", 4, 0, (30.0, 60, 50), experts=experts)
    write_report([str(tmp_path / "animal"), str(tmp_path / "specialist")], out)
    mine.write_text("the user's own")
    assert len(list(out.glob("figures/*/system_error.png"))) == 2
    write_report([str(tmp_path / "specialist")], out)
    assert [path.name for path in out.glob("figures/*-*")] == ["1-cifar100-specialist-experts"] and mine.exists()


def test_only_failures_still_make_a_report(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "outputs", "ce", 4, 0, status="failed", dataset="synthetic")
    monkeypatch.setattr(sys, "argv", ["l2d-report", str(tmp_path / "outputs"), "--out", str(tmp_path / "report")])
    main()
    assert "failed" in capsys.readouterr().out and (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize("case", ["absent", "empty", "out"])
def test_mistakes_end_in_a_sentence_and_exit_code_2(outputs, tmp_path, monkeypatch, capsys, case):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    folder, out = {"absent": ("absent", "r"), "empty": ("empty", "r"), "out": ("outputs", "file")}[case]
    monkeypatch.setattr(sys, "argv", ["l2d-report", str(tmp_path / folder), "--out", str(tmp_path / out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
