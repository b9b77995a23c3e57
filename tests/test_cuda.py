"""What a run does on a CUDA device that is not there.

Fake tensors know their device, and refuse to mix two. They hold no numbers, so they show that nothing is left on the CPU, not
what is computed. Calls of torch.cuda are recorded, to see that they come in the right order. docs/cuda.md has the whole list.
"""

import os
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from multiprocessing import current_process
from pathlib import Path
from types import SimpleNamespace

import gpu_check
import numpy as np
import pytest
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from l2d import kernels
from l2d.conf_files import config_dir
from l2d.config import build
from l2d.data import Batch, ImageFiles, Images, Loader, Preprocessing, Split
from l2d.data.augment import AUGMENTATIONS, _crops
from l2d.decisions import decide
from l2d.errors import UserError
from l2d.evaluation.evaluator import evaluation_batch_size
from l2d.losses import BASES, FORMULATIONS, DeferralLoss
from l2d.models import MLP, timm_model
from l2d.place import Place, Ranks
from l2d.place.memory import available_memory, share_gpu, sweep_process
from l2d.place.place import WORKSPACE
from l2d.place.ranks import refuse_shared_gpus
from l2d.signals import StopSignal
from l2d.systems import CompareConfidence, ScoreSystem, SelectiveSystem, TwoStage
from l2d.systems.population import PooledPopulation, PosteriorPopulation
from l2d.training.checkpoint import Checkpoints
from l2d.training.loop import fit, forward
from l2d.training.state import TrainingState

K, J, B = 4, 3, 6
CUDA = torch.device("cuda")
LOSSES = sorted({path.stem for path in Path(config_dir(), "loss").glob("*.yaml")} - {"none"})
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


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_and_its_beliefs_stay_on_the_device(batch, composed, name, complete):
    cfg = composed(f"loss={name}", "experts.costs=0.1")
    loss = build(cfg, "loss", num_classes=K, complete=complete)
    value, beliefs = loss(*batch), loss.beliefs(batch[0])
    assert (value.device.type, value.shape, value.dtype) == ("cuda", (), torch.float32)
    assert (beliefs.device.type, beliefs.shape) == ("cuda", (B, K + J))


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_every_loss_stays_on_the_device(composed, name):
    """The meta device stands in for CUDA: autograd needs a driver for that one."""
    loss = build(composed(f"loss={name}", "experts.costs=0.1"), "loss", num_classes=K, complete=False)
    with torch.device("meta"):
        scores = torch.zeros(B, K + J, requires_grad=True)
        labels, answers = torch.zeros(B, dtype=torch.long), torch.zeros(B, J, dtype=torch.int8)
    (gradient,) = torch.autograd.grad(loss(scores, labels, answers), scores)
    assert (gradient.device.type, gradient.shape) == ("meta", (B, K + J))


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
    assert {part.device.type for part in decision[:4]} == {"cuda"}
    assert [tuple(part.shape) for part in decision[:4]] == [(B,), (B,), (B, J), (B, J)]


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


def small_mlp(num_outputs: int) -> MLP:
    return MLP(num_outputs, (3, 8, 8), 8, 1)


def of_two_stages() -> TwoStage:
    loss = DeferralLoss("picce", "ova", K, weight="balanced")
    return TwoStage(
        small_mlp,
        loss,
        K,
        J,
        num_train=B,
        seed=0,
        stage2="cross_fit",
        folds=2,
        share=0.5,
        router_epochs=1,
    )


@pytest.mark.parametrize(
    "make",
    [
        of_two_stages,
        lambda: CompareConfidence(small_mlp, K, J),
        lambda: SelectiveSystem(small_mlp, K, J, seed=0, table=True, strength=10),
        lambda: PosteriorPopulation(small_mlp, K, J, 20, 2.0),
        lambda: PooledPopulation(small_mlp, K, J, 20, 8),
    ],
    ids=["two", "compare", "selective", "posterior", "pooled"],
)
def test_every_stage_of_a_system_is_computed_on_its_place(make):
    meta, system = torch.device("meta"), make()
    stages = system.stages()
    place = Place(meta).take(system, OmegaConf.create({"channels_last": True, "compile": False}))
    with meta:
        batch = Batch(torch.zeros(B, 3, 8, 8), torch.arange(B) % K, torch.zeros(B, J), torch.arange(B))
    for stage in stages:
        system.stage = stage.name
        assert stage.loss(system.train()(batch.inputs).bfloat16(), batch).device.type == "meta"
    outputs = forward(system, batch.inputs, place, rows=2 * B)
    beliefs = system.beliefs(outputs)
    assert (outputs.device.type, beliefs.shape, beliefs.device.type) == ("meta", (B, K + J), "meta")


