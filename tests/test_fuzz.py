"""A short run of the fuzzer; the long one is scripts/fuzz."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.mark.slow
def test_hostile_input_and_signals_end_in_a_result_or_a_sentence():
    """In a process of its own, because its cases are forks of it, and change what a process has only once."""
    counts = ["--commands", "60", "--folders", "5", "--signals", "1"]
    command = [sys.executable, str(FUZZER), "--seed", "1", *counts]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("60 commands", "5 folders", "1 signals"):
        assert kind in done.stdout
    assert done.stdout.count("; 0 violations") == 3
