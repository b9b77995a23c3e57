"""The path of a batch on a CUDA device that is not there: fake tensors know their device, and refuse to mix two.

They hold no numbers, so this shows that nothing is left on the CPU, not what is computed.
"""

from types import SimpleNamespace

import pytest
import torch
from l2d.training.device import Device
from l2d.training.ranks import Ranks
from omegaconf import OmegaConf
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from l2d.data import Dataset, ResidentLoader, Split
from l2d.data.augment import AUGMENTATIONS, _crops
from l2d.evaluation import decide
from l2d.evaluation.metrics import tally
from l2d.losses import BASES, FORMULATIONS, DeferralLoss
from l2d.models import MLP, timm_model
from l2d.training.loop import fit
from l2d.training.schedule import make_schedule
from l2d.training.signals import StopSignal
from l2d.training.state import TrainingState

K, J, B = 4, 3, 6
CUDA = torch.device("cuda")
CPU = Device.choose("cpu", "float32")


@pytest.fixture
def fake():
    with FakeTensorMode(allow_non_fake_inputs=False):
        yield
    _crops.cache_clear()  # tables made of fake tensors, which the next mode would refuse


@pytest.fixture
def batch(fake):
    """Scores, labels and answers as they are on the device."""
    return (
        torch.randn(B, K + J, device=CUDA),
        torch.zeros(B, dtype=torch.long, device=CUDA),
        torch.zeros(B, J, dtype=torch.int8, device=CUDA),
    )


def on_cpu(tensors: tuple[torch.Tensor, ...], which: int) -> tuple[torch.Tensor, ...]:
    return tuple(t.cpu() if i == which else t for i, t in enumerate(tensors))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_losses_stay_on_the_device(batch, formulation, base):
    loss = DeferralLoss(formulation, base, K)(*batch)
    assert loss.device.type == "cuda"
    assert loss.shape == ()
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_tensor_left_on_the_cpu_is_noticed(batch, which):
    """So that the other tests here can fail."""
    mixed = on_cpu(batch, which)
    with pytest.raises(RuntimeError, match="same device"):
        DeferralLoss("picce", "ce", K)(*mixed)
    if which != 1:
        with pytest.raises(RuntimeError, match="same device"):
            decide(mixed[0], mixed[2], K)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLP(K + J, (3, 32, 32), 8, 2),
        lambda: timm_model("wrn28", K + J, (3, 32, 32), False, depth=10, width=1),
        lambda: timm_model("resnet18", K + J, (3, 32, 32), False),
        lambda: timm_model("mobilenetv2_100", K + J, (3, 32, 32), False),
    ],
    ids=["mlp", "wrn28", "resnet18", "mobilenet_v2"],
)
def test_models_score_on_the_device_and_bf16_scores_give_a_float32_loss(fake, make):
    with CUDA:
        model = make()
        images = torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    scores = model(images)
    assert (scores.device.type, scores.shape) == ("cuda", (2, K + J))
    loss = DeferralLoss("picce", "ova", K)(
        scores.bfloat16(),
        torch.zeros(2, dtype=torch.long, device=CUDA),
        torch.zeros(2, J, dtype=torch.int8, device=CUDA),
    )
    assert (loss.device.type, loss.dtype) == ("cuda", torch.float32)


def test_decisions_are_made_on_the_device(batch):
    scores, _, answers = batch
    action = decide(scores, answers, K)
    assert action.device.type == "cuda"
    assert action.shape == (B,)


def test_the_metrics_are_counted_on_the_device(batch):
    counts = tally(*batch, K)
    assert (counts.device.type, counts.shape) == ("cuda", (6 + 2 * J,))
    with pytest.raises(RuntimeError, match="same device"):
        tally(*on_cpu(batch, 1), K)


@pytest.mark.parametrize("name", [name for name, function in AUGMENTATIONS.items() if function])
def test_augmentation_happens_on_the_device(fake, name):
    images = torch.zeros(B, 3, 32, 32, dtype=torch.uint8, device=CUDA)
    out = AUGMENTATIONS[name](images, (24, 24), torch.Generator())
    assert (out.device.type, out.shape) == ("cuda", (B, 3, 24, 24))


