"""Folders that someone else prepared or damaged: nothing outside them changes, no command hangs, one hides no other."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import refused
from omegaconf.errors import OmegaConfBaseException
from PIL import Image
from test_report import blocks_of, write_run

from l2d import cli
from l2d.atomic import atomic_write, open_to_append, read_text
from l2d.errors import UserError, notify, sentence, show, visible
from l2d.report import load_runs
from l2d.report.cli import write_report
from l2d.report.render import to_csv, to_markdown, to_text
from l2d.status import describe
from l2d.tracking.log import RunLog
from l2d.tracking.progress import ProgressReporter
from l2d.tracking.run_folder import RunFolder, in_use

TINY = ["dataset.num_train=64", "dataset.num_test=32", "trainer.epochs=2", "backbone.hidden=8", "hydra.run.dir=run"]
WRITTEN = [
    "config.yaml", "metrics.csv", "result.json", "model.safetensors", "outcome.safetensors", "checkpoint.pt", ".owner", ".lock", "train.log",
]  # fmt: skip
ESCAPES = "\x1b[31mred\x07\x9b0m\n\r\x00\u202e"
TAG = "<script>alert(1)</script>"
VALUES = (20.0, 60.0, 50.0)


@pytest.fixture(autouse=True)
def no_command_hangs():
    def fail(*_):
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run: its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        patch.setattr(sys, "argv", ["l2d"])
        cli.main(["train", *TINY])
        return Path("run").absolute()


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> Path:
    """A copy of the run for one test, beside a document."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["l2d"])
    (tmp_path / "document.txt").write_text("precious")
    return shutil.copytree(trained, tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != ".lock"}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_writes_through_no_link(run, command, name):
    document = run.parent / "document.txt"
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(document)
    code, _, err = command("train", *TINY, "force=true")
    assert document.read_text() == "precious" and "Traceback" not in err
    if name in (".lock", "train.log", "metrics.csv"):  # opened where they are
        assert code == 2 and f"run/{name} is a link" in err
    elif name == "config.yaml":  # read through the link, and the document is none
        assert code == 2
    else:
        assert code == 0 and not (run / name).is_symlink()


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["FIFO", "folder"])
def test_what_stands_where_a_file_belongs_is_named_and_left_alone(run, command, name, make):
    (run / name).unlink(missing_ok=True)
    make(run / name)
    before = contents(run)
    assert f"run/{name}" in refused(command("train", *TINY, "force=true"))
    assert contents(run) == before
    read_by_report = name in ("config.yaml", "metrics.csv", "result.json")
    for words in (["evaluate", run], ["status", run.parent], *([["report", run.parent]] * read_by_report)):
        code, _, err = command(*words)
        assert code in (0, 2) and "Traceback" not in err, words


def test_links_to_a_run_and_to_its_files_are_followed_for_reading(run, command):
    big = run.rename(run.with_name("elsewhere"))
    (big / "model.safetensors").rename(run.parent / "big.safetensors")
    (big / "model.safetensors").symlink_to(run.parent / "big.safetensors")
    run.symlink_to(big)
    assert command("evaluate", run / "model.safetensors")[0] == 0
    code, out, _ = command("train", *TINY)
    assert code == 0 and "finished before" in out
    assert command("train", *TINY, "force=true")[0] == 0, "a run folder that is a link is trained in"
    assert not (big / "model.safetensors").is_symlink() and (run.parent / "big.safetensors").exists()


def test_a_lock_that_is_a_link_is_neither_opened_nor_held(run):
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(run.parent / "document.txt")
    assert not in_use(run)
    assert (run.parent / "document.txt").read_text() == "precious"


def test_the_log_appends_to_a_file_alone(tmp_path):
    (tmp_path / "document.txt").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "document.txt")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError):
            open_to_append(tmp_path / name)
        handler = RunLog(tmp_path / name)
        handler.stream.write("lost")
        handler.close()
    with open_to_append(tmp_path / "file") as file:
        file.write("kept")
    assert (tmp_path / "document.txt").read_text() == "precious" and read_text(tmp_path / "file") == "kept"


def test_an_atomic_write_replaces_no_device(tmp_path):
    os.mkfifo(tmp_path / "fifo")  # as /dev/null is one
    with pytest.raises(UserError, match="fifo"):
        atomic_write(tmp_path / "fifo", lambda file: file.write(b"x"))
    assert (tmp_path / "fifo").is_fifo()


def test_a_run_killed_between_its_first_files_is_started_again(tmp_path, composed, monkeypatch):
    """After the config and before the result, or after the result and before the config."""
    cfg = composed()
    with RunFolder(tmp_path / "run", cfg) as folder:
        folder.start({}, resumed=False)
    for name in ("result.json", "config.yaml"):
        half = shutil.copytree(tmp_path / "run", tmp_path / name)
        (half / name).unlink()
        with RunFolder(half, cfg) as folder:
            folder.start({}, resumed=False)
        assert (half / name).exists()


