"""Backbones: K+J outputs, WideResNet as published, timm by name."""

import socket
import threading
import time

import pytest
import timm
import torch
from safetensors.torch import save_file

from l2d.errors import UserError
from l2d.models import MLP, registry, timm_model
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


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """Names are looked up forever, and nothing was downloaded before."""
    from huggingface_hub import constants

    end = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: end.wait(60) and [])
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    yield
    end.set()


@pytest.mark.parametrize(("name", "timeout"), [("resnet18", registry.ANSWER_TIMEOUT), ("gcvit_xxtiny", 0.2)])
def test_without_a_network_pretrained_weights_fail_soon_with_the_way_out(no_network, monkeypatch, name, timeout):
    """The first has its weights on the hub, the second at an address of its own."""
    monkeypatch.setattr(registry, "ANSWER_TIMEOUT", timeout)
    start = time.monotonic()
    with pytest.raises(UserError, match=rf"weights of {name} .*does not answer.*backbone\.pretrained=FILE"):
        timm_model(name, 13, (3, 64, 64), pretrained=True)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("kind", ["safetensors", "pth"])
@pytest.mark.parametrize("channels", [1, 3])
def test_weights_are_taken_from_a_file_except_the_last_layer(tmp_path, kind, channels):
    path, published = tmp_path / f"weights.{kind}", timm.create_model("resnet10t", num_classes=1000)
    save_file(published.state_dict(), path) if kind == "safetensors" else torch.save(published.state_dict(), path)
    model = timm_model("resnet10t", 13, (channels, 64, 64), pretrained=str(path))
    assert model.eval()(torch.randn(2, channels, 64, 64)).shape == (2, 13)
    own, theirs = model.state_dict(), published.state_dict()
    differ = {name for name in own if own[name].shape != theirs[name].shape or not torch.equal(own[name], theirs[name])}
    assert differ == {"fc.weight", "fc.bias"} | ({"conv1.0.weight"} if channels == 1 else set())


def test_files_without_the_weights_of_the_model_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"backbone\.pretrained=gone\.pth is no file"):
        timm_model("resnet10t", 13, (3, 64, 64), pretrained="gone.pth")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(UserError, match=r"text\.pth is damaged"):
        timm_model("resnet10t", 13, (3, 64, 64), pretrained=str(tmp_path / "text.pth"))
    torch.save({"something": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"other\.pth does not hold the weights of resnet10t.*conv1"):
        timm_model("resnet10t", 13, (3, 64, 64), pretrained=str(tmp_path / "other.pth"))
    torch.save(timm.create_model("resnet14t").state_dict(), tmp_path / "larger.pth")
    with pytest.raises(UserError, match="resnet10t"):
        timm_model("resnet10t", 13, (3, 64, 64), pretrained=str(tmp_path / "larger.pth"))
