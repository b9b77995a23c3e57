"""A user's mistake ends in one sentence and exit code 2; a bug keeps its traceback."""

import argparse
import errno
import logging
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import NoReturn

_LOG = logging.getLogger("l2d")
_LOG.addHandler(logging.NullHandler())  # without any handler, logging itself would print warnings to stderr
HYDRA_ENTRIES = ("hydra.main", "hydra._internal.config_loader_impl")  # everything that composes goes through these


# Control characters, line separators, changes of the direction of text, and halves of characters, which cannot be printed.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """One sentence: what was wrong and what would work."""


def visible(text: str) -> str:
    """The text in one line, with the characters that a terminal would act on instead of showing them as escapes.

    >>> visible("red\\x1b[31m\\n")
    'red\\\\x1b[31m\\\\n'
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Arguments(argparse.ArgumentParser):
    """A parser whose errors show the user's words in a safe form."""

    def error(self, message: str) -> NoReturn:
        super().error(visible(message))


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Around a command: an error that the user can fix is printed as a sentence and ends the program with exit code 2."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if _by_ctrl_c(error):  # while no run is held, which would write its checkpoint
            sys.stderr.write("l2d: Stopped.\n")
            sys.exit(128 + signal.SIGINT)
        if not _is_user_error(error):
            raise
        sys.stderr.write(f"l2d: {sentence(error)}\n")
        if os.environ.get("L2D_TRACEBACK"):
            traceback.print_exception(error)
        sys.exit(2)


def _by_ctrl_c(error: BaseException | None) -> bool:
    """Whether it is a KeyboardInterrupt, or was raised while one was handled: OmegaConf's clean-up may fail then."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or _by_ctrl_c(error.__context__))


def _is_user_error(error: BaseException) -> bool:
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


def _raised_by_hydra(error: BaseException) -> bool:
    """Whether Hydra raised it while composing a config, before it called our code: then it is about the command line."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    entered = [depth for depth, module in enumerate(modules) if module in HYDRA_ENTRIES]
    return bool(entered) and not any(module.startswith("l2d.") for module in modules[entered[-1] :])


def sentence(error: BaseException) -> str:
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
    return visible(text.removeprefix("UserError raised while resolving interpolation: "))


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
    """Print lines to standard output; once that fails (its reader is gone, its disk full), this and all later output is
    dropped."""
    try:
        print("\n".join(map(visible, text.split("\n"))), flush=True)
    except OSError:
        drop_output()


def drop_output() -> None:
    """Send all further standard output nowhere: its reader is gone, or its disk is full."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_shown: ContextVar[set[str] | None] = ContextVar("_shown", default=None)  # the notices that are not to be repeated


@contextmanager
def notices_once() -> Iterator[None]:
    """Within it a notice is shown once, however often its cause comes back."""
    before = _shown.set(set())
    try:
        yield
    finally:
        _shown.reset(before)


def notify(text: str) -> None:
    """Notify the user while the program goes on: one line on stderr and one in the run's log."""
    text = visible(text)
    if (shown := _shown.get()) is not None:
        if text in shown:
            return
        shown.add(text)
    with suppress(OSError, ValueError):  # a closed terminal, a full disk: no reason to stop
        _LOG.warning(text)
    with suppress(OSError, ValueError):
        sys.stderr.write(f"l2d: {text}\n")
        sys.stderr.flush()