def test_a_system_moves_to_its_place_with_its_loss():
    """The meta device stands in for CUDA: fake tensors cannot be moved in place."""
    meta = torch.device("meta")
    system = ScoreSystem(lambda outputs: MLP(outputs, (3, 8, 8), 8, 1), CostlyLoss(), K, J)
    place = Place(meta).take(system, OmegaConf.create({"channels_last": True, "compile": False}))
    assert {"loss.costs", "loss.temperature", "backbone.1.weight"} <= set(system.state_dict())
    assert {tensor.device.type for tensor in system.state_dict().values()} == {"meta"}
    with meta:
        batch = Batch(torch.zeros(B, 3, 8, 8), torch.arange(B) % K, torch.zeros(B, J), torch.arange(B))
    outputs = forward(system, batch.inputs, place, rows=2 * B)
    assert (outputs.device.type, outputs.shape) == ("meta", (B, K + J))
    assert system.stages()[0].loss(outputs, batch).device.type == "meta"


@pytest.mark.parametrize(
    ("layer", "place", "compiled", "size"),
    [
        (torch.nn.Linear(2, 2), Place(), False, 4 * B),
        (torch.nn.Linear(2, 2), Place(), True, B),
        (torch.nn.Linear(2, 2), Place(CUDA), False, B),
        (torch.nn.Conv2d(2, 2, 1), Place(), False, B),
    ],
)
def test_an_evaluation_has_larger_batches_only_where_that_is_faster_and_nothing_is_compiled_or_tuned_for_them(
    layer, place, compiled, size
):
    assert evaluation_batch_size(OmegaConf.create({"batch_size": B, "compile": compiled}), layer, place) == size


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
    composed, tmp_path, monkeypatch, formulation, base, check_every, expected
):
    """Every operation of 12 steps, from the crop to the bookkeeping, on the CPU but with the interval of a CUDA device, and as there
    without functions in C."""
    monkeypatch.setattr(kernels, "_library", None)
    cfg = composed("trainer.epochs=1", "trainer.log_every=5", "trainer.clip_grad=1.0")
    loader = Loader(images_and_answers(48), Place(), 4, train=True)
    loss = DeferralLoss(formulation, base, K)
    system = ScoreSystem(lambda outputs: MLP(outputs, (3, 8, 8), 8, 1), loss, K, J)
    state = TrainingState(cfg, system, loader, Checkpoints(tmp_path, ""), StopSignal())
    state.check_every, state.host_losses = check_every, None
    with Waiting(state) as waiting, Fetching(state) as fetching:
        next(fit(state, lambda *step: None))
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


# Starting CUDA


@pytest.fixture
def gpus(monkeypatch):
    """A machine with two GPUs, as far as torch.cuda says; `calls` are those that start or ask CUDA, in their order."""
    machine = SimpleNamespace(calls=[], started=False, capability=(8, 0))

    def call(name: str, result=None):
        def made(*arguments):
            machine.started = True
            machine.calls.append((name, *map(str, arguments), os.environ.get(WORKSPACE)))
            return result() if callable(result) else result

        return made

    for name, function in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "is_initialized": lambda: machine.started,
        "set_device": call("set_device"),
        "get_device_capability": call("capability", lambda: machine.capability),
        "mem_get_info": call("memory", (1000, 2000)),
        "manual_seed_all": lambda seed: None,
        "reset_peak_memory_stats": call("peak"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != WORKSPACE})
    yield machine
    torch.use_deterministic_algorithms(False)


