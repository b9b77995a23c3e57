"""What a run says, into a pipe and onto a terminal."""

import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from l2d.tracking import console as console_module
from l2d.tracking.console import Console

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
    """A clock that stands still until `clock.now` is moved."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(console_module, "time", clock)
    return clock


def row(epoch, **more):
    return {"epoch": epoch, "loss": 1.5, "lr": 0.1, "images_per_second": 2048.4, **more}


def test_the_header_names_the_choices_as_they_are(capsys):
    with Console(verbose=True).progress(FACTS, epochs=1, steps=1, batch_size=10):
        pass
    out = capsys.readouterr().out
    for said in ("dataset [bold]toy", "experts mixed", "loss picce_ce", "device cpu", "parameters 1,234,567"):
        assert said in out


def test_plain_lines_come_at_most_once_a_second_and_tell_the_time_left(capsys, clock):
    console = Console(verbose=True)
    with console.progress(FACTS, epochs=10, steps=4, batch_size=10):
        for epoch, now in ((1, 102.0), (2, 102.5), (3, 104.0), (10, 200.0)):
            clock.now = now
            console.step(epoch - 1, 2, 1.0)
            console.epoch(row(epoch, **(METRICS if epoch == 3 else {})))
    first, third, last = capsys.readouterr().out.splitlines()[1:]
    assert first == "epoch 1/10  loss 1.5000  2,048 images/s"
    # two epochs in the two seconds since the first was told: seven more take 7 s
    assert third.startswith("epoch 3/10  loss 1.5000  2,048 images/s  system_error 12.35  coverage 67.89  classifier")
    assert third.endswith("  7 s left")
    assert last == "epoch 10/10  loss 1.5000  2,048 images/s"


def test_verbose_false_leaves_the_final_table_alone(capsys, clock, tmp_path):
    console = Console(verbose=False)
    with console.progress(FACTS, epochs=2, steps=1, batch_size=10):
        clock.now += 10
        console.epoch(row(1))
    assert capsys.readouterr().out == ""
    console.final(tmp_path, RESULT)
    header, numbers, where = capsys.readouterr().out.splitlines()
    assert header.split() == ["system_error", "coverage", "classifier_accuracy"]
    assert numbers.split() == ["picce_ce,", "3", "experts,", "seed", "5", "12.35", "67.89", "76.50"]
    assert where == f"3.2 s, in {tmp_path}"


def test_the_best_achievable_stands_below_where_it_is_known(capsys, tmp_path):
    bayes = {"system_error": 1.0, "coverage": 2.0, "classifier_accuracy": 3.0}
    Console(verbose=True).final(tmp_path, RESULT | {"bayes": bayes})
    assert capsys.readouterr().out.splitlines()[2].split() == ["best", "achievable", "1.00", "2.00", "3.00"]


SCRIPT = f"""
import time
from l2d.tracking.console import Console

console = Console(verbose=True)
with console.progress({FACTS!r}, epochs=2, steps=4, batch_size=10):
    for step in (1, 2, 3, 4):
        time.sleep(0.1)
        console.step(0, step, 0.25)
        console.bar and console.bar.refresh()
    console.epoch({row(1)!r})
    console.bar and console.bar.refresh()
print("bar gone:", console.bar is None)
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
        except OSError:  # how Linux says that the other end is closed
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
