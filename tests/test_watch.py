"""l2d status --watch: updates in place on a terminal until Ctrl-C, and is l2d status everywhere else."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest
from test_report import write_run

from l2d.cli import main

pty = pytest.importorskip("pty")
WATCH = "import l2d.status; l2d.status.INTERVAL_S = 0.2; l2d.status.main(['--watch', 'outputs'])"


def read_until(terminal: int, text: str, seconds: float = 30) -> str:
    """What a program writes to its terminal up to this text."""
    said, end = "", time.monotonic() + seconds
    while text not in said and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 1 << 16).decode()
    assert text in said, said
    return said


def test_a_terminal_is_updated_in_place_until_ctrl_c(tmp_path):
    write_run(tmp_path / "outputs", "ce", 4, 0, (30.0, 60, 50))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH],
        cwd=tmp_path,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    )
    try:
        read_until(ours, "1 finished #")
        write_run(tmp_path / "outputs", "ce", 4, 1, (30.0, 60, 50))
        assert "\x1b[1A\x1b[2K" in read_until(ours, "2 finished #")  # up a line, and clear it
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0 and process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        os.close(ours)
        os.close(theirs)


def test_without_a_terminal_it_is_the_plain_status(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "outputs", "ce", 4, 0, (30.0, 60, 50))
    monkeypatch.chdir(tmp_path)
    main(["status"])
    plain = capsys.readouterr().out
    main(["status", "--watch", "outputs"])
    assert capsys.readouterr().out == plain and "1 finished #" in plain


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["status", "--watch", "nowhere"])
    assert ended.value.code == 2 and "nowhere is not a folder" in capsys.readouterr().err
