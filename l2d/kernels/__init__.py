"""Functions in C for batches on the CPU: one call for what takes torch five to twenty, each of which costs microseconds.

They are built with the package where there is a C compiler (*.c). Each returns None where it cannot serve (no compiler, another
device, type or shape, a graph that is traced), and its caller goes on with torch: to the same numbers bit for bit, but for those of
`deferral_loss`, which may differ in the last digit.
"""

import ctypes
import importlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from l2d.errors import notify

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}
_ARGUMENTS = {
    "deferral_loss": "pippippiiiiiffif",
    "decide": "ppipippppiii",
    "argmax_float": "pipii",
    "argmax_double": "pipii",
    "heard_8": "pppppppii",
    "heard_16": "pppppppii",
    "right_8": "ppppppii",
    "right_16": "ppppppii",
    "standardise": "pipppii",
    "cut_windows": "pipippiiiiiii",
}
_EXPERTS = {"vanilla": 0, "picce": 1, "pice": 2, "soft_picce": 3}
_BASES = {"softmax": 0, "power": 1, "binary": 2, "decoupled": 3, "asymmetric": 4, "realizable": 5}
_MAPPED_ANEW = 32 << 20  # bytes from which on glibc maps memory for every allocation
_EARNED = {"nowhere": 0, "all": 1, "best": 2}


def _load() -> Any:
    """The library, if it was built, and from the source that is here; else None."""
    try:
        built = importlib.import_module(f"{__name__}.compiled")
    except ImportError:
        return None
    library, sources = ctypes.CDLL(built.__file__), sorted(Path(__file__).parent.glob("*.[ch]"))
    library.source_checksum.restype = ctypes.c_uint32
    if sources and zlib.crc32(b"".join(path.read_bytes() for path in sources)) != library.source_checksum():
        notify("The compiled functions are not those of l2d/kernels/*.c and are not used; install l2d again.")
        return None
    for name, letters in _ARGUMENTS.items():
        getattr(library, name).argtypes = [_TYPES[letter] for letter in letters]
    return library


_library = _load()


def built() -> bool:
    """Whether the library is there."""
    return _library is not None


class DeferralLoss(NamedTuple):
    """A loss that the library knows: which experts are taught, and how a column is taught (losses.c has the formulas)."""

    experts: Literal["vanilla", "picce", "pice", "soft_picce"]
    base: Literal["softmax", "power", "binary", "decoupled", "asymmetric", "realizable"]
    q: float = 0.0  # of `power` and `realizable`
    weight: float | Literal["balanced"] = 1.0  # of the experts' terms
    cost: float = 0.0  # what is added to the targets of classes,
    earned: Literal["nowhere", "all", "best"] = "nowhere"  # of these


def deferral_loss(
    loss: DeferralLoss, scores: Tensor, labels: Tensor, answers: Tensor, by_torch: Callable[..., Tensor]
) -> Tensor | None:
    """The mean loss of scores [B, K+J], labels [B] and answers [B, J] (-1: none). Its gradient is computed at the same time; for second
    derivatives that is done again `by_torch`, which is called with these three and a reduction."""
    if scores.dim() != 2 or answers.dim() != 2 or answers.dtype not in (torch.int8, torch.int16, torch.int64):
        return None
    (rows, columns), num_experts = scores.shape, answers.shape[1]
    if columns - num_experts < 2 or not (
        _serves(scores, torch.float32, rows, columns, apart=True)
        and _serves(labels, torch.int64, rows)
        and _serves(answers, answers.dtype, rows, num_experts)
    ):
        return None
    value: Tensor = _DeferralLoss.apply(scores, labels, answers, loss, by_torch)
    return None if torch.numel(value) == 0 else value


