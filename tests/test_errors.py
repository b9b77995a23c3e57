"""A notice reaches the user once, in every command."""

import subprocess
import sys

import pytest
from PIL import Image

from l2d.errors import notify


def test_a_notice_is_one_line_on_stderr_and_one_in_the_log(capsys, caplog):
    notify("something")
    assert capsys.readouterr().err == "l2d: something\n" and caplog.messages == ["something"]


@pytest.mark.slow
def test_a_notice_of_l2d_data_is_printed_once(tmp_path):
    root = tmp_path / "images"
    for label in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (root / label).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8)).save(root / label / f"{number}.png")
    (root / "train" / "cat" / "0.png").write_bytes(b"damaged")
    command = [sys.executable, "-c", "from l2d.inspect import main; main()", "check", "dataset=folder"]
    command += [f"dataset.root={root}", f"dataset.cache={tmp_path / 'cache'}", "dataset.on_error=skip"]
    command += ["dataset.size=8", "dataset.resize=8", "experts=specialist", "experts.num=2", "backbone=mlp"]
    command += ["dataset.groups={specialty: [cat, dog]}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("l2d: 1 of 4 ") and "train/cat/0.png" in line
