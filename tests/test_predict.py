"""l2d predict: a row for every input, whatever names it; damaged ones have their error; mistakes are a sentence."""

import csv
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import refused
from PIL import Image

import l2d
from l2d.completion import candidates
from l2d.errors import UserError
from l2d.inference import COLUMNS, Predictions
from l2d.inference.write import write


@pytest.fixture
def run(photo_run, tmp_path, monkeypatch) -> Path:
    """A finished run, from a folder with its nine test images in photos/; they are called 24.jpg to 32.jpg."""
    monkeypatch.chdir(tmp_path)
    folder = photo_run("loss=ova")
    shutil.copytree(
        folder.parents[3] / "images", "photos", ignore=lambda _, names: [n for n in names if n < "24" or n[0] == "l"]
    )
    return folder


@pytest.fixture
def cli(command):
    """`cli(*arguments)` runs l2d predict and returns (exit code, stdout, stderr)."""
    return partial(command, "predict")


def rows(answer) -> list[dict]:
    """The rows of standard output, where all went well and nothing else was said."""
    code, out, err = answer
    assert (code, err) == (0, ""), answer
    return list(csv.DictReader(io.StringIO(out)))


def test_the_rows_are_those_of_python(run, cli):
    said, table = rows(cli(run, "photos")), l2d.load(run).predict("photos")
    assert list(said[0]) == list(COLUMNS) and len(said) == 9
    for row, ours in zip(said, table.rows(), strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in ours.items()}


def test_inputs_may_be_named_in_any_way(run, cli):
    """A folder with folders in it, files, a list, tables; the rows are in the order in which they are named."""
    images = sorted(Path("photos").iterdir())
    Path("photos/deeper").mkdir()
    shutil.move(images[8], "photos/deeper/a.JPG")
    Path("photos/notes.txt").write_text("no image")
    Path("photos/.hidden.jpg").write_text("no image")
    whole = [*map(str, images[:8]), "photos/deeper/a.JPG"]
    assert [row["id"] for row in rows(cli(run, "photos"))] == whole
    by_name = {row["id"]: row["decision"] for row in rows(cli(run, "photos"))}
    Path("list.txt").write_text(f"\ufeff{images[3]}\r\n\n{images[1]}\n")
    Path("photos/table.csv").write_text("note,path\nx,25.jpg\ny,deeper/a.JPG\n")
    Path("photos/table.json").write_text(json.dumps([{"path": "26.jpg"}]))
    named = rows(
        cli(run, images[0], "@list.txt", "photos/table.csv", "photos/table.json", images[5], "--batch-size", "2")
    )
    assert [row["id"] for row in named] == [
        str(images[0]), str(images[3]), str(images[1]), "25.jpg", "deeper/a.JPG", "26.jpg", str(images[5])
    ]  # fmt: skip
    expected = [by_name[row["id"] if row["id"] in by_name else f"photos/{row['id']}"] for row in named]
    assert [row["decision"] for row in named] == expected
    np.savez("some.npz", x=np.stack([np.asarray(Image.open(images[0]))] * 2), ids=["p", "q"])
    assert [(row["id"], row["decision"]) for row in rows(cli(run, "some.npz"))] == [
        ("p", named[0]["decision"]), ("q", named[0]["decision"])
    ]  # fmt: skip


def test_every_kind_of_file_holds_the_same_table(run, cli):
    for ending in ("csv", "jsonl", "parquet"):
        assert cli(run, "photos", "--out", f"out.{ending}") == (0, "", "")
    frame = pd.read_csv("out.csv")
    pd.testing.assert_frame_equal(pd.read_json("out.jsonl", lines=True)[frame.columns], frame, check_dtype=False)
    parquet = pd.read_parquet("out.parquet")
    assert parquet["asked"].dtype == bool and parquet["error"].isna().all()
    pd.testing.assert_frame_equal(parquet, frame, check_dtype=False)
    assert sorted(os.listdir()) == ["out.csv", "out.jsonl", "out.parquet", "photos"]


