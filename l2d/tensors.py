"""Tensors in a safetensors file: the same tensors give the same bytes, and a checksum, which the format lacks, detects damage."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2d.atomic import read_bytes
from l2d.errors import UserError

if TYPE_CHECKING:  # torch takes a second to import, and most commands do not need it
    from torch import Tensor

_BLANK = "0" * 64  # placeholder while the checksum is computed


def pack(tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> bytes:
    """The content of a safetensors file, with `sha256` added to the metadata."""
    from safetensors.torch import save

    # Copies, because safetensors refuses tensors that share memory (tied weights) or are not contiguous.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    header, data = _split(save(copies))
    header["__metadata__"] = {**metadata, "sha256": _BLANK}  # safetensors itself would write it in random order
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the tensors to 8 bytes
    blank = len(text).to_bytes(8, "little") + text + data
    return _with_checksum(blank, _BLANK, hashlib.sha256(blank).hexdigest())


def unpack(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors and metadata of a file that `pack` made, UserError if any byte was changed. No code in it is run."""
    from safetensors.torch import load

    try:
        content = read_bytes(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    if not is_intact(content):
        raise UserError(f"{path} is damaged, or was not written by l2d (its checksum does not fit).")
    metadata = dict(_split(content)[0]["__metadata__"])
    del metadata["sha256"]
    return load(content), metadata


def is_intact(content: bytes) -> bool:
    """Whether every byte of a file that `pack` made is as it was written."""
    try:
        checksum = str(_split(content)[0]["__metadata__"]["sha256"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
    return hashlib.sha256(_with_checksum(content, checksum, _BLANK)).hexdigest() == checksum


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes of the tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def _with_checksum(content: bytes, old: str, new: str) -> bytes:
    return content.replace(f'"sha256":"{old}"'.encode(), f'"sha256":"{new}"'.encode(), 1)
