"""The path of a batch on a CUDA device that is not there: fake tensors know their device, and refuse to mix two.

They hold no numbers, so this shows that nothing is left on the CPU, not what is computed.
"""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from l2d.data import Batch, Images, Loader, Preprocessing, Split
from l2d.data.augment import AUGMENTATIONS, _crops
from l2d.decisions import decide
from l2d.losses import BASES, FORMULATIONS, DeferralLoss
from l2d.models import MLP, timm_model
from l2d.place import Place
from l2d.signals import StopSignal
from l2d.systems import ScoreSystem
from l2d.training.checkpoint import Checkpoints
from l2d.training.loop import fit, forward
from l2d.training.state import TrainingState

K, J, B = 4, 3, 6
CUDA = torch.device("cuda")
PREPROCESSING = Preprocessing((3, 8, 8), (0.5,) * 3, (0.5,) * 3, augment="crop_flip")


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
def test_a_tensor_left_on_the_cpu_is_an_error(batch, which):
    """So that the other tests here can fail."""
    mixed = on_cpu(batch, which)
    with pytest.raises(RuntimeError, match="same device"):
        DeferralLoss("picce", "ce", K)(*mixed)
    if which != 1:
        with pytest.raises(RuntimeError, match="same device"):
            decide(mixed[0], K, available=mixed[2] >= 0)


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
    decision = decide(scores, K, costs=torch.zeros(J), available=answers >= 0)  # costs are moved to the beliefs
    assert {part.device.type for part in decision} == {"cuda"}
    assert [tuple(part.shape) for part in decision] == [(B,), (B,), (B, J), (B, J)]


@pytest.mark.parametrize("base", BASES)
def test_beliefs_are_formed_on_the_device(batch, base):
    system = ScoreSystem(lambda outputs: torch.nn.Identity(), DeferralLoss("vanilla", base, K), K, J)
    beliefs = system.beliefs(batch[0])
    assert (beliefs.device.type, beliefs.shape, beliefs.dtype) == ("cuda", (B, K + J), torch.float64)


class CostlyLoss(DeferralLoss):
    """With a buffer of costs and a parameter of its own."""

    def __init__(self):
        super().__init__("picce", "ce", K)
        self.register_buffer("costs", torch.zeros(J))
        self.temperature = torch.nn.Parameter(torch.ones(()))

    def forward(self, scores, labels, answers):
        return super().forward(scores * self.temperature, labels, answers) + self.costs.sum()


def test_a_system_moves_to_its_place_with_its_loss():
    """The meta device stands in for CUDA: fake tensors cannot be moved in place."""
    meta = torch.device("meta")
    system = ScoreSystem(lambda outputs: MLP(outputs, (3, 8, 8), 8, 1), CostlyLoss(), K, J)
    place = Place(meta).take(system, OmegaConf.create({"channels_last": True, "compile": False}))
    assert {"loss.costs", "loss.temperature", "backbone.1.weight"} <= set(system.state_dict())
    assert {tensor.device.type for tensor in system.state_dict().values()} == {"meta"}
    with meta:
        batch = Batch(torch.zeros(B, 3, 8, 8), torch.arange(B) % K, torch.zeros(B, J), torch.arange(B))
    outputs = forward(system, batch, place, rows=2 * B)
    assert (outputs.device.type, outputs.shape) == ("meta", (B, K + J))
    assert system.stages()[0].loss(outputs, batch).device.type == "meta"


@pytest.mark.parametrize("name", [name for name, function in AUGMENTATIONS.items() if function])
def test_augmentation_happens_on_the_device(fake, name):
    images = torch.zeros(B, 3, 32, 32, dtype=torch.uint8, device=CUDA)
    out = AUGMENTATIONS[name](images, (24, 24), torch.Generator())
    assert (out.device.type, out.shape) == ("cuda", (B, 3, 24, 24))


def images_and_answers(count: int) -> Split:
    images = Images(torch.zeros(count, 3, 8, 8, dtype=torch.uint8), PREPROCESSING)
    return Split(images, torch.arange(count) % K, torch.zeros(count, J, dtype=torch.int8))


@pytest.mark.parametrize("train", [True, False])
def test_batches_come_from_the_device(fake, monkeypatch, train):
    """A CUDA generator needs a driver: a CPU one stands in for it, which fake tensors accept."""
    cpu_generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device=None: cpu_generator())
    split = images_and_answers(10)
    loader = Loader(split, Place(CUDA, layout=torch.channels_last), 4, train=train)
    batch = next(iter(loader.epoch(1)))
    assert {part.device.type for part in batch} == {"cuda"}
    assert [tuple(part.shape) for part in batch] == [(4, 3, 8, 8), (4,), (4, J), (4,)]
    assert batch.inputs.dtype == torch.float32


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
@pytest.mark.parametrize(("check_every", "expected"), [(5, {5, 10, 12}), (1, set(range(1, 13)))])
def test_a_step_waits_for_the_device_only_at_the_log_interval(
    composed, tmp_path, formulation, base, check_every, expected
):
    """Every operation of 12 steps, from the crop to the bookkeeping, on the CPU but with the interval of a CUDA device."""
    cfg = composed("trainer.epochs=1", "trainer.log_every=5", "trainer.clip_grad=1.0")
    loader = Loader(images_and_answers(48), Place(), 4, train=True)
    loss = DeferralLoss(formulation, base, K)
    system = ScoreSystem(lambda outputs: MLP(outputs, (3, 8, 8), 8, 1), loss, K, J)
    state = TrainingState(cfg, system, loader, Checkpoints(tmp_path, ""), StopSignal())
    state.check_every = check_every
    with Waiting(state) as waiting, Fetching(state) as fetching:
        next(fit(state, loader, lambda *step: None))
    assert set(waiting.steps) == set(fetching.steps) == expected
    assert waiting.operations > 12 * 20


@pytest.mark.parametrize(
    "ask", [torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.item, bool, float]
)
def test_reading_a_tensor_on_the_host_is_detected(ask):
    """So that the test above can fail."""
    asked = torch.ones(())
    with Fetching(SimpleNamespace(step=7)) as fetching:
        ask(asked)
    assert set(fetching.steps) == {7}
