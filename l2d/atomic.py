"""One way to write a file: it appears under its name only when it is complete."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from l2d.errors import UserError


def atomic_write(path: Path, write: Callable[[BinaryIO], Any], durable: bool = True) -> None:
    """The file appears under its name only when it is complete, and on the disk unless it may be lost with the power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); what was there before is whole.") from error
    finally:
        temporary.unlink(missing_ok=True)
