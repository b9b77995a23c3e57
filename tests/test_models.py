"""Backbones: K+J outputs, WideResNet as published, timm by name."""

import pytest
import timm
import torch

from l2d.errors import UserError
from l2d.models import MLP, timm_model
from l2d.models.wide_resnet import WideResNet


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_mlp_has_the_requested_layers():
    """3 * 4 * 4 = 48 inputs, two hidden layers of 10, 7 outputs: 48*10 + 10 + 10*10 + 10 + 10*7 + 7 parameters."""
    model = MLP(num_outputs=7, image_shape=(3, 4, 4), hidden=10, layers=2)
    assert parameters(model) == 490 + 110 + 77
    assert model(torch.randn(5, 3, 4, 4)).shape == (5, 7)


def test_mlp_reads_channels_last_images_the_same():
    model, images = MLP(7, (3, 4, 4), 10, 1), torch.randn(5, 3, 4, 4)
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), model(images))


@pytest.mark.parametrize(
    ("depth", "width", "classes", "expected"),
    [
        # Published sizes: WRN-28-10 has 36.5M and WRN-40-4 8.9M parameters, with 10 classes.
        (28, 10, 10, 36.5e6),
        (40, 4, 10, 8.9e6),
        (16, 8, 10, 11.0e6),
    ],
)
def test_wide_resnet_has_its_published_size(depth, width, classes, expected):
    with torch.device("meta"):
        model = WideResNet(classes, depth, width)
    assert parameters(model) == pytest.approx(expected, rel=0.01)


def test_wide_resnet_is_as_deep_as_its_name_and_shrinks_twice():
    """Stem and 12 blocks of two 3x3 convolutions; a 1x1 where each stage changes the shape; 32 -> 16 -> 8 pixels."""
    with torch.device("meta"):
        model = WideResNet(10, 28, 4)
        convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
        assert sum(c.kernel_size == (3, 3) for c in convolutions) == 25
        assert sum(c.kernel_size == (1, 1) for c in convolutions) == 3
        assert model.blocks(model.stem(torch.empty(1, 3, 32, 32))).shape == (1, 256, 8, 8)


def test_every_parameter_of_wide_resnet_learns():
    model = WideResNet(5, 10, 1)
    model(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_wide_resnet_is_in_timms_registry():
    assert timm.is_model("wrn28")
    model = timm.create_model("wrn28", num_classes=104, depth=10, width=2)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 104)


@pytest.mark.parametrize(("depth", "width"), [(27, 4), (4, 4), (28, 0)])
def test_impossible_wide_resnets_are_refused(depth, width):
    with pytest.raises(UserError, match="6n"):
        WideResNet(10, depth, width)


def test_any_timm_model_by_name_with_k_plus_j_outputs():
    with torch.device("meta"):
        model = timm_model("resnet10t", 13, (1, 64, 64), pretrained=False)
        assert model(torch.empty(2, 1, 64, 64)).shape == (2, 13)


def test_unknown_models_and_settings_are_refused():
    with pytest.raises(UserError, match=r"no model 'resnet81'.*resnet18"):
        timm_model("resnet81", 13, (3, 64, 64), pretrained=False)
    with pytest.raises(UserError, match="does not take"):
        timm_model("resnet18", 13, (3, 64, 64), pretrained=False, widht=4)
    with pytest.raises(UserError, match="no pretrained weights"):
        timm_model("wrn28", 13, (3, 32, 32), pretrained=True)
