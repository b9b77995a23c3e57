"""Pickles of strangers, read without running code: numpy arrays and plain containers only. Importing this does not import torch."""

import io
import pickle
import zipfile
from typing import Any


class PlainUnpickler(pickle.Unpickler):
    """Loads numpy arrays and plain containers only; nothing that could run code."""

    ALLOWED = {
        (f"numpy.{core}.multiarray", function) for core in ("core", "_core") for function in ("_reconstruct", "scalar")
    } | {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")} | {
        ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks to load {module}.{name}: refused, nothing was run")
        return super().find_class(module, name)


def load_pickle(content: bytes) -> Any:
    """The object of a pickle; strings that Python 2 wrote are bytes. A damaged pickle may raise anything."""
    return PlainUnpickler(io.BytesIO(content), encoding="bytes").load()


def load_torch(content: bytes) -> Any:
    """The object that torch.save wrote, if it has no tensors: a pickle in a zip archive, or in the format before torch 1.6
    the fourth of several pickles. A damaged file may raise anything."""
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            return load_pickle(archive.read(member))
    stream = io.BytesIO(content)
    for _ in range(3):  # a magic number, the version of the format, the sizes of integers
        PlainUnpickler(stream).load()
    return PlainUnpickler(stream).load()
