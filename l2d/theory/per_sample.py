"""Any loss as a function of one sample: its value and its slope, row by row, in float64 where it allows that."""

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
        self._takes = torch.float64 if self._works(*given) else torch.float32  # its own tensors may be float32
        batch = found = self._scalar(*given)
        if callable(getattr(self.loss, "losses", None)):
            self._rows = lambda scores, *rest: self.loss.losses(self._cast(scores), *rest)
            found = self._call(self._rows, *given)
            if not isinstance(found, Tensor) or found.shape != labels.shape:
                shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise UserError(f"loss={self.name}: losses() must return one value per sample, [6] here, not {shape}.")
        else:
            single = torch.stack([self._scalar(*(value[i : i + 1] for value in given)) for i in range(6)])
            self._rows = self._vectorised(single, given)
            if self._rows is None and not torch.allclose(single.mean(), batch, rtol=1e-4, atol=1e-5):
                raise UserError(
                    f"loss={self.name} returns {batch.item():.4g} for six samples, whose own losses have the mean "
                    f"{single.mean().item():.4g}; only a mean over samples has an expected value per sample."
                )
        self.exact = found.dtype == torch.float64
        if not batch.isfinite():
            raise UserError(
                f"loss={self.name} returns {batch.item()} for scores of ordinary size; it cannot be judged."
            )

    def _vectorised(self, expected: Tensor, given: tuple[Tensor, ...]) -> Callable[..., Tensor] | None:
        """The loss by torch.vmap, if that works and agrees with single rows."""

        def one(scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
            return self.loss(self._cast(scores)[None], labels[None], answers[None])

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

    def _works(self, *given: Tensor) -> bool:
        try:
            self.loss(*given)
            return True
        except Exception:
            return False

    def _scalar(self, scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """The loss of a batch, which must be one number."""
        found = self._call(self.loss, self._cast(scores), labels, answers)
        if not isinstance(found, Tensor) or found.dim():
            what = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise UserError(
                f"loss={self.name} returns {what} for a batch; it must return one number, the mean over samples."
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
                f"loss={self.name} fails with {self.num_classes} classes and {self.num_experts} experts on tensors of "
                f"shapes {shapes}: {type(error).__name__}: {reason}"
            ) from error