# -- one bad folder among good ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "", "[" * 100000, '{"status": "finished"}', '{"status": "finished", "metrics": {"system_error": "1"}}',
        '{"status": "running", "choices": []}', '{"status": "running", "choices": {"num_experts": [1]}}', '{"status": 1}', "\udcff\udcfe",
    ],
)  # fmt: skip
def test_status_names_a_damaged_run_and_shows_the_others(tmp_path, text):
    write_run(tmp_path, "ce", 4, 0, VALUES, choices={"dataset": "a", "loss": "ce", "num_experts": 4})
    bad = write_run(tmp_path, "ova", 4, 0, VALUES)
    (bad / "result.json").write_text(text, errors="surrogateescape")
    shown = describe(tmp_path)
    assert "1 finished #, 1 damaged ?" in shown and f"damaged: {bad.name}" in shown


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"started": 1, "command": [], "cells": [{}]}', '{"started": "x", "command": [], "cells": []}']
)
def test_status_names_a_damaged_list_of_cells_and_shows_the_runs(tmp_path, capfd, text):
    write_run(tmp_path, "ce", 4, 0, VALUES)
    (tmp_path / ".sweeps").mkdir()
    (tmp_path / ".sweeps" / "0.json").write_text(text)
    assert "1 finished #" in describe(tmp_path)
    assert ".sweeps/0.json" in capfd.readouterr().err


@pytest.mark.parametrize("text", ["epoch\n", "epoch,loss\n1,abc\n", "\x00", "loss\n1\n", 'epoch\n"'])
def test_status_survives_damaged_metrics(tmp_path, text):
    folder = write_run(tmp_path, "ce", 4, 0, status="running")
    (folder / "metrics.csv").write_text(text)
    assert "interrupted: " in describe(tmp_path)


@pytest.mark.parametrize("result", [{"status": "finished"}, {"status": "finished", "metrics": {"system_error": None}}])
def test_a_damaged_result_is_not_taken_for_finished_nor_trained_over(run, command, result):
    (run / "result.json").write_text(json.dumps(result))
    before = contents(run)
    assert "run/result.json" in refused(command("train", *TINY))
    assert "run/result.json" in refused(command("evaluate", run))
    assert contents(run) == before


def test_a_damaged_cell_does_not_stop_a_sweep(run, command):
    (run / "result.json").write_text('{"status": "finished", "metrics": null}')
    words = [word for word in TINY if not word.startswith("hydra")]
    code, out, err = command("train", "-m", *words, "seed=0,1", "hydra.sweep.dir=.", "hydra.sweep.subdir='run${seed}'")
    assert code == 0 and "2 done" in out, err
    (Path("run0") / "result.json").write_text('{"status": "finished", "metrics": null}')
    shutil.rmtree("run1")
    code, out, err = command("train", "-m", *words, "seed=0,1", "hydra.sweep.dir=.", "hydra.sweep.subdir='run${seed}'")
    assert code == 2 and "1 done" in out and "1 failed" in out and "run0/result.json" in err


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: [*a, *a]\n",
        "a: " + "[" * 200 + "]" * 200,
        "[" * 100000,
        "\ufeff\x00",
        "!!python/object/apply:os.system ['touch ran']",
        "- 1\n",
        "dataset: {}\nexperts: {}\nbackbone: {}\nloss: {}\ntrainer: {}\n",
    ],
)
def test_a_damaged_config_is_a_sentence(run, command, text):
    (run / "config.yaml").write_text(text)
    before = contents(run)
    assert "config.yaml" in refused(command("evaluate", run))
    assert "run" in refused(command("train", *TINY))
    assert contents(run) == before and not Path("ran").exists()


def test_names_that_disagree_with_the_scores_are_refused(run, command):
    """Otherwise columns of experts would be taken for classes."""
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"class_names": result["class_names"][:-1]}))
    assert "class_names" in refused(command("evaluate", run))


# -- names -----------------------------------------------------------------------------------------------------------


def test_control_characters_are_shown_as_escapes(capfd, caplog):
    assert visible(ESCAPES) == r"\x1b[31mred\x07\x9b0m\n\r\x00\u202e"
    assert visible("\udcff é 模型 🐙 e\u0301") == "\\udcff é 模型 🐙 e\u0301"
    show(f"one\ntwo {ESCAPES[:9]}")
    notify(ESCAPES)
    ProgressReporter(verbose=True).print(ESCAPES)
    out, err = capfd.readouterr()
    assert out.splitlines() == ["one", r"two \x1b[31mred\x07", visible(ESCAPES)] and err == f"l2d: {visible(ESCAPES)}\n"
    assert sentence(UserError("a\x1b[31m\x07")) == r"a\x1b[31m\x07"
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("words", [["status"], ["report", "."], ["evaluate", "."], ["data", "check"], []], ids=" ".join)
def test_a_word_of_the_command_line_reaches_the_terminal_as_an_escape(command, words):
    for word in ("--\x1b[31m", "\x1b[31m"):
        code, out, err = command(*words, word)
        assert code == 2 and err and "\x1b" not in out + err


