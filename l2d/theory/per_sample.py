"""Any loss as a function of one sample: its value and its slope, row by row, in float64 where it allows that."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from l2d.errors import UserError
from l2d.systems import System


class PerSample:
    """The loss of a system on K classes and J experts.

    `losses(scores [B, K+J], labels, answers) -> [B]` of the loss is used if there is one. Otherwise its scalar is taken for
    one row at a time: by torch.vmap, or where that fails by a loop, with the slope of all rows from one batch.
    """

    def __init__(self, name: str, system: System, num_classes: int, num_experts: int):
        self.name, self.system, self.num_classes, self.num_experts = name, system, num_classes, num_experts
        self.loss: Any = system.loss
        self.has_beliefs = hasattr(self.loss, "beliefs")
        self._rows: Callable[..., Tensor] | None = None  # differentiable; None: a loop
        self._prepare()

    @property
    def vectorised(self) -> bool:
        """Whether many rows are computed at once."""
        return self._rows is not None

    def values(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """The loss of every row, [R]."""
        with torch.no_grad():
            if self._rows:
                return self._call(self._rows, scores, labels, answers).double()
            rows = zip(scores.split(1), labels.split(1), answers.split(1), strict=True)
            return torch.stack([self._scalar(*row) for row in rows]).double()

    def slopes(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """The gradient of every row's loss by its scores, [R, K+J]."""
        leaf = scores.detach().clone().requires_grad_()
        if self._rows:
            total = self._call(self._rows, leaf, labels, answers).sum()
        else:
            total = self._scalar(leaf, labels, answers) * len(labels)
        if not total.requires_grad:
            raise UserError(
                f"loss={self.name} does not depend on the scores, or has no gradient; it cannot be trained."
            )
        (slope,) = torch.autograd.grad(total, leaf, allow_unused=True)
        return torch.zeros_like(leaf) if slope is None else slope.nan_to_num(0.0, 0.0, 0.0)

    def beliefs(self, scores: Tensor) -> Tensor:
        """[eta, Acc] as a trained system would believe them, [.., K+J]."""
        flat = scores.reshape(-1, scores.shape[-1])
        return self._call(self.system.beliefs, flat).reshape(scores.shape)

    def _prepare(self) -> None:
        """Find a way to compute rows, on a few random samples of which some have no answer; UserError if there is none."""
        generator = torch.Generator().manual_seed(0)
        width = self.num_classes + self.num_experts
        scores = torch.randn(6, width, dtype=torch.float64, generator=generator)
        labels = torch.randint(self.num_classes, (6,), generator=generator)
        answers = torch.randint(-1, self.num_classes, (6, self.num_experts), generator=generator)
        given = (scores, labels, answers)
        own = getattr(self.loss, "losses", None)
        self._takes = torch.float64 if self._works(own or self.loss, *given) else torch.float32
        batch = self._scalar(*given)
        if own:
            self._rows = lambda scores, *rest: own(self._cast(scores), *rest)
            rows = self._call(self._rows, *given)
            if not isinstance(rows, Tensor) or rows.shape != labels.shape:
                raise UserError(
                    f"loss={self.name}: losses() returns {_kind(rows)} for six samples, not one value each."
                )
        else:
            rows = torch.stack([self._scalar(*(value[i : i + 1] for value in given)) for i in range(6)])
            self._rows = self._vectorised(rows, given)
        self.exact = rows.dtype == torch.float64
        mean = rows.double().mean().item()
        if not math.isfinite(mean):
            raise UserError(f"loss={self.name} returns {mean} for scores of ordinary size; it cannot be judged.")
        if not math.isclose(mean, batch.item(), rel_tol=1e-4, abs_tol=1e-5):
            raise UserError(
                f"loss={self.name} returns {batch.item():.4g} for six samples, whose own losses have the mean {mean:.4g}; "
                "only a mean over samples can be judged."
            )

    def _vectorised(self, expected: Tensor, given: tuple[Tensor, ...]) -> Callable[..., Tensor] | None:
        """The loss by torch.vmap, if that works and agrees with single rows."""

        def one(scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
            loss: Tensor = self.loss(self._cast(scores)[None], labels[None], answers[None])
            return loss

        rows = torch.vmap(one)
        try:
            leaf = given[0].clone().requires_grad_()
            found = rows(leaf, *given[1:])
            torch.autograd.grad(found.sum(), leaf)
        except Exception:  # control flow by values, writes in place, and whatever else vmap cannot follow
            return None
        return rows if found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5) else None

    def _cast(self, scores: Tensor) -> Tensor:
        return scores.to(self._takes)

    def _works(self, function: Callable[..., Tensor], *given: Tensor) -> bool:
        """Whether it takes float64; its own tensors may be float32, and not mix with that."""
        try:
            function(*given)
            return True
        except Exception:
            return False

    def _scalar(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """The loss of a batch, which must be one number."""
        found = self._call(self.loss, self._cast(scores), labels, answers)
        if not isinstance(found, Tensor) or found.dim():
            raise UserError(
                f"loss={self.name} returns {_kind(found)} for a batch; it must return one number, the mean over samples."
            )
        return found

    def _call(self, function: Callable[..., Tensor], *given: Tensor) -> Tensor:
        try:
            return function(*given)
        except UserError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or "no reason given"
            shapes = ", ".join(str(list(value.shape)) for value in given)
            raise UserError(
                f"loss={self.name} fails with K={self.num_classes} and J={self.num_experts} on tensors of shapes {shapes}: "
                f"{type(error).__name__}: {reason}"
            ) from error


def _kind(found: object) -> str:
    return (
        f"a tensor of shape {list(found.shape)}"
        if isinstance(found, Tensor)
        else f"a value of type {type(found).__name__}"
    )
