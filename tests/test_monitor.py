"""l2d monitor: its numbers against logs counted by hand, what it refuses, and its exit codes."""

import csv
import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from l2d.cli import main
from l2d.data.tables import read_frame
from l2d.monitor.alert import alerts, thresholds
from l2d.monitor.measure import SYSTEM, Drift, adjusted, chi_square, measure
from l2d.monitor.read import read_log

HEADER = "id,decision,asked,predicted,probability,expert,expert_accuracy,gain,error"
# Two parts of four cases. ada is asked about a, b and g, bob about f; h could not be read.
DECISIONS = """\
a,ada,True,cat,0.4,ada,0.9,0.5,
b,ada,True,dog,0.5,ada,0.7,0.2,
c,cat,False,cat,0.9,bob,0.6,-0.3,
d,dog,False,dog,0.7,ada,0.5,-0.2,
e,dog,False,dog,0.6,ada,0.5,-0.1,
f,bob,True,dog,0.5,bob,0.8,0.3,
g,ada,True,cat,0.3,ada,0.6,0.3,
h,,,,,,,,no image
i,cat,False,cat,0.8,,,,
"""
ANSWERS = """\
id,answer,label
a,cat,cat
b,dog,cat
c,,cat
d,,cat
f,,dog
g,cat,
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    """`log(decisions, answers, parts)` reads such files."""
    monkeypatch.chdir(tmp_path)

    def read(decisions=DECISIONS, answers=ANSWERS, parts=2):
        Path("decisions.csv").write_text(f"{HEADER}\n{decisions}")
        Path("answers.csv").write_text(answers)
        return read_log(Path("decisions.csv"), Path("answers.csv"), parts)

    return read


@pytest.fixture
def cli(log, command):
    """`cli(*words)` runs l2d monitor on the files and returns (exit code, stdout, stderr)."""
    log()
    return partial(command, "monitor", "decisions.csv", "answers.csv", "--parts", "2")


def shares(rows) -> dict:
    return {(row.who, row.part): (round(row.share, 2), row.cases) for row in rows}


def test_load_and_missing_answers_are_counted_by_part(log):
    measured = measure(log())
    load = shares(measured.load)
    assert load[SYSTEM, 0] == (50, 4) and load[SYSTEM, 1] == (50, 4) and load[SYSTEM, None] == (50, 8)
    assert load["ada", 0] == (50, 4) and load["ada", 1] == (25, 4) and load["bob", 1] == (25, 4)
    missing = shares(measured.missing)
    assert missing["all", None] == (25, 4) and missing["bob", 1] == (100, 1) and missing["ada", None] == (0, 3)
    assert ("bob", 0) not in missing  # nobody asked
    assert log().unreadable == 1


def test_beliefs_are_compared_with_the_truth_where_it_is_known(log):
    measured = measure(log())
    alone, ada = measured.beliefs  # bob did not answer
    assert (alone.who, alone.cases, alone.realised) == (SYSTEM, 2, 50) and alone.believed == pytest.approx(80)
    assert (ada.who, ada.cases, ada.realised) == ("ada", 2, 50) and ada.believed == pytest.approx(80)
    assert (measured.system.cases, measured.system.realised) == (4, 50)
    # Wilson's interval of 1 in 2, from its definition: |p - 1/2| = z sqrt(p (1 - p) / 2)
    for p in (ada.low / 100, ada.high / 100):
        assert abs(p - 0.5) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / 2), rel=1e-5)


def test_of_those_who_are_not_the_best_to_ask_nothing_was_believed(log):
    """The decision of a rule with limits, and a committee: expert_accuracy is that of the one who is worth most."""
    decisions = "a,bob,True,cat,0.4,ada,0.9,0.5,\nb,ada; bob,True,cat,0.4,ada,0.9,0.5,\n"
    answers = "id,expert,answer,label\na,bob,cat,cat\nb,ada,dog,cat\nb,bob,cat,cat\n"
    found = log(decisions, answers)
    assert found.questions[["id", "expert"]].to_numpy().tolist() == [["a", "bob"], ["b", "ada"], ["b", "bob"]]
    measured = measure(found)
    (ada,) = measured.beliefs
    assert (ada.who, ada.cases, ada.realised) == ("ada", 1, 0) and measured.system is None


def test_chi_square_is_that_of_the_table():
    before, after = pd.Series(["x"] * 30 + ["y"] * 10), pd.Series(["x"] * 20 + ["y"] * 20)
    # expected 25, 15 in both: 2 (25/25 + 25/15) = 16/3, with one degree of freedom p = erfc(sqrt(chi2 / 2))
    assert chi_square(before, after) == pytest.approx(math.erfc(math.sqrt(16 / 3 / 2)))
    rare = pd.Series(["u", "v", "w"])  # together still too few: they join the rarest that is not
    assert chi_square(pd.concat([before, rare]), after) == pytest.approx(
        chi_square(pd.concat([before, pd.Series(["y"] * 3)]), after)
    )
    assert chi_square(before[:20], after[:20]) is None  # all the same
    assert chi_square(before[:0], after) is None


def test_p_values_are_small_in_five_of_a_hundred_logs_without_drift_and_nearly_all_with_it(log):
    rng, low = np.random.default_rng(0), {"same": 0, "other": 0}
    for kind, shift in (("same", 0.0), ("other", 0.25)):
        for _ in range(100):
            before, after = rng.random(150) < 0.4, rng.random(150) < 0.4 + shift
            low[kind] += chi_square(pd.Series(before), pd.Series(after)) < 0.05
    assert 1 <= low["same"] <= 11 and low["other"] > 90


def test_holm_multiplies_the_smallest_by_the_number_of_tests():
    tests = [Drift(name, "", 0, p) for name, p in zip("abcde", (0.01, 0.04, 0.03, 0.005, None), strict=True)]
    assert [test.adjusted for test in adjusted(tests)] == [
        pytest.approx(p) if p else None for p in (0.03, 0.06, 0.06, 0.02, None)
    ]


def test_drift_of_shares_and_of_probabilities_is_found(log):
    rows = []
    for i in range(200):
        late = i >= 100
        probability = (0.5 if late else 0.8) + 0.001 * (i % 100)
        decision, asked = ("ada", "True") if i % 4 < 1 + 2 * late else ("cat", "False")
        rows.append(f"{i},{decision},{asked},{'cat' if i % 2 else 'dog'},{probability},ada,0.7,0.1,")
    measured = measure(log("\n".join(rows) + "\n", "id,label\n0,cat\n", parts=4))
    by_name = {test.what: test for test in measured.drift}
    assert by_name["who is asked"].p < 1e-4 and by_name["probability of the predicted class"].p < 1e-4
    assert by_name["predicted classes"].p == 1 and by_name["gain of asking"].p == 1
    assert {test.cases for test in measured.drift} == {100}
    said = alerts(measured, thresholds([]))
    assert any("who is asked" in sentence for sentence in said) and not any(
        "predicted classes" in sentence for sentence in said
    )


@pytest.mark.parametrize("asked", [True, False])
def test_all_or_none_of_the_cases_may_be_deferred(cli, asked):
    decision = "ada,True" if asked else "cat,False"
    lines = [f"{i},{decision},cat,0.{i + 1},ada,0.7,0.1," for i in range(8)]
    Path("decisions.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    Path("answers.csv").write_text("id,answer,label\n0," + ("cat" if asked else "") + ",cat\n")
    code, out, err = cli("--out", "watch.csv", "--out", "watch.png", "--alert", "missing=100", "gap=100")
    assert (code, err) == (0, "") and f"8 cases, {8 * asked} of them deferred" in out
    assert ("Nobody was asked." in out) == (not asked)


def test_without_any_truth_the_rest_is_still_watched(cli):
    Path("answers.csv").write_text("id,answer\na,cat\n")
    code, out, err = cli("--out", "watch.png")
    assert (code, err) == (0, "") and "the truth is known of no case" in out and "75.0" in out


def test_every_kind_of_table_gives_the_same(log, cli):
    plain = cli()
    frame = pd.read_csv("decisions.csv")
    frame.to_parquet("d.parquet")
    frame.to_json("d.jsonl", orient="records", lines=True)
    answers = pd.read_csv("answers.csv")
    answers.to_parquet("a.parquet")
    for decisions in ("d.parquet", "d.jsonl"):
        found = measure(read_log(Path(decisions), Path("a.parquet"), 2))
        assert repr(found) == repr(measure(log()))
    assert (
        plain[0] == 0
        and "8 cases, 4 of them deferred; the truth is known of 5. 1 inputs could not be read." in plain[1]
    )


def test_a_name_may_hold_what_unicode_calls_the_end_of_a_line(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"id": "a\u2028b"}\n{"id": "c"}\n', encoding="utf-8")
    assert list(read_frame(tmp_path / "d.jsonl")["id"]) == ["a\u2028b", "c"]


def test_class_names_stay_what_they_are(log):
    """Numbers with zeros in front, a class called NA, and numbers that a spreadsheet wrote with a decimal point."""
    decisions = "a,007,False,007,0.9,ada,0.5,-0.4,\nb,NA,False,NA,0.9,ada,0.5,-0.4,\nc,ada,True,3,0.4,ada,0.9,0.5,\n"
    measured = measure(log(decisions, "id,answer,label\na,,007\nb,,NA\nc,3.0,3\n"))
    assert [(row.who, row.realised) for row in measured.beliefs] == [(SYSTEM, 100), ("ada", 100)]


def test_a_name_that_nobody_knows_is_pointed_out(log, capfd):
    log(answers="id,answer,label\na,Cat,cat\n")
    assert "1 answers" in (err := capfd.readouterr().err) and "Cat" in err


@pytest.mark.parametrize(
    ("decisions", "answers", "named"),
    [
        (None, "id,answer,lable\na,cat,cat\n", ["answers.csv", "lable"]),
        (None, "name,answer\na,cat\n", ["answers.csv", "name"]),
        (None, "id\na\n", ["answers.csv", "answer"]),
        (None, "id,answer\nphotos/a,cat\n", ["photos/a", "decisions.csv"]),
        (None, "id,answer\na,cat\na,dog\n", ["two answers of ada to a"]),
        (None, "id,label\na,cat\na,dog\n", ["two labels of a"]),
        (None, "id,answer\nc,cat\n", ["answer to c", "nobody was asked"]),
        (None, "id,expert,answer\na,bob,cat\n", ["bob", "not asked"]),
        ("a,ada; bob,True,cat,0.4,ada,0.9,0.5,\nb,cat,False,cat,0.4,ada,0.9,0.5,\n", "id,answer\na,cat\n", ["ada, bob", "expert"]),
        ("a,ada,perhaps,cat,0.4,ada,0.9,0.5,\n", None, ["asked=perhaps"]),
        ("a,ada,True,cat,much,ada,0.9,0.5,\n", None, ["probability=much"]),
        ("a,ada,True,cat,0.4,ada,0.9,0.5,\n" * 2, None, ["id a twice"]),
        ("a,ada,True,cat,0.4,ada,0.9,0.5,\n", "id,label\n", ["1 cases", "2 parts"]),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused_and_nothing_is_written(cli, decisions, answers, named):
    if decisions is not None:
        Path("decisions.csv").write_text(f"{HEADER}\n{decisions}")
    if answers is not None:
        Path("answers.csv").write_text(answers)
    code, out, err = cli("--out", "watch.csv", "--out", "watch.png")
    assert code == 2 and out == "" and err.startswith("l2d: ") and err.count("\n") == 1, err
    assert all(name in err for name in named), err
    assert sorted(path.name for path in Path().iterdir()) == ["answers.csv", "decisions.csv"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--out", "watch.xlsx"], "watch.xlsx"),
        (["--out", "nowhere/watch.csv"], "nowhere"),
        (["--out", "folder.csv"], "folder.csv cannot be written (it is a folder)"),
        (["--alert", "speed=3"], "speed=3"),
        (["--alert", "gap=much"], "gap=much"),
        (["--parts", "1"], "--parts 1"),
    ],
)
def test_words_that_mean_nothing_are_refused(cli, words, named):
    Path("folder.csv").mkdir()
    code, out, err = cli(*words)
    assert code == 2 and out == "" and named in err and err.count("\n") == 1


def test_a_column_of_the_decisions_that_is_not_there_is_named(cli):
    Path("decisions.csv").write_text("id,decision\na,ada\n")
    code, _, err = cli()
    assert code == 2 and "decisions.csv has no column asked, predicted" in err


def test_what_is_printed_is_also_written(cli):
    code, out, err = cli("--out", "watch.csv", "--out", "watch.png")
    assert (code, err) == (0, "") and "ada" in out and "25.0" in out
    with open("watch.csv") as file:
        rows = {(row["measure"], row["who"], row["part"]): row for row in csv.DictReader(file)}
    assert float(rows["load", "ada", "2"]["value"]) == 25 and float(rows["missing", "all", ""]["value"]) == 25
    assert float(rows["realised", "ada", ""]["value"]) == 50 < float(rows["believed", "ada", ""]["value"])
    assert ("drift", "who is asked", "") in rows
    image = Image.open("watch.png").convert("RGB")
    assert image.width > 1500 and len(image.getcolors(1 << 24)) > 50


def test_the_exit_code_is_1_where_something_is_outside_its_limits(cli):
    code, out, _ = cli("--alert", "missing=30", "load=60")
    assert code == 1 and out.count("Alert: ") == 1 and "bob: 100.0 % of 1 questions" in out
    code, out, _ = cli("--alert", "missing=100", "load=40")
    assert code == 1 and "ada: asked about 50.0 % of the 4 cases of part 1." in out
    code, out, _ = cli("--alert", "missing=100", "gap=100")
    assert code == 0 and "Nothing is outside its limits." in out


def test_decisions_of_a_system_can_be_watched(photo_run, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    run = photo_run("loss=ova")
    images = run.parents[3] / "images"
    with open(images / "labels.csv") as file:
        rows = {f"{images}/{row['path']}": row for row in csv.DictReader(file)}
    main(["predict", str(run), str(images), "--out", "decisions.jsonl"])
    decisions = [json.loads(line) for line in Path("decisions.jsonl").read_text().splitlines()]
    lines = [
        f"{row['id']},{rows[row['id']][row['decision']] if row['asked'] else ''},{rows[row['id']]['label']}"
        for row in decisions
    ]
    Path("answers.csv").write_text("\n".join(["id,answer,label", *lines]) + "\n")
    main(["monitor", "decisions.jsonl", "answers.csv", "--parts", "3"])
    out = capfd.readouterr().out
    asked = sum(row["asked"] for row in decisions)
    assert f"33 cases, {asked} of them deferred; the truth is known of 33." in out and 0 < asked < 33
