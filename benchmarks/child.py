"""The last lines of a forked child that runs a command; the tests use them too."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def run_and_exit(command: Callable[[], object]) -> NoReturn:
    """Call a command and end this process with its exit code: 0, that of its SystemExit, or 70 after a traceback."""
    code = 70
    try:
        command()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 71
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