class _DeferralLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, labels: Tensor, answers: Tensor, loss: DeferralLoss, by_torch: Callable[..., Tensor]
    ) -> Tensor:
        """The loss; nothing, [0], if a label is no class: it is for torch to say so."""
        (rows, columns), num_experts, mean = scores.shape, answers.shape[1], ctypes.c_double()
        ctx.gradient, ctx.by_torch = torch.empty(rows, columns), by_torch
        ctx.save_for_backward(scores, labels, answers)
        failed = _library.deferral_loss(
            scores.data_ptr(), scores.stride(0), labels.data_ptr(), answers.data_ptr(), answers.itemsize, ctx.gradient.data_ptr(),
            ctypes.addressof(mean), rows, columns - num_experts, num_experts, _EXPERTS[loss.experts], _BASES[loss.base], loss.q,
            -1.0 if loss.weight == "balanced" else loss.weight, _EARNED[loss.earned], loss.cost,
        )  # fmt: skip
        return torch.empty(0) if failed else torch.scalar_tensor(mean.value)

    @staticmethod
    def backward(ctx: Any, flow: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the gradient is to be derived, too
            scores, labels, answers = ctx.saved_tensors
            value = ctx.by_torch(scores, labels, answers, reduction="mean")
            (gradient,) = torch.autograd.grad(value, scores, flow, create_graph=True)
        else:
            gradient = ctx.gradient if flow.item() == 1 else ctx.gradient * flow
        return gradient, None, None, None, None


def decide(beliefs: Tensor, utility: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """The predicted class [N], the best expert [N], gain [N, J] and who is asked [N, J], by beliefs [N, K+J] and the experts' utility
    [N, J]; `order` [N, K+J] decides between equals."""
    shape, (rows, num_experts) = beliefs.shape, utility.shape
    if order.dtype not in (torch.float32, torch.float64) or not (
        _serves(order, order.dtype, *shape)
        and _serves(beliefs, torch.float64, *shape)
        and _serves(utility, torch.float64, shape[0], num_experts, apart=True)
        and shape[1] > num_experts
    ):
        return None
    predicted, expert = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.int64)
    gain, asked = empty_table(rows, num_experts), torch.empty(rows, num_experts, dtype=torch.bool)
    failed = _library.decide(
        beliefs.data_ptr(), utility.data_ptr(), utility.stride(0), order.data_ptr(), order.itemsize, predicted.data_ptr(),
        expert.data_ptr(), gain.data_ptr(), asked.data_ptr(), rows, shape[1] - num_experts, num_experts,
    )  # fmt: skip
    return None if failed else (predicted, expert, gain, asked)


def empty_table(rows: int, columns: int) -> Tensor:
    """torch.empty(rows, columns, dtype=torch.float64). Where the allocator does not keep what it gets back, it comes from numpy, which
    asks for large pages: writing to it for the first time is four times as fast."""
    if 8 * rows * columns < _MAPPED_ANEW:
        return torch.empty(rows, columns, dtype=torch.float64)
    return torch.from_numpy(np.empty((rows, columns)))


def argmax(table: Tensor) -> Tensor | None:
    """table.argmax(dim=1) of a table [N, C]."""
    name = {torch.float32: "argmax_float", torch.float64: "argmax_double"}.get(table.dtype)
    if name is None or table.dim() != 2 or not _serves(table, table.dtype, *table.shape, apart=True):
        return None
    out = torch.empty(len(table), dtype=torch.int64)
    getattr(_library, name)(table.data_ptr(), table.stride(0), out.data_ptr(), *table.shape)
    return out


class Heard(NamedTuple):
    """What a panel says, by answers [N, J] (below 0: none) to labels [N]."""

    majority: Tensor  # [N] what most experts say, among equals what the first of them says; -1 if nobody says anything
    right: Tensor  # [N] how many experts are right
    given: Tensor  # [N] how many say something
    right_of: Tensor  # [J] how often each expert is right
    given_of: Tensor  # [J] how often each says something


def heard(answers: Tensor, labels: Tensor) -> Heard | None:
    """All of it in one call."""
    if not _serve_panel(answers, labels):
        return None
    rows, num_experts = answers.shape
    counts = (torch.empty(count, dtype=torch.int32) for count in (rows, rows, num_experts, num_experts))
    out = Heard(torch.empty(rows, dtype=torch.int64), *counts)
    pointers = (each.data_ptr() for each in (answers, labels, *out))
    failed = getattr(_library, f"heard_{8 * answers.itemsize}")(*pointers, rows, num_experts)
    return None if failed else out


def right_experts(answers: Tensor, labels: Tensor, gain: Tensor, asked: Tensor) -> tuple[Tensor, Tensor] | None:
    """How many experts are right, by answers [N, J] (below 0: none) to labels [N], and there (gain [N, J] above -infinity); and how
    many of those are asked [N, J]. [N] each."""
    shape = answers.shape
    if not (
        _serve_panel(answers, labels) and _serves(gain, torch.float64, *shape) and _serves(asked, torch.bool, *shape)
    ):
        return None
    there, heard = torch.empty(shape[0], dtype=torch.int32), torch.empty(shape[0], dtype=torch.int32)
    pointers = (each.data_ptr() for each in (answers, labels, gain, asked, there, heard))
    getattr(_library, f"right_{8 * answers.itemsize}")(*pointers, *shape)
    return there, heard


def _serve_panel(answers: Tensor, labels: Tensor) -> bool:
    """Whether the library can read answers [N, J] to labels [N]."""
    return (
        answers.dim() == 2
        and answers.dtype in (torch.int8, torch.int16)
        and _serves(answers, answers.dtype, *answers.shape)
        and _serves(labels, torch.int64, len(answers))
    )


def standardise(table: Tensor, mean: Tensor, scale: Tensor) -> Tensor | None:
    """(table - mean) * scale, of a table [N, D] with mean and scale [D]."""
    if table.dim() != 2 or table.requires_grad:
        return None
    rows, columns = table.shape
    if not (
        _serves(table, torch.float32, rows, columns, apart=True)
        and _serves(mean, torch.float32, columns)
        and _serves(scale, torch.float32, columns)
    ):
        return None
    out = torch.empty(rows, columns)
    _library.standardise(
        table.data_ptr(), table.stride(0), mean.data_ptr(), scale.data_ptr(), out.data_ptr(), rows, columns
    )
    return out


def cut_windows(images: Tensor, windows: Tensor, affine: Tensor, out: Tensor, padding: int) -> bool:
    """Write windows of images [N, C, H, W] in bytes into floats [B, C, *size]; return whether it was done.

    `windows` [4, B] are for each of the floats the image, the top and the left of the window in that image padded by
    reflection, and whether it is mirrored. Every pixel is multiplied by affine[0], and affine[1] is added, [C] each.
    """
    number, channels, rows, columns = images.shape
    count, size = out.shape[0], out.shape[2:]
    if not (
        _serves(images, torch.uint8, *images.shape)
        and _serves(windows, torch.int64, 4, count, apart=True)
        and _serves(affine, torch.float32, 2, channels)
        and _serves(out, torch.float32, count, channels, *size)
    ):
        return False
    failed = _library.cut_windows(
        images.data_ptr(), number, windows.data_ptr(), windows.stride(0), affine.data_ptr(), out.data_ptr(),
        count, channels, rows, columns, *size, padding,
    )  # fmt: skip
    return not failed


def _serves(tensor: Tensor, dtype: torch.dtype, *shape: int, apart: bool = False) -> bool:
    """Whether the library can read this tensor: numbers of this type and shape in the memory of the CPU, one after the other; the rows
    may be `apart`."""
    return (
        _library is not None
        and type(tensor) is Tensor  # and not a fake one
        and tensor.is_cpu
        and tensor.dtype is dtype
        and tensor.shape == shape
        and (tensor.is_contiguous() or (apart and tensor.stride(-1) == 1))
        and tensor.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()  # as in vmap, whose tensors have no memory
    )
