"""What a user can get wrong ends in one sentence and exit code 2; a bug keeps its traceback."""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """One sentence: what was wrong and what would work."""


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Around a command: what a user can mend is printed as a sentence and ends the program with exit code 2."""
    try:
        yield
    except Exception as error:
        if not _is_the_users(error):
            raise
        sys.stderr.write(f"l2d: {sentence(error)}\n")
        if os.environ.get("L2D_TRACEBACK"):
            traceback.print_exception(error)
        sys.exit(2)


def _is_the_users(error: Exception) -> bool:
    """Ours, Hydra's refusal of a config, or the machine's: a full disk, a folder that may not be written, too many files."""
    if isinstance(error, UserError) or type(error).__module__.startswith(("hydra.", "omegaconf.")):
        return True
    if isinstance(error, OSError) and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
    ):
        return True
    return _before_our_code(error)


def _before_our_code(error: Exception) -> bool:
    """Raised in Hydra before it called anything of ours: whatever the exception is, it is about the command line."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = modules[modules.index("hydra.main") :] if "hydra.main" in modules else ["l2d."]
    return not any(module.startswith("l2d.") for module in inside)


def sentence(error: Exception) -> str:
    """The message in one line, without the positions that OmegaConf and Hydra append."""
    noise = ("full_key", "object_type", "reference_type", "Config search path", "provider=", "See https://")
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(noise))
    return text.removeprefix("UserError raised while resolving interpolation: ")


def show(text: str) -> None:
    """Print to standard output; once its reader is gone (as after `| head -1`), this and all later output is dropped."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def notify(text: str) -> None:
    """Something the user should know although the program goes on: on the terminal and in the run's log."""
    logging.getLogger("l2d").warning(text)
    sys.stderr.write(f"l2d: {text}\n")
