"""The embedded dataset: what it claims to know about itself, checked against densities and samples."""

from math import exp, pi, prod, sqrt

import pytest
import torch

from l2d.data import synthetic

SETTINGS = {
    "name": "synthetic",
    "num_classes": 5,
    "group_size": 2,
    "grid": 2,
    "pixel": 3,
    "separation": 0.6,
    "num_train": 200,
    "num_test": 100,
    "seed": 0,
}


def cells_of(images: torch.Tensor, pixel: int) -> torch.Tensor:
    """The numbers behind the squares [N, 3 * grid * grid], by averaging each square."""
    return torch.nn.functional.avg_pool2d(images.double(), pixel).flatten(1)


def test_shapes_labels_and_group():
    data = synthetic(**SETTINGS)
    assert data.num_classes == len(data.class_names) == 5
    assert data.groups == {"specialty": [0, 1]}
    assert data.preprocessing.shape == (3, 6, 6)
    for split, count in ((data.train, 200), (data.test, 100)):
        assert split.inputs.pixels.shape == (count, 3, 6, 6)
        assert split.inputs.pixels.dtype == torch.float32
        assert split.labels.unique().tolist() == [0, 1, 2, 3, 4]


def test_every_cell_is_a_square_of_equal_pixels():
    images = synthetic(**SETTINGS).test.inputs.pixels
    for row in range(6):
        for column in range(6):
            corner = images[:, :, row - row % 3, column - column % 3]
            assert torch.equal(images[:, :, row, column], corner)
    assert images[:, :, ::3, ::3].flatten(1).unique(dim=1).shape[1] == 12  # and the squares differ


def test_the_posterior_is_bayes_rule_on_gaussian_densities():
    """With the class means of a large sample as prototypes: noise leaves them within about 1/sqrt(40,000)."""
    data = synthetic(**{**SETTINGS, "num_train": 200_000, "grid": 1, "pixel": 1})
    z = cells_of(data.train.inputs.pixels, 1)
    prototypes = [z[data.train.labels == k].mean(0).tolist() for k in range(5)]

    def density(point: list[float], mean: list[float]) -> float:
        return prod(exp(-((a - b) ** 2) / 2) / sqrt(2 * pi) for a, b in zip(point, mean, strict=True))

    eta = data.posterior(data.test.inputs.pixels)
    assert eta.shape == (100, 5)
    assert torch.allclose(eta.sum(1), torch.ones(100, dtype=eta.dtype))
    for row, point in zip(eta.tolist(), cells_of(data.test.inputs.pixels, 1).tolist(), strict=True):
        densities = [density(point, mean) for mean in prototypes]
        for k in range(5):
            assert row[k] == pytest.approx(densities[k] / sum(densities), abs=0.02)


def test_the_posterior_is_calibrated():
    """Among samples given probability p for a class, a share p has that class: within five standard deviations."""
    data = synthetic(**{**SETTINGS, "num_test": 60_000})
    eta = data.posterior(data.test.inputs.pixels)  # [N, K]
    is_class = torch.nn.functional.one_hot(data.test.labels, 5).double()  # [N, K]
    filled = 0
    for low in torch.arange(0, 1, 0.1).tolist():
        inside = (eta >= low) & (eta < low + 0.1)
        p, n = eta[inside].mean().item(), inside.sum().item()
        if n > 500:
            filled += 1
            assert is_class[inside].mean().item() == pytest.approx(p, abs=5 * sqrt(p * (1 - p) / n))
    assert filled == 10


def test_classes_are_prototypes_plus_unit_noise():
    data = synthetic(**{**SETTINGS, "num_classes": 40, "num_train": 40_000})
    z = cells_of(data.train.inputs.pixels, 3)
    means = torch.stack([z[data.train.labels == k].mean(0) for k in range(40)])
    noise = z - means[data.train.labels]
    assert noise.std().item() == pytest.approx(1, abs=0.02)
    assert means.std().item() == pytest.approx(0.6, abs=0.1)  # 480 prototype numbers of deviation 0.6


def test_the_data_follow_from_their_own_seed_alone():
    torch.manual_seed(1)
    first = synthetic(**SETTINGS)
    torch.manual_seed(2)
    second = synthetic(**SETTINGS)
    state = torch.get_rng_state()
    other = synthetic(**{**SETTINGS, "seed": 1})
    assert torch.equal(torch.get_rng_state(), state)  # the run's own randomness is left alone
    for split in ("train", "test"):
        a, b, c = (getattr(d, split) for d in (first, second, other))
        assert torch.equal(a.inputs.pixels, b.inputs.pixels)
        assert torch.equal(a.labels, b.labels)
        assert not torch.equal(a.inputs.pixels, c.inputs.pixels)
    assert not torch.equal(first.train.inputs.pixels[:100], first.test.inputs.pixels)