def test_a_damaged_file_is_a_row_and_does_not_stop_the_rest(run, cli):
    Path("photos/25.jpg").write_bytes(Path("photos/25.jpg").read_bytes()[:300])
    Path("photos/27.jpg").write_text("<html>")
    Path("list.txt").write_text("photos/24.jpg\nphotos/nowhere.jpg\nphotos\n")
    os.mkfifo("photos/30.5.jpg")  # reading it would wait for ever
    for words in (["--batch-size", "1"], ["--batch-size", "100"], ["rule=assign", "rule.capacities=1"]):
        code, out, err = cli(run, "photos", "@list.txt", *words)
        said = {row["id"]: row for row in csv.DictReader(io.StringIO(out))}
        bad = ["photos/25.jpg", "photos/27.jpg", "photos/30.5.jpg", "photos/nowhere.jpg", "photos"]
        assert code == 0 and "5 of 13 inputs" in err and err.count("\n") == 1 and "photos/25.jpg" in err
        assert [name for name, row in said.items() if row["error"]] == bad
        for name in bad:
            assert name in said[name]["error"] and said[name]["decision"] == said[name]["asked"] == ""
        assert said["photos/24.jpg"]["decision"] and not said["photos/24.jpg"]["error"]


def test_names_that_are_not_utf8_are_escaped(run, cli):
    shutil.copy("photos/24.jpg", b"photos/\xff,\n.jpg")
    for out in ("out.csv", "out.jsonl", "out.parquet"):
        assert cli(run, "photos", "--out", out)[0] == 0
    read = (pd.read_csv("out.csv"), pd.read_json("out.jsonl", lines=True), pd.read_parquet("out.parquet"))
    assert all(frame["id"].tolist()[-1] == "photos/\\xff,\n.jpg" for frame in read)


def test_rules_costs_and_experts_are_chosen_as_in_an_evaluation(run, cli):
    free = rows(cli(run, "photos"))
    assert {row["asked"] for row in rows(cli(run, "photos", "experts.costs=2"))} == {"False"}
    alone = rows(cli(run, "photos", "rule.available=[bob]"))
    assert {row["expert"] for row in alone} == {"bob"} and {row["expert"] for row in free} != {"bob"}
    committee = rows(cli(run, "photos", "rule=committee", "rule.k=3", "rule.weighted=false"))
    assert [row["decision"] for row in committee if row["asked"] == "True"] == ["ada; bob; eve"] * sum(
        row["asked"] == "True" for row in free
    )
    Path("rota.csv").write_text("id,ada,bob,eve\n" + "".join(f"photos/{i}.jpg,0,{i % 2},0\n" for i in range(24, 40)))
    said = rows(cli(run, "photos", "rule.available=rota.csv"))
    assert [row["expert"] for row in said] == ["bob" if i % 2 else "" for i in range(24, 33)]
    Path("rota.csv").write_text("eve,bob,ada\n" + "".join(f"{i % 2},0,0\n" for i in range(24, 33)))
    said = rows(cli(run, "photos", "rule.available=rota.csv", "--batch-size", "2"))
    assert [row["expert"] for row in said] == ["eve" if i % 2 else "" for i in range(24, 33)]


def test_a_budget_is_that_of_the_held_out_data_of_the_run(run, cli, photo_run, capfd):
    asked = [
        sum(row["asked"] == "True" for row in rows(cli(run, "photos", "rule=budget", f"rule.defer_at_most={share}")))
        for share in (0, 50, 100)
    ]
    assert asked[0] == 0 and asked == sorted(asked)
    for words, named in (("held_out=0", "held_out=0"), ("record=none", "record=scores")):
        other = photo_run("loss=ova", words)
        capfd.readouterr()
        assert named in refused(cli(other, "photos", "rule=budget"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["photos", "--out", "a.txt"], "a.txt"),
        (["photos", "--out", "nowhere/a.csv"], "nowhere"),
        (["photos", "--out", "folder.csv"], "folder.csv"),
        (["photos", "--out", "/proc/a.csv"], "/proc/a.csv"),
        (["photos", "--batch-size", "0"], "--batch-size 0"),
        ([], "no inputs"),
        (["rule=best"], "no inputs"),
        (["nowhere"], "nowhere"),
        (["photos", "nowhere.jpg"], "nowhere.jpg"),
        (["@nowhere.txt"], "nowhere.txt"),
        (["empty"], "empty has no image files"),
        (["@empty.txt"], "@empty.txt has no image files"),
        (["notes.txt"], "@notes.txt"),
        (["notes.csv"], "no column path"),
        (["floats.npz"], "floats.npz: .*float64"),
        (["photos", "rule.available=[zoe]"], "zoe.*ada, bob, eve"),
        (["photos", "experts.costs=[1,2]"], "2 entries for 3 experts"),
        (["photos", "rule=caps", "rule.caps={zoe: 1}"], r"rule\.caps\.zoe=1"),
        (["photos", "rule.absence=0.1"], r"rule\.absence=0\.1"),
        (["photos", "rule=nothing"], "nothing"),
        (["photos", "rule.nothing=1"], "nothing"),
        (["photos", "loss=ce"], "loss=ce cannot be changed"),
        (["photos", "backbone.hidden=9"], r"backbone\.hidden=9 cannot be changed"),
        (["photos", "trust=maybe"], "trust=maybe"),
        (["photos", "trainer.device=tpu"], r"trainer\.device=tpu"),
    ],
)
def test_mistakes_are_a_sentence_and_leave_nothing_behind(run, cli, words, named):
    import re

    Path("empty").mkdir()
    Path("folder.csv").mkdir()
    Path("empty.txt").touch()
    Path("notes.txt").write_text("photos/24.jpg\n")
    Path("notes.csv").write_text("file\n24.jpg\n")
    np.savez("floats.npz", x=np.zeros((2, 40, 40, 3)))
    before = sorted(Path().rglob("*"))
    assert re.search(named, refused(cli(run, *words)))
    assert sorted(Path().rglob("*")) == before