@pytest.mark.parametrize("train", [True, False])
def test_batches_come_from_the_device(fake, monkeypatch, train):
    """A CUDA generator needs a driver: a CPU one stands in for it, which fake tensors accept."""
    cpu_generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device=None: cpu_generator())
    split = Split(torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.zeros(10, dtype=torch.long))
    data = Dataset("x", ["c"] * K, split, split, (3, 8, 8), augment="crop_flip", mean=(0.5,) * 3, std=(0.5,) * 3)
    answers = torch.zeros(10, J, dtype=torch.int8)
    loader = ResidentLoader(data, split, lambda epoch: answers, 4, CUDA, train=train, memory_format=torch.channels_last)
    images, labels, table = next(iter(loader.epoch(1)))
    assert {t.device.type for t in (images, labels, table)} == {"cuda"}
    assert (images.dtype, images.shape, table.shape) == (torch.float32, (4, 3, 8, 8), (4, J))


class Waiting(TorchDispatchMode):
    """Notes the step in which an operation needs a number from the device: item(), nonzero(), a mask as an index."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim")

    def __init__(self, state: TrainingState):
        super().__init__()
        self.state, self.steps, self.operations = state, list[int](), 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.operations += 1
        name = function.overloadpacket.__name__
        indexed = arguments[1] if name in ("index", "index_put", "index_put_") else []
        if name in self.NAMES or any(i is not None and i.dtype == torch.bool for i in indexed):
            self.steps.append(self.state.step)
        return function(*arguments, **(keywords or {}))


class Fetching(TorchFunctionMode):
    """Notes the step in which Python asks a tensor for its numbers, which the CPU gives without an operation."""

    NAMES = ("cpu", "tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__", "__array__")

    def __init__(self, state: TrainingState):
        super().__init__()
        self.state, self.steps = state, list[int]()

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        if function.__name__ in self.NAMES:
            self.steps.append(self.state.step)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("look_every", "expected"), [(5, {5, 10, 12}), (1, set(range(1, 13)))])
def test_a_step_waits_for_the_device_only_at_the_log_interval(formulation, base, look_every, expected):
    """Every operation of 12 steps, from the crop to the bookkeeping, on the CPU but with the interval of a CUDA device."""
    split = Split(torch.zeros(48, 3, 8, 8, dtype=torch.uint8), torch.arange(48) % K)
    data = Dataset("x", ["c"] * K, split, split, (3, 8, 8), augment="crop_flip", mean=(0.5,) * 3, std=(0.5,) * 3)
    loader = ResidentLoader(data, split, lambda epoch: torch.zeros(48, J, dtype=torch.int8), 4, CPU.device, train=True)
    model = MLP(K + J, (3, 8, 8), 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    settings = {
        "epochs": 1,
        "log_every": 5,
        "clip_grad": 1.0,
        "skip_nonfinite": 0,
        "checkpoint_epochs": 0,
        "checkpoint_minutes": 5,
    }
    schedule = make_schedule(optimizer, "cosine", len(loader), 1, 0)
    state = TrainingState(None, model, optimizer, schedule, 12, OmegaConf.create(settings), CPU, Ranks(), StopSignal())
    state.look_every = look_every
    with Waiting(state) as waiting, Fetching(state) as fetching:
        rows = fit(model, DeferralLoss(formulation, base, K), loader, state, lambda *step: None)
        next(rows)
    assert set(waiting.steps) == set(fetching.steps) == expected
    assert waiting.operations > 12 * 20


@pytest.mark.parametrize(
    "ask", [torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.item, bool, float]
)
def test_a_tensor_that_is_asked_for_its_numbers_is_noticed(ask):
    """So that the test above can fail."""
    asked = torch.ones(())
    with Fetching(SimpleNamespace(step=7)) as fetching:
        ask(asked)
    assert set(fetching.steps) == {7}
