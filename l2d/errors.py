"""What a user can get wrong ends in one sentence and exit code 2; a bug keeps its traceback."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """One sentence: what was wrong and what would work."""


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Around a command: a UserError, or Hydra's refusal of a config, is printed and ends the program with exit code 2."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError) and not type(error).__module__.startswith(("hydra.", "omegaconf.")):
            raise
        sys.stderr.write(f"l2d: {sentence(error)}\n")
        if os.environ.get("L2D_TRACEBACK"):
            traceback.print_exception(error)
        sys.exit(2)


def sentence(error: Exception) -> str:
    """The message in one line, without the positions that OmegaConf and Hydra append."""
    noise = ("full_key", "object_type", "reference_type", "Config search path", "provider=", "See https://")
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(noise))
    return text.removeprefix("UserError raised while resolving interpolation: ")
