"""Showing and tracking cannot harm a run: whatever happens to the terminal or the logger, a finished run stays finished."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import run_l2d

SMALL = "dataset.num_train=200 dataset.num_test=100 trainer.epochs=3 trainer.device=cpu"
L2D = f'"{sys.executable}" -m l2d'
LOGGER = """
class Logger:
    def __init__(self, when):
        self.when = when
    def start(self, name, config, folder):
        self.may_fail("start")
    def log(self, row):
        self.may_fail("log")
    def finish(self, result):
        self.may_fail("finish")
    def may_fail(self, what):
        if what == self.when:
            raise ConnectionError("the service is gone")
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), str(tmp_path)]))
    return tmp_path


def shell(command: str) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120)


def results() -> list[dict]:
    return [json.loads(path.read_text()) for path in Path("outputs").glob("*/*/result.json")]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["| true", "> /dev/full", "| head -c 20 > /dev/null", "2> /dev/full", ">&-"])
def test_a_run_whose_output_cannot_be_written_is_finished_all_the_same(workplace, where):
    child = shell(f"{L2D} train {SMALL} {where}")
    (result,) = results()
    assert result["status"] == "finished" and result["metrics"]["system_error"] > 0
    assert "Traceback" not in child.stderr
    again = run_l2d("train", *SMALL.split())
    assert again.returncode == 0 and "finished before" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("where", ["| head -1", "> /dev/full"])
def test_a_sweep_whose_output_cannot_be_written_runs_all_its_cells(workplace, where):
    shell(f"{L2D} train -m {SMALL} seed=0,1,2 {where}")
    assert [result["status"] for result in results()] == ["finished"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("when", ["start", "log", "finish"])
def test_a_logger_that_fails_is_reported_once_and_stops_nothing(workplace, when):
    Path("broken_logger.py").write_text(LOGGER)
    child = run_l2d("train", *SMALL.split(), "logger._target_=broken_logger.Logger", f"+logger.when={when}")
    assert child.returncode == 0, child.stderr
    assert child.stderr.count("the service is gone") == 1 and "Traceback" not in child.stderr
    (result,) = results()
    assert result["status"] == "finished"


@pytest.mark.slow
def test_a_terminal_that_is_closed_in_mid_run_does_not_end_it(workplace):
    """The bar is drawn on a terminal whose other side goes away after the first lines."""
    reader, terminal = os.openpty()
    command = [sys.executable, "-m", "l2d", "train", *SMALL.split(), "trainer.epochs=150"]
    child = subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, start_new_session=True)
    os.close(terminal)
    os.read(reader, 10)
    os.close(reader)
    child.communicate(timeout=120)
    (result,) = results()
    assert result["status"] == "finished" and child.returncode == 0
