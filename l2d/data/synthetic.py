"""The embedded dataset: a Gaussian mixture over small RGB images, whose posterior is known exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from l2d.data.dataset import Dataset, Generated, Split, listed_by
from l2d.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@listed_by(Generated)
def synthetic(
    name: str,
    num_classes: Annotated[int, Ge(2)],
    group_size: Annotated[int, Ge(0)],
    grid: Annotated[int, Ge(1)],
    pixel: Annotated[int, Ge(1)],
    separation: Annotated[float, Ge(0)],
    num_train: Annotated[int, Ge(1)],
    num_test: Annotated[int, Ge(1)],
    seed: int,
) -> Dataset:
    """Class k is a prototype mu_k ~ N(0, separation^2) plus N(0, 1) noise, on a grid of 3 x grid x grid numbers.

    A number is drawn as a square of pixel x pixel equal pixels, so the image holds exactly the mixture's sample z and
    the posterior is eta_k(x) = softmax_k(-||z - mu_k||^2 / 2). The first `group_size` classes form the group
    'specialty'. Everything depends on `seed` alone, not on the run's own seed.
    """
    import torch

    from l2d.data.resident import Images
    from l2d.place.memory import available_memory

    if group_size > num_classes:
        raise UserError(f"dataset.group_size={group_size} must be at most dataset.num_classes={num_classes}.")
    values = (num_train + num_test) * 3 * grid**2 * (1 + pixel**2) + num_classes * (3 * grid**2 + 2 * num_test + 20)
    if 4 * values > available_memory():
        raise UserError(
            f"The embedded dataset of this size needs {4 * values / 1e9:.3g} GB and {available_memory() / 1e9:.3g} GB are "
            "free; lower dataset.num_train, num_test, num_classes, grid or pixel."
        )
    rng = torch.Generator().manual_seed(seed)
    prototypes = separation * torch.randn(num_classes, 3 * grid * grid, generator=rng)  # [K, D]

    def draw(count: int) -> Split:
        labels = torch.randint(num_classes, (count,), generator=rng)  # [N]
        z = prototypes[labels] + torch.randn(count, prototypes.shape[1], generator=rng)  # [N, D]
        cells = z.view(count, 3, grid, grid)
        return Split(Images(cells.repeat_interleave(pixel, 2).repeat_interleave(pixel, 3)), labels)

    def posterior(images: Tensor) -> Tensor:
        z = images[:, :, ::pixel, ::pixel].flatten(1).double()  # [B, D]
        mu = prototypes.to(images.device).double()  # [K, D]
        return torch.softmax(z @ mu.T - mu.square().sum(1) / 2, dim=1)  # [B, K]; ||z||^2 cancels

    return Dataset(
        name=name,
        class_names=[f"class_{k}" for k in range(num_classes)],
        train=draw(num_train),
        test=draw(num_test),
        groups={"specialty": list(range(group_size))},
        posterior=posterior,
    )