def test_an_unfinished_run_is_refused(run, cli, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    result = json.loads((copy / "result.json").read_text())
    (copy / "result.json").write_text(json.dumps({**result, "status": "interrupted"}))
    assert "interrupted" in refused(cli(copy, "photos", "--out", "a.csv")) and not Path("a.csv").exists()


def test_what_fails_on_the_way_leaves_the_old_file(run, cli):
    Path("a.csv").write_text("before")
    Path("rota.csv").write_text("ada,bob,eve\n1,1,1\n1,1,1\n")
    for more in ([], ["rule=assign", "rule.capacities=2"]):
        words = ("photos", "rule.available=rota.csv", "--out", "a.csv", "--batch-size", "1", *more)
        assert "2 rows" in refused(cli(run, *words))
    Path("rota.csv").write_text("ada,bob,eve\n" + "1,1,1\n" * 10)
    assert "10 rows for 9 inputs" in refused(cli(run, "photos", "rule.available=rota.csv", "--out", "a.csv"))
    assert Path("a.csv").read_text() == "before" and sorted(os.listdir()) == ["a.csv", "photos", "rota.csv"]


def part(*names: str) -> Predictions:
    return Predictions({column: [None] * len(names) for column in COLUMNS} | {"id": list(names)})


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_rows_are_written_as_they_come_and_the_file_is_there_when_it_is_whole(tmp_path, ending):
    out, sizes = tmp_path / f"a.{ending}", []

    def parts():
        for i in range(3):
            yield part(*"x" * 5000)
            assert not out.exists()
            sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
            if i == 1 and ending == "jsonl":
                raise UserError("enough")

    if ending == "jsonl":
        with pytest.raises(UserError, match="enough"):
            write(out, parts())
        assert list(tmp_path.iterdir()) == []
    else:
        write(out, parts())
        assert len(out.read_text().splitlines()) == 15001
    assert sizes == sorted(set(sizes)) and sizes[0] > 10_000


def test_a_reader_who_has_seen_enough_is_no_error(run):
    words = [sys.executable, "-m", "l2d", "predict", str(run), "photos", "photos", "photos", "--batch-size", "1"]
    command = f"{shlex.join(words)} | head -n 2"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 2)


def test_a_system_that_estimates_nothing_says_so(run, cli, photo_run, capfd):
    selective = photo_run("system=selective")
    capfd.readouterr()
    code, out, err = cli(selective, "photos")
    assert code == 0 and len(out.splitlines()) == 10 and "system=selective" in err and err.count("\n") == 1


def test_completion_offers_what_can_be_changed():
    assert candidates(["l2d", "predict", ""]) == [] and candidates(["l2d", "predict", "RUN", "photos/2"]) == []
    assert candidates(["l2d", "predict", "RUN", "ru"]) == ["rule.", "rule="]
    assert candidates(["l2d", "predict", "RUN", "lo"]) == [] and candidates(["l2d", "predict", "RUN", "exp"]) == [
        "experts."
    ]
    assert "rule=budget" in candidates(["l2d", "predict", "RUN", "x", "rule=b"])
    assert (
        candidates(["l2d", "predict", "RUN", "--o"]) == ["--out"]
        and candidates(["l2d", "predict", "RUN", "--out", ""]) == []
    )
