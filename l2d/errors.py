"""A user's mistake ends in one sentence and exit code 2; a bug keeps its traceback."""

import errno
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOG = logging.getLogger("l2d")
_LOG.addHandler(logging.NullHandler())  # without any handler, logging itself would print warnings to stderr
HYDRA_ENTRIES = ("hydra.main", "hydra._internal.config_loader_impl")  # everything that composes goes through these


class UserError(Exception):
    """One sentence: what was wrong and what would work."""


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Around a command: an error that the user can fix is printed as a sentence and ends the program with exit code 2."""
    try:
        yield
    except Exception as error:
        if not _is_user_error(error):
            raise
        sys.stderr.write(f"l2d: {sentence(error)}\n")
        if os.environ.get("L2D_TRACEBACK"):
            traceback.print_exception(error)
        sys.exit(2)


def _is_user_error(error: Exception) -> bool:
    """Whether the user can fix it: a UserError, an error in the config, a full disk, no permission, too many open files."""
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
    return _raised_by_hydra(error)


def _raised_by_hydra(error: Exception) -> bool:
    """Whether Hydra raised it while composing a config, before it called our code: then it is about the command line."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    entered = [depth for depth, module in enumerate(modules) if module in HYDRA_ENTRIES]
    return bool(entered) and not any(module.startswith("l2d.") for module in modules[entered[-1] :])


def sentence(error: Exception) -> str:
    """The message in one line, without the positions that OmegaConf and Hydra append."""
    noise = ("full_key", "object_type", "reference_type", "Config search path", "provider=", "See https://")
    override = getattr(error, "override", "")  # what Hydra could not parse
    message = str(error)
    if override:
        message = (
            _how_to_quote(override, message) if "=" in override else f"{override} is not a setting; write KEY=VALUE."
        )
    lines = [line.strip() for line in message.splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(noise)) or " ".join(lines)
    if "hydra/launcher/submitit_slurm" in text:
        text += " It comes with the extra: pip install 'l2d[slurm]'"
    return text.removeprefix("UserError raised while resolving interpolation: ")


def _how_to_quote(override: str, message: str) -> str:
    """A sentence on how to quote the override; Hydra's own message does not say where the problem is or what to do."""
    key, _, value = override.partition("=")
    if not key.isascii():
        return f"{override} has a key with non-ASCII letters, and no setting has such a key."
    quoted = value.replace('"', r"\"")
    _, function, reason = message.partition("while evaluating ")
    why = f" ({reason.splitlines()[0]})" if function else ""
    word = shlex.quote(f'{key}="{quoted}"')
    return f"{override} cannot be parsed{why}; if the value is a string, quote it for Hydra and for the shell: {word}"


def show(text: str) -> None:
    """Print to standard output; once that fails (its reader is gone, its disk full), this and all later output is dropped."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def notify(text: str) -> None:
    """Notify the user while the program goes on: one line on stderr and one in the run's log."""
    with suppress(OSError, ValueError):  # a closed terminal, a full disk: no reason to stop
        _LOG.warning(text)
    with suppress(OSError, ValueError):
        sys.stderr.write(f"l2d: {text}\n")
        sys.stderr.flush()
