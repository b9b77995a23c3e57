"""What files hold, without reading them twice: digests remembered by inode, size and times. Importing this does not import torch."""

import hashlib
import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from l2d.atomic import atomic_write
from l2d.errors import UserError

SETTLED = 2e9  # ns; what was modified more recently may be modified again without a new time

Item = TypeVar("Item")
Made = TypeVar("Made")


def file_digests(root: Path, paths: Sequence[str], cache: Path) -> list[str]:
    """A digest of the content of each file; UserError where one does not exist.

    A file is read only if its inode, size or times differ from those of its last reading. The time of the last change
    (ctime) is among them, which cannot be set: a file that is replaced is noticed even if it keeps its size and mtime.
    """
    memory = cache / f"{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:24]}.contents"
    known = recall(memory)  # path -> stamp and digest
    stamps = [_stamp(root, path) for path in paths]
    stale = [path for path, stamp in zip(paths, stamps, strict=True) if known.get(path, ("",))[0] != stamp]
    if stale:
        now = time.time_ns()
        fresh = dict(
            zip(stale, in_parallel(lambda path: _digest(root / path), stale, "reading files, once"), strict=True)
        )
        known |= {
            path: (stamp if now - int(stamp.rpartition(" ")[2]) > SETTLED else "", fresh[path])
            for path, stamp in zip(paths, stamps, strict=True)
            if path in fresh
        }
        with suppress(UserError):  # a folder that cannot be written costs time, no more
            remember(memory, known)
    return [known[path][1] for path in paths]


def in_parallel(make: Callable[[Item], Made], items: Sequence[Item], what: str) -> Iterable[Made]:
    """make(item) for every item, in order, by many threads: a network disk serves many requests at once."""
    terminal = Console(stderr=True)
    with ThreadPoolExecutor(16) as pool:
        yield from track(
            pool.map(make, items),
            f"{what} ({len(items):,})",
            len(items),
            console=terminal,
            transient=True,
            disable=not terminal.is_terminal,
        )


def recall(path: Path) -> dict[str, Any]:
    """What `remember` wrote; empty where the file is missing or damaged."""
    try:
        checksum, content = path.read_bytes().split(b"\n", 1)
        return json.loads(content) if int(checksum) == zlib.crc32(content) else {}
    except (OSError, ValueError):
        return {}


def remember(path: Path, content: dict[str, Any]) -> None:
    """Write JSON with a checksum before it."""
    text = json.dumps(content).encode()
    whole = b"%d\n" % zlib.crc32(text) + text
    hint = "choose another folder for what is remembered of the files with dataset.cache"
    atomic_write(path, lambda file: file.write(whole), durable=False, make_parents=True, hint=hint)


def _stamp(root: Path, path: str) -> str:
    try:
        found = os.stat(os.path.join(root, path))
    except (TypeError, OSError, ValueError) as error:  # not a string, not there, not a file name
        raise UserError(
            f"{path!r} is listed and cannot be found in {root}; add the file or remove the entry."
        ) from error
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _digest(path: Path) -> str:
    """Of the content; of nothing where it cannot be read, which is said when it is opened as an image."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # a pipe must not block
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        pass
    return ""
