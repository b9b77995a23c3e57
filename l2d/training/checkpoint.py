"""Checkpoints: all that a run needs to go on as if it had never stopped. Two are kept, each with its checksum."""

import hashlib
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch

from l2d.atomic import atomic_write
from l2d.errors import UserError, notify

NAMES = ("checkpoint.pt", "checkpoint.previous.pt")
_MAGIC = b"l2d checkpoint 1\n"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Atomic; the checkpoint before this one stays beside it."""
    latest, previous = (folder / name for name in NAMES)
    payload = io.BytesIO()
    torch.save(state, payload)
    content = payload.getbuffer()

    def write(file: BinaryIO) -> None:
        file.write(_MAGIC + hashlib.sha256(content).digest())
        file.write(content)
        file.flush()
        if latest.exists():
            os.replace(latest, previous)

    atomic_write(latest, write)


def load_checkpoint(path: Path, fingerprint: str) -> dict[str, Any]:
    """The state in a checkpoint of the setting with this fingerprint; a sentence if it is anything else. Nothing in it is run."""
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); resume takes auto, never or the path of a checkpoint."
        ) from error
    digest, payload = content[len(_MAGIC) : len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if content[: len(_MAGIC)] != _MAGIC or hashlib.sha256(payload).digest() != digest:
        raise UserError(f"{path} is damaged or no checkpoint (its checksum does not fit).")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} holds more than tensors and plain values, and is refused (nothing was run)."
        ) from error
    if state["fingerprint"] != fingerprint:
        raise UserError(f"{path} belongs to another setting ({state['fingerprint']}, and this is {fingerprint}).")
    return state


def latest_checkpoint(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """The newest good checkpoint of a run's folder; None if it has none at all; a sentence if all are damaged."""
    problems = []
    for path in (folder / name for name in NAMES):
        if not path.exists():
            continue
        try:
            state = load_checkpoint(path, fingerprint)
        except UserError as error:
            problems.append(str(error))
            continue
        if problems:
            notify(f"{problems[0]} Going on from the checkpoint before it.")
        return state
    if problems:
        raise UserError(f"{' '.join(problems)} No good checkpoint is left, and resume=never starts from zero.")
    return None


def remove_checkpoints(folder: Path) -> None:
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
