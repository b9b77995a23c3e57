"""A short run of the fuzzer; the long one is scripts/fuzz."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.mark.slow
def test_hostile_command_lines_end_in_a_result_or_a_sentence():
    """In a process of its own, because its cases are forks of it, and change what a process has only once."""
    command = [sys.executable, str(FUZZER), "--seed", "1", "--count", "60"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 cases" in done.stdout and " 0 violations" in done.stdout
