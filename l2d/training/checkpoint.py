"""Checkpoints: all that a run needs to continue exactly. The last two are kept, each with its checksum."""

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from l2d.atomic import atomic_write, read_bytes
from l2d.errors import UserError, notify

NAMES = ("checkpoint.pt", "checkpoint.previous.pt")
_MAGIC, _MAGIC_V1 = b"l2d checkpoint 2\n", b"l2d checkpoint 1\n"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints in a run's folder; those of another setting, or on other data, are rejected by their fingerprint."""

    folder: Path
    fingerprint: str

    def save(self, state: dict[str, Any]) -> None:
        """Write atomically; the checkpoint before this one stays beside it."""
        latest, previous = (self.folder / name for name in NAMES)
        payload = io.BytesIO()
        torch.save({**state, "fingerprint": self.fingerprint}, payload)
        content = payload.getbuffer()

        def write(file: BinaryIO) -> None:
            file.write(_MAGIC + hashlib.sha256(content).digest())
            file.write(content)
            file.flush()
            if latest.exists():
                os.replace(latest, previous)

        atomic_write(latest, write)

    def load(self, path: Path) -> dict[str, Any]:
        """The state in a checkpoint of this setting; UserError if it is anything else. No code in it is run."""
        state = read_checkpoint(path)
        if state["fingerprint"] != self.fingerprint:
            raise UserError(
                f"{path} belongs to another setting or to other data ({state['fingerprint']}, and this is {self.fingerprint})."
            )
        return state

    def latest(self) -> dict[str, Any] | None:
        """The state of the newest intact checkpoint; None if there is no file; UserError if all are damaged."""
        problems = []
        for path in (self.folder / name for name in NAMES):
            if not path.exists():
                continue
            try:
                state = self.load(path)
            except UserError as error:
                problems.append(str(error))
                continue
            if problems:
                notify(f"{problems[0]} Continuing from the checkpoint before it.")
            return state
        if problems:
            raise UserError(f"{' '.join(problems)} No good checkpoint is left, and resume=never starts from zero.")
        return None

    def existing(self) -> Path | None:
        """The newest checkpoint file, intact or not; None if there is no file."""
        return next((path for path in (self.folder / name for name in NAMES) if path.exists()), None)

    def remove(self) -> None:
        for name in NAMES:
            (self.folder / name).unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state in a checkpoint file of any setting; UserError if it is damaged. No code in it is run."""
    try:
        content = memoryview(read_bytes(path))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); resume takes auto, never or the path of a checkpoint."
        ) from error
    if content[: len(_MAGIC)] == _MAGIC_V1:
        raise UserError(
            f"{path} was written by l2d 0.1, whose checkpoints do not identify their data; resume=never starts from zero."
        )
    digest, payload = content[len(_MAGIC) : len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if content[: len(_MAGIC)] != _MAGIC or hashlib.sha256(payload).digest() != digest:
        raise UserError(f"{path} is damaged or no checkpoint (its checksum does not fit).")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} holds more than tensors and plain values, so it was not loaded (no code in it was run)."
        ) from error
    return state