def test_data_check_prints_names_without_control_characters(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        for name in ("dog", "\x1b[31mcat\n\x07"):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / "1.png")
    (folder / "2\x1b[31m.png").write_text("no image")
    small = [
        "dataset=folder",
        "dataset.root=data",
        "dataset.size=8",
        "dataset.resize=8",
        "backbone=mlp",
        "dataset.cache=c",
    ]
    code, out, err = command("data", "check", *small, "dataset.groups={a: [dog]}", "experts=specialist")
    assert code == 2 and r"\x1b[31mcat\n\x07" in out and r"2\x1b[31m.png" in out
    assert not any(c in out + err for c in "\x1b\x07")


def test_the_report_shows_hostile_names_as_text(tmp_path, capsys):
    names = [ESCAPES, TAG, "=1+1", "@a", "a|b", "`a`", "[a](b)", "$\\foo$"]
    for name in names:
        write_run(tmp_path / "runs", "ce", 4, 0, VALUES, dataset=name, error=name, device=f"{name}\ud800")
    write_run(tmp_path / "runs", "ce", 4, 0, VALUES, dataset="good").rename(tmp_path / "runs" / f"=x{ESCAPES[:5]}")
    blocks = blocks_of(tmp_path / "runs")
    assert len(blocks) == len(names) + 1
    text, markdown = to_text(blocks), to_markdown(blocks)
    for shown in (text, markdown):
        assert not any(c in shown for c in "\x1b\x07\x9b\r\x00\u202e\ud800")
    assert TAG not in markdown and "&lt;script&gt;" in markdown and r"a\|b" in markdown and r"\[a\](b)" in markdown
    runs = blocks[0].runs
    assert to_csv(runs.assign(dataset="=1+1", x=-1.5)).count("'=1+1") == len(runs)
    assert "-1.5" in to_csv(runs.assign(x=-1.5)) and "'-1.5" not in to_csv(runs.assign(x=-1.5))
    assert to_csv(runs.rename(columns={"dataset": "+a"})).startswith("'+a,")


@pytest.mark.slow
def test_a_report_of_hostile_names_and_numbers_is_complete(tmp_path, capsys):
    good = write_run(tmp_path / "runs", "ce", 4, 0, VALUES)
    for number, more in enumerate(
        [
            {"dataset": TAG + ESCAPES},
            {"dataset": "x" * 5000},
            {
                "evaluation": {
                    "regret": [],
                    "curve": {"coverage": 1, "accuracy": 2},
                    "budget": [1],
                    "posterior": {"true": 1e300},
                }
            },
            {"evaluation": {"curve": {"coverage": [1e308, 2], "accuracy": [1, 2]}}},
            {"metrics": {"deferred_to": ["a"]}},
            {"bayes": {"system_error": 1e308}},
            {"parameters": "many"},
        ]
    ):
        write_run(tmp_path / "runs", "ova", 4, number, VALUES, **more)
    epochs = write_run(tmp_path / "runs", "ce", 4, 1, VALUES) / "metrics.csv"
    epochs.write_text("epoch,loss,method\n1,1e308,a\n1e300,1,b\ninf,nan,c\n")
    write_report([str(tmp_path / "runs")], tmp_path / "report")
    with (tmp_path / "report" / "runs.csv").open() as file:
        assert str(good) in {row["folder"] for row in csv.DictReader(file)}
    page = (tmp_path / "report" / "index.html").read_text()
    assert TAG not in page and "\x1b" not in page and "\x1b" not in "".join(capsys.readouterr())


def test_a_report_replaces_links_in_its_folder(tmp_path):
    write_run(tmp_path / "runs", "ce", 4, 0, VALUES)
    (tmp_path / "document.txt").write_text("precious")
    (tmp_path / "report").mkdir()
    for name in ("tables.md", "runs.csv", "index.html", "overview.png"):
        (tmp_path / "report" / name).symlink_to(tmp_path / "document.txt")
    write_report([str(tmp_path / "runs")], tmp_path / "report")
    assert (tmp_path / "document.txt").read_text() == "precious"
    assert "# Results" in (tmp_path / "report" / "tables.md").read_text()


# -- pipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["status", "."], ["evaluate", "run"], ["data", "check", "dataset.num_train=64"], ["report", "."]],
    ids=" ".join,
)
def test_a_closed_pipe_ends_no_command(run, words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "l2d", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writer)
    assert done.returncode == 0 and "Error" not in done.stderr.replace("The display failed", ""), done.stderr


def test_ctrl_c_outside_of_a_run_is_no_traceback(command, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    def interrupted_in_cleaning_up(_):
        try:
            raise KeyboardInterrupt
        finally:
            raise OmegaConfBaseException("half made")

    for replacement in (interrupted, interrupted_in_cleaning_up):
        monkeypatch.setattr("l2d.status.describe", replacement)
        assert command("status", ".") == (130, "", "l2d: Stopped.\n")


def test_a_folder_whose_name_is_no_text_is_left_out_of_tables_by_name(tmp_path, capfd):
    """pandas keeps strings in UTF-8 where pyarrow is installed."""
    write_run(tmp_path, "ce", 4, 0, VALUES)
    odd = write_run(tmp_path, "ce", 4, 1, VALUES)
    odd.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert len(load_runs(tmp_path)) == 1
    assert "\\udcff" in capfd.readouterr().err