def trainer(**changed):
    return OmegaConf.create(
        {"device": "cuda:1", "precision": "auto", "deterministic": False, "rank_timeout_minutes": 1} | changed
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_device_is_chosen_before_anything_is_allocated_and_cublas_can_be_repeatable(gpus, deterministic):
    """A later cell of the same process may be deterministic, and cuBLAS reads its workspace once."""
    place = Place.open(trainer(deterministic=deterministic), 0, Ranks.alone())
    assert (str(place.device), place.precision) == ("cuda:1", "bf16")
    assert gpus.calls[0] == ("set_device", "cuda:1", ":4096:8")


@pytest.mark.parametrize("own", [":4096:8", ":16:8"])
def test_a_workspace_that_is_repeatable_is_left_as_it_is(gpus, own):
    os.environ[WORKSPACE] = own
    Place.open(trainer(deterministic=True), 0, Ranks.alone())
    assert {call[-1] for call in gpus.calls} == {own}


@pytest.mark.parametrize("own", [":0:0", None])
def test_a_workspace_that_is_not_repeatable_is_refused_for_a_deterministic_run(gpus, own):
    """None: another part of the process started CUDA before."""
    if own:
        os.environ[WORKSPACE] = own
    else:
        gpus.started = True
    Place.open(trainer(), 0, Ranks.alone())
    with pytest.raises(UserError, match=rf"trainer\.deterministic=true.*{WORKSPACE}.*{own or 'not set'}"):
        Place.open(trainer(deterministic=True), 0, Ranks.alone())
    assert os.environ.get(WORKSPACE) == own


def test_bf16_is_the_default_only_where_it_is_built_in(gpus):
    gpus.capability = (7, 5)
    assert Place.choose("auto", "auto", Ranks.alone()).precision == "float32"
    assert Place.choose("auto", "bf16", Ranks.alone()).precision == "bf16"


def test_free_memory_is_that_of_the_runs_own_gpu_and_asking_starts_no_cuda(gpus):
    assert available_memory() > 1000
    Place.choose("cpu", "auto", Ranks.alone())
    assert available_memory() > 1000 and gpus.calls == []
    Place.choose("cuda:1", "auto", Ranks.alone())
    assert available_memory() == 1000 and gpus.calls[0][:2] == ("set_device", "cuda:1")


@pytest.mark.parametrize(("processes", "allowed"), [(2, 4400), (4, 1900)])
def test_processes_that_share_a_gpu_have_an_even_part_of_its_memory_after_what_cuda_takes(
    monkeypatch, processes, allowed
):
    """Of 10,000 MB; a process that has reserved 100 of its part has that much less left, and no more than is free."""
    mb, limits = 2**20, []
    for name, function in {
        "get_device_properties": lambda device: SimpleNamespace(total_memory=10_000 * mb),
        "set_per_process_memory_fraction": lambda share, device: limits.append((round(share * 10_000), device.index)),
        "is_initialized": lambda: True,
        "current_device": lambda: 1,
        "mem_get_info": lambda: (3000 * mb, 10_000 * mb),
        "memory_reserved": lambda: 100 * mb,
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr("l2d.place.memory._allowed", {})
    assert available_memory() == 3000 * mb
    share_gpu(torch.device("cuda:1"), processes)
    assert limits == [(allowed, 1)]
    assert round(available_memory() / mb) == min(3000, allowed - 100)


def test_the_processes_of_a_sweep_share_the_ram(monkeypatch):
    whole = available_memory()
    monkeypatch.setattr(current_process(), "name", "CellProcess-2-4")
    assert sweep_process() == (1, 4)
    assert available_memory() == pytest.approx(whole / 4, rel=0.2)


def test_two_ranks_on_one_gpu_are_refused():
    refuse_shared_gpus(["GPU-a", "GPU-b"])
    with pytest.raises(UserError, match="Processes 0 and 2 of 3"):
        refuse_shared_gpus(["GPU-a", "GPU-b", "GPU-a"])


# Streams, workers, NCCL, GradScaler


@pytest.fixture
def image_files(tmp_path):
    """A split of 12 files, of which each has another colour."""
    for k in range(12):
        Image.fromarray(np.full((10, 10, 3), 20 * k, dtype=np.uint8)).save(tmp_path / f"{k}.png")
    preprocessing = Preprocessing((3, 8, 8), (0.5,) * 3, (0.5,) * 3, 8, "random_resized_crop_flip")

    def split(workers: int = 0) -> Split:
        files = ImageFiles(tmp_path, [f"{k}.png" for k in range(12)], preprocessing, workers)
        return Split(files, torch.arange(12), torch.zeros(12, J, dtype=torch.int8))

    return split


class Streams:
    """Stands in for the two streams of a GPU: notes who starts, finishes, waits and claims memory."""

    def __init__(self, monkeypatch):
        self.log, self.copied = [], 0
        monkeypatch.setattr(torch.cuda, "stream", self.entered)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.log.append("claimed"))

    @contextmanager
    def entered(self, stream):
        yield

    def record_event(self):
        self.copied += 1
        self.log.append(f"copy {self.copied} started")
        return self.copied

    def wait_event(self, event):
        self.log.append(f"waited for copy {event}")


def test_a_batch_waits_for_its_own_copy_while_the_next_one_is_under_way(image_files, monkeypatch):
    loader = Loader(image_files(), Place(), 4, train=True)
    streams = loader.feed.copies = Streams(monkeypatch)
    for number, _ in enumerate(loader.epoch(), 1):
        streams.log.append(f"step {number}")
    claimed = ["claimed", "claimed"]  # images and indices, both allocated on the stream of copies
    assert streams.log == [
        *("copy 1 started", "copy 2 started", "waited for copy 1", *claimed, "step 1"),
        *("copy 3 started", "waited for copy 2", *claimed, "step 2"),
        *("waited for copy 3", *claimed, "step 3"),
    ]


@pytest.mark.slow
def test_workers_are_not_forked_from_a_process_that_has_started_cuda(image_files, monkeypatch):
    alone = list(Loader(image_files(), Place(), 4, train=True).epoch(1))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    loader = Loader(image_files(workers=1), Place(), 4, train=True)
    batches = list(loader.epoch(1))
    assert loader.feed.loader.multiprocessing_context.get_start_method() == "forkserver"
    assert all(torch.equal(a, b) for x, y in zip(alone, batches, strict=True) for a, b in zip(x, y, strict=True))


NCCL_TYPES = {
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64, torch.float32])
def test_what_ranks_exchange_is_of_types_that_nccl_knows_and_contiguous(monkeypatch, dtype):
    """Labels, answers (int8, or int16 for many classes), indices and outputs; the other rank sends the same."""
    sent = []

    def all_gather(parts, own):
        sent.append((own.dtype, own.is_contiguous()))
        for part in parts:
            part.copy_(own)

    monkeypatch.setattr(dist, "all_gather", all_gather)
    ranks = Ranks({"RANK": "0", "WORLD_SIZE": "2"})
    part = torch.arange(6).reshape(2, 3).T.to(dtype)  # [3, 2], not contiguous
    assert torch.equal(ranks.gather(part), part.repeat_interleave(2, dim=0))
    assert {dtype for dtype, _ in sent} <= NCCL_TYPES and all(contiguous for _, contiguous in sent)


