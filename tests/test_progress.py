"""What a run prints, into a pipe and on a terminal."""

import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from l2d.tracking import progress
from l2d.tracking.progress import ProgressReporter

CHOICES = {
    "dataset": "[bold]toy",
    "experts": "mixed",
    "num_experts": 3,
    "backbone": "mlp",
    "loss": "picce_ce",
    "seed": 5,
}
FACTS = {"choices": CHOICES, "device": "cpu", "precision": "float32", "parameters": 1234567}
METRICS = {"system_error": 12.345, "coverage": 67.891, "classifier_accuracy": 76.5}
RESULT = {"choices": CHOICES, "metrics": METRICS, "bayes": None, "seconds": 3.21}


@pytest.fixture
def clock(monkeypatch):
    """A clock that changes only when `clock.now` is set."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def row(epoch, **more):
    return {"epoch": epoch, "loss": 1.5, "lr": 0.1, "images_per_second": 2048.4, **more}


def test_the_header_shows_the_choices_without_interpreting_markup(capsys):
    ProgressReporter(verbose=True).start(FACTS, epochs=1, batch_size=10)
    out = capsys.readouterr().out
    for said in ("dataset [bold]toy", "experts mixed", "loss picce_ce", "device cpu", "parameters 1,234,567"):
        assert said in out


def test_plain_lines_come_at_most_once_a_second_and_show_the_time_left(capsys, clock):
    reporter = ProgressReporter(verbose=True)
    reporter.start(FACTS, epochs=10, batch_size=10)
    for epoch, now in ((1, 102.0), (2, 102.5), (3, 104.0), (10, 200.0)):
        clock.now = now
        reporter.step(epoch - 1, 2, 4, 1.0)
        reporter.epoch(row(epoch, **(METRICS if epoch == 3 else {})))
    reporter.stop()
    first, third, last = capsys.readouterr().out.splitlines()[1:]
    assert first == "epoch 1/10  loss 1.5000  2,048 images/s"
    # two epochs in the two seconds since the first line: seven more take 7 s
    assert third.startswith("epoch 3/10  loss 1.5000  2,048 images/s  system_error 12.35  coverage 67.89  classifier")
    assert third.endswith("  7 s left")
    assert last == "epoch 10/10  loss 1.5000  2,048 images/s"


def test_verbose_false_prints_only_the_final_table(capsys, clock, tmp_path):
    reporter = ProgressReporter(verbose=False)
    reporter.start(FACTS, epochs=2, batch_size=10)
    clock.now += 10
    reporter.epoch(row(1))
    reporter.stop()
    assert capsys.readouterr().out == ""
    reporter.final(tmp_path, RESULT)
    header, numbers, compared, where = capsys.readouterr().out.splitlines()
    assert header.split() == ["system_error", "coverage", "classifier_accuracy"]
    assert numbers.split() == ["picce_ce,", "3", "experts,", "seed", "5", "12.35", "67.89", "76.50"]
    assert compared == "accuracy: system 87.66, classifier alone 76.50"
    assert where == f"3.2 s, in {tmp_path}"


def test_the_best_achievable_is_printed_where_it_is_known(capsys, tmp_path):
    bayes = {"system_error": 1.0, "coverage": 2.0, "classifier_accuracy": 3.0}
    ProgressReporter(verbose=True).final(tmp_path, RESULT | {"bayes": bayes})
    assert capsys.readouterr().out.splitlines()[2].split() == ["best", "achievable", "1.00", "2.00", "3.00"]


def test_the_accuracies_to_compare_with_are_printed_unless_unknown(capsys, tmp_path):
    more = {"best_expert_accuracy": 80.0, "majority_vote_accuracy": None}
    more |= {"random_expert_accuracy": 60.25, "any_expert_correct": 95.0}
    ProgressReporter(verbose=True).final(tmp_path, RESULT | {"metrics": METRICS | more})
    line = capsys.readouterr().out.splitlines()[2]
    assert line.endswith(
        "classifier alone 76.50, best single expert 80.00, random expert 60.25, any expert right 95.00"
    )
    more["majority_vote_accuracy"] = 82.5
    ProgressReporter(verbose=True).final(tmp_path, RESULT | {"metrics": METRICS | more})
    assert "majority vote 82.50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("num", "experts", "title"),
    [
        (1, None, "picce_ce, 1 expert, seed 5"),
        (None, [{"name": "ann"}, {"name": "bob"}], "picce_ce, 2 experts, seed 5"),
        (None, None, "picce_ce, seed 5"),
    ],
)
def test_the_number_of_experts_is_that_of_the_panel(capsys, tmp_path, num, experts, title):
    result = RESULT | {"choices": CHOICES | {"num_experts": num}, "experts": experts}
    ProgressReporter(verbose=True).final(tmp_path, result)
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{title}  ")
    if experts:
        ProgressReporter(verbose=True).start(FACTS | result, epochs=1, batch_size=10)
        assert "num_experts 2  " in capsys.readouterr().out


SCRIPT = f"""
import time
from l2d.tracking.progress import ProgressReporter

reporter = ProgressReporter(verbose=True)
reporter.start({FACTS!r}, epochs=2, batch_size=10)
for step in (1, 2, 3, 4):
    time.sleep(0.1)
    reporter.step(0, step, 4, 0.25)
    reporter.bar and reporter.bar.refresh()
reporter.epoch({row(1)!r})
reporter.bar and reporter.bar.refresh()
reporter.stop()
print("bar gone:", reporter.bar is None)
"""


def on_a_terminal(**environment):
    """The script's output where stdout is a terminal of 200 columns."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    env |= {"TERM": "xterm", "COLUMNS": "200", "LINES": "50", **environment}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=theirs, stdin=theirs, env=env)
    os.close(theirs)
    chunks = []

    def read():
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:  # raised on Linux when the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(60) == 0
    reader.join()
    os.close(ours)
    return b"".join(chunks).decode()


def test_a_terminal_gets_a_live_bar_with_loss_speed_and_time_left():
    raw = on_a_terminal()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw)
    assert "picce_ce J=3 epoch 1/2" in text and "loss 0.2500" in text
    # 10 images in 0.1 s or, on a busy machine, in somewhat more
    speeds = [int(found.replace(",", "")) for found in re.findall(r"loss 0\.2500  ([\d,]+) images/s", text)]
    assert speeds and all(5 <= speed <= 100 for speed in speeds)
    assert re.search(r"\d:\d\d:\d\d left", text), "from the second step on, there is an estimate"
    assert "loss 1.5000  2,048 images/s" in text
    assert "epoch 1/2  loss" not in text, "no plain lines beside the bar"
    assert raw.count("\x1b[2K") > 0 and "bar gone: True" in text


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_text():
    assert "\x1b[2K" not in on_a_terminal(TERM="dumb")
