"""Files in folders that others may have prepared: written whole or not at all, never through a link, read without blocking."""

import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from l2d.errors import UserError

TEMPORARY = ".*.l2d-tmp"  # matches files that a killed process left unfinished


def atomic_write(
    path: Path,
    write: Callable[[BinaryIO], Any],
    durable: bool = True,
    make_parents: bool = False,
    hint: str = "what was there before is unchanged",
) -> None:
    """Call `write(file)` on a temporary file in the folder of `path`, then rename it to `path`: a reader finds the old
    content or the new. A link is replaced; what it leads to stays as it is.

    `durable` waits until the content is on the disk (fsync). On failure the old content stays, the temporary file is
    removed, and an OSError becomes a UserError that ends with `hint`.
    """
    temporary = path.with_name(TEMPORARY.replace("*", f"{path.name}.{secrets.token_hex(4)}"))
    try:
        if what := obstacle(path):
            raise OSError(f"it is {what}")
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


def obstacle(path: Path, links: bool = True) -> str | None:
    """What stands where a file is to be written, such as "a folder"; None for a file, nothing or (with `links`) a link."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    if stat.S_ISREG(mode) or (links and stat.S_ISLNK(mode)):
        return None
    return "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device"


def read_text(path: Path) -> str:
    """As `read_bytes`, decoded from UTF-8."""
    return read_bytes(path).decode()


def read_bytes(path: Path) -> bytes:
    """The content of a file, also through a link; OSError for what is not a regular file: a FIFO would block for ever."""
    with open(path, "rb", opener=_regular) as file:
        return file.read()


def open_to_read(path: Path, encoding: str = "utf-8") -> TextIO:
    """Open a text file, also through a link, with the ends of its lines as they are; OSError for what is not a regular file."""
    return open(path, encoding=encoding, newline="", opener=_regular)


def open_to_append(path: Path) -> TextIOWrapper:
    """Open a text file to write at its end; OSError for a link or what is not a regular file."""
    return open(
        path, "a", encoding="utf-8", opener=lambda name, flags: _regular(name, flags | getattr(os, "O_NOFOLLOW", 0))
    )


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)  # Windows has neither flag, nor FIFOs
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file that exists, in one write; a symlink is not followed."""
    try:
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        file = _regular(str(path), flags)
        try:
            if os.write(file, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}).") from error