def test_gradients_are_clipped_after_they_are_unscaled(composed, tmp_path, monkeypatch):
    norms = []
    clip = torch.nn.utils.clip_grad_norm_

    def recorded(parameters, limit):
        norms.append(clip(list(parameters), limit).item())

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", recorded)
    monkeypatch.setattr(Place, "autocast", lambda place: nullcontext())  # float32, so that the norms can be compared
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        cfg = composed("trainer.epochs=1", "trainer.clip_grad=0.1")
        loader = Loader(images_and_answers(8), Place(precision="fp16"), 4, train=True)
        system = ScoreSystem(lambda outputs: MLP(outputs, (3, 8, 8), 8, 1), DeferralLoss("picce", "ce", K), K, J)
        state = TrainingState(cfg, system, loader, Checkpoints(tmp_path, ""), StopSignal())
        state.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        next(fit(state, lambda *step: None))
    assert norms[:2] == pytest.approx(norms[2:], rel=1e-5) and min(norms) > 0.1


# The operations for which torch.use_deterministic_algorithms says that they raise on CUDA.
UNREPEATABLE = {
    "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward",
    "fractional_max_pool2d_backward", "fractional_max_pool3d_backward", "max_unpool2d", "max_unpool3d", "upsample_linear1d_backward",
    "upsample_bilinear2d_backward", "upsample_bicubic2d_backward", "upsample_trilinear3d_backward", "reflection_pad1d_backward",
    "reflection_pad2d_backward", "reflection_pad3d_backward", "nll_loss2d_forward", "_ctc_loss_backward", "put_", "histc",
    "bincount", "median", "nanmedian", "grid_sampler_2d_backward", "grid_sampler_3d_backward", "scatter_reduce",
    "_embedding_bag_dense_backward",
}  # fmt: skip


class Operations(TorchDispatchMode):
    """Collects the names of all operations."""

    def __init__(self):
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*arguments, **(keywords or {}))


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["wrn28", "resnet18", "mobilenetv2_100"])
def test_no_operation_of_a_training_step_is_one_that_a_deterministic_run_refuses(backbone):
    options = {"depth": 10, "width": 1} if backbone == "wrn28" else {}
    model = timm_model(backbone, K + J, (3, 32, 32), False, **options)
    with Operations() as operations:
        for name in (name for name, function in AUGMENTATIONS.items() if function):
            images = AUGMENTATIONS[name](torch.zeros(B, 3, 36, 36, dtype=torch.uint8), (32, 32), torch.Generator())
            for formulation in FORMULATIONS:
                for base in BASES:
                    labels, answers = torch.arange(B) % K, torch.zeros(B, J, dtype=torch.int8)
                    DeferralLoss(formulation, base, K)(model(images.float()), labels, answers).backward()
    assert "convolution_backward" in operations.names
    assert operations.names & UNREPEATABLE == set()


# scripts/gpu_check


@pytest.mark.slow
def test_the_check_for_gpus_runs_on_the_cpu_and_prints_a_table():
    script = Path(gpu_check.__file__)
    words = [sys.executable, str(script), "--device", "cpu", "--only"]
    here = script.parents[1]
    done = subprocess.run([*words, "chaoyang"], cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| dataset chaoyang, streamed | passed |" in done.stdout and "CPU in place of a GPU" in done.stdout
    assert subprocess.run([*words, "nothing"], cwd=here, capture_output=True).returncode == 2


@pytest.mark.slow
def test_a_check_that_fails_says_why(tmp_path):
    with pytest.raises(gpu_check.Failed, match=r"exit code 2: l2d: experts\.num=0 "):
        gpu_check.Bench("cpu", tmp_path).train("experts.num=0")
