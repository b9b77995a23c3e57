"""Atomic writes: a reader finds the old content or the new, never half of it."""

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from l2d.errors import UserError

TEMPORARY = ".*.l2d-tmp"  # matches files that a killed process left unfinished


def atomic_write(
    path: Path,
    write: Callable[[BinaryIO], Any],
    durable: bool = True,
    make_parents: bool = False,
    hint: str = "what was there before is unchanged",
) -> None:
    """Call `write(file)` on a temporary file in the folder of `path`, then rename it to `path`.

    `durable` waits until the content is on the disk (fsync). On failure the old content stays, the temporary file is
    removed, and an OSError becomes a UserError that ends with `hint`.
    """
    temporary = path.with_name(TEMPORARY.replace("*", f"{path.name}.{secrets.token_hex(4)}"))
    try:
        if make_parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:  # x: fails if the name exists, and so follows no symlink
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); {hint}.") from error
    finally:
        with suppress(OSError):  # renamed, never made, or on a disk that fails
            temporary.unlink()


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file that exists, in one write; a symlink is not followed."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        try:
            if os.write(file, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}).") from error
