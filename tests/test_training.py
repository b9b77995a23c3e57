"""Training: the schedule by hand, what the loop does to a model, and that seeds mean what they say."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from math import cos, pi
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from l2d.data import Images, Loader, Preprocessing, Split
from l2d.data.vectors import Vectors
from l2d.errors import UserError
from l2d.losses import DeferralLoss
from l2d.models import MLP
from l2d.place import Place, Ranks, seed_everything
from l2d.signals import StopSignal
from l2d.systems import ScoreSystem, Stage, freeze
from l2d.training.checkpoint import Checkpoints
from l2d.training.loop import fit, predict
from l2d.training.schedule import make_schedule
from l2d.training.state import TrainingState

CPU = Place()


@pytest.fixture(autouse=True)
def settings_of_torch():
    """seed_everything sets things for the whole process: put them back."""
    state = torch.get_rng_state()
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")
    torch.set_rng_state(state)


def rates(schedule: str, steps: int, epochs: int, warmup_epochs: float) -> list[float]:
    """With a base rate of 2: the learning rate with which each step is taken, and the one after the last."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler, seen = make_schedule(optimizer, schedule, steps, epochs, warmup_epochs), []
    for step in range(epochs * steps + 1):
        scheduler.set(step)
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


def test_cosine_falls_from_the_rate_to_zero():
    # 2 * (1 + cos(pi t / 4)) / 2 for t = 0..4
    assert rates("cosine", 2, 2, 0) == pytest.approx([2, 1 + cos(pi / 4), 1, 1 - cos(pi / 4), 0], abs=1e-12)


def test_warmup_rises_linearly_and_then_the_cosine_begins():
    # One and a half epochs of two steps: quarters of 2 for three steps, then the cosine of the five that remain.
    expected = [0.5, 1, 1.5, *(1 + cos(pi * t / 5) for t in range(5)), 0]
    assert rates("cosine", 2, 4, 1.5) == pytest.approx(expected, abs=1e-12)


def test_constant_stays():
    assert rates("constant", 3, 1, 0) == [2, 2, 2, 2]
    assert rates("constant", 2, 2, 0.5) == [1, 2, 2, 2, 2]


def test_impossible_schedules_are_refused():
    with pytest.raises(UserError, match="cosine or constant"):
        rates("linear", 2, 2, 0)
    with pytest.raises(UserError, match="warmup_epochs must be smaller"):
        rates("cosine", 2, 2, 2)


@pytest.fixture
def problem():
    """60 samples of 3 separable classes, two experts: one right on class 0, one always wrong."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    images = 0.3 * torch.randn(60, 3, 2, 2, generator=rng)
    images[torch.arange(60), labels] += 1.0
    answers = torch.stack([torch.zeros_like(labels), (labels + 1) % 3], dim=1)
    split = Split(images, labels, answers)
    return lambda train=True, batch_size=20, seed=0: Loader(split, CPU, batch_size, seed, train)


def system_of(model: nn.Module, loss=None) -> ScoreSystem:
    """A system around a model with 3 class and 2 expert scores."""
    return ScoreSystem(lambda num_outputs: model, loss or DeferralLoss("picce", "ce", 3), 3, 2)


def state_of(system, loader, optim: dict | None = None, freeze=(), **trainer) -> TrainingState:
    """The beginning of a training that writes no checkpoint."""
    settings = {
        "trainer": {
            "epochs": 5,
            "clip_grad": None,
            "log_every": 100,
            "skip_nonfinite": 0,
            "checkpoint_epochs": 0,
            "checkpoint_minutes": None,
            "sync_batchnorm": False,
            **trainer,
        },
        "optim": {
            "_target_": "torch.optim.SGD",
            "lr": 0.1,
            "schedule": "constant",
            "warmup_epochs": 0,
            **(optim or {}),
        },
        "freeze": list(freeze),
    }
    return TrainingState(OmegaConf.create(settings), system, loader, Checkpoints(Path("nowhere"), ""), StopSignal())


@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last]
)  # by the functions in C, and by torch
def test_all_batches_of_an_epoch_use_the_same_memory(layout):
    """Which is then still in the caches: nothing on the way keeps a batch that was used."""
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50, 3, 9, 9), dtype=torch.uint8, generator=rng)
    images = Images(pixels, Preprocessing((3, 8, 8), (0.5,) * 3, (0.2,) * 3, augment="crop_flip"))
    split = Split(images, torch.arange(50) % 3, torch.zeros(50, 2, dtype=torch.int8))
    seen: list[int] = []

    class Watched(MLP):
        def forward(self, inputs):
            seen.append(inputs.data_ptr())
            return super().forward(inputs)

    system = system_of(Watched(5, (3, 8, 8), 16, 1), DeferralLoss("picce", "ce", 3))

    predict(system, Loader(split, Place(layout=layout), 10))
    list(fit(state_of(system, Loader(split, Place(layout=layout), 10, train=True), epochs=1), lambda *step: None))
    assert len(seen) == 10 and len(set(seen[:5])) == len(set(seen[5:])) == 1


def weights_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in module.parameters()])


def trained(
    loader, seed=0, epochs=5, lr=0.1, clip_grad=None, formulation="picce", steps=None, momentum=0.9, log_every=1
):
    seed_everything(seed, deterministic=False)
    system = system_of(MLP(5, (3, 2, 2), 16, 1), DeferralLoss(formulation, "ce", 3))
    before = weights_of(system)
    optim = {"lr": lr, "momentum": momentum, "schedule": "cosine"}
    state = state_of(system, loader, optim, epochs=epochs, clip_grad=clip_grad, log_every=log_every)
    on_step = (lambda *step: steps.append(step)) if steps is not None else lambda *step: None
    rows = list(fit(state, on_step))
    return system, rows, weights_of(system) - before


def test_fit_learns_the_problem(problem):
    model, rows, _ = trained(problem(), epochs=20)
    assert [row["epoch"] for row in rows] == list(range(1, 21))
    assert rows[-1]["loss"] < 0.6 * rows[0]["loss"]
    scores = predict(model, problem(train=False)).outputs
    assert (scores[:, :3].argmax(1) == torch.arange(60) % 3).double().mean() > 0.95
    assert scores[:, 3].mean() > scores[:, 4].mean()  # the expert that is sometimes right is preferred


def test_rows_hold_the_mean_loss_the_next_rate_and_the_speed(problem):
    """Three steps an epoch, two epochs: after the first the cosine is half-way, after the second at zero."""
    steps = []
    _, rows, _ = trained(problem(), epochs=2, steps=steps)
    assert [row["lr"] for row in rows] == pytest.approx([0.05, 0], abs=1e-12)
    assert [(epoch, step) for epoch, step, *_ in steps] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert rows[0]["loss"] == pytest.approx(steps[2][3])  # the running mean of the epoch's last step
    assert all(row["images_per_second"] > 0 for row in rows)


def test_the_log_interval_is_kept(problem):
    steps = []
    trained(problem(batch_size=6), epochs=1, steps=steps, log_every=4)
    assert [step for _, step, *_ in steps] == [4, 8]


def test_the_first_loss_is_that_of_the_untrained_model(problem):
    """With rate zero the epoch's mean loss is the loss of the initial weights over all samples."""
    model, rows, moved = trained(problem(), epochs=1, lr=0.0)
    assert moved.abs().max() == 0
    (batch,) = problem(train=False, batch_size=60).epoch()
    expected = DeferralLoss("picce", "ce", 3)(model(batch.inputs), batch.labels, batch.answers)
    assert rows[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_the_same_seed_repeats_and_another_does_not(problem):
    runs = [trained(problem(seed=seed), seed=seed) for seed in (0, 0, 1)]
    weights = [weights_of(model) for model, _, _ in runs]
    losses = [[row["loss"] for row in rows] for _, rows, _ in runs]
    assert torch.equal(weights[0], weights[1])
    assert losses[0] == losses[1]
    assert not torch.equal(weights[0], weights[2])
    assert losses[0] != losses[2]


def test_clip_grad_shortens_the_step_and_keeps_its_direction(problem):
    """One plain SGD step with rate 1 moves by the gradient: its length is the limit, where the limit is shorter."""

    def step(clip):
        return trained(problem(batch_size=60), epochs=1, lr=1.0, momentum=0, clip_grad=clip)[2]

    free, clipped, generous = step(None), step(0.01), step(1e3)
    assert free.norm() > 0.1
    assert clipped.norm().item() == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(clipped / clipped.norm(), free / free.norm())
    torch.testing.assert_close(generous, free)


def test_predict_is_the_model_in_evaluation_mode_in_the_splits_order(problem):
    """Dropout is off, batch norm uses its running statistics, nothing is dropped, no gradient is kept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 5))
    loader = problem(train=False, batch_size=7)
    scores, labels, answers, samples = predict(model, loader)
    (whole,) = problem(train=False, batch_size=60).epoch()
    norm, linear = model[1], model[3]
    x = (whole.inputs.flatten(1) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    torch.testing.assert_close(scores, (x @ linear.weight.T + linear.bias).detach())
    assert torch.equal(labels, whole.labels)
    assert torch.equal(answers, whole.answers)
    assert torch.equal(samples, torch.arange(60))
    assert not scores.requires_grad
    assert scores.dtype == torch.float32


def test_every_batch_that_is_scored_has_the_same_shape(problem):
    """60 samples in batches of 7: the last one is filled up, and what fills it is not among the scores."""
    model, shapes = MLP(5, (3, 2, 2), 16, 1), []
    model.register_forward_hook(lambda module, inputs, output: shapes.append(len(inputs[0])))
    assert len(predict(model, problem(train=False, batch_size=7)).outputs) == 60
    assert shapes == [7] * 9


def test_fit_trains_in_training_mode(problem):
    """Also after an evaluation in between: batch norm's statistics keep moving."""
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 5))
    system, loader, counted = system_of(model, DeferralLoss("vanilla", "ova", 3)), problem(), []
    for _ in fit(state_of(system, loader, epochs=3), lambda *step: None):
        predict(system, problem(train=False))
        counted.append(int(model[1].num_batches_tracked))
    assert counted == [3, 6, 9]


def test_frozen_parts_stay_bit_identical_including_batch_norm(problem):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    system, loader = system_of(model), problem()
    freeze(system, ["backbone.1", "backbone.2"])
    before = {name: tensor.clone() for name, tensor in system.state_dict().items()}
    list(fit(state_of(system, loader, epochs=2), lambda *step: None))
    same = {name for name, tensor in system.state_dict().items() if torch.equal(tensor, before[name])}
    assert same == {name for name in before if not name.startswith("backbone.3")}


def test_freezing_everything_or_nothing_that_exists_is_refused(problem):
    system, loader = system_of(MLP(5, (3, 2, 2), 16, 1)), problem()
    with pytest.raises(UserError, match="freeze=stem"):
        freeze(system, ["stem"])
    freeze(system, ["backbone"])
    with pytest.raises(UserError, match="freeze="):
        state_of(system, loader, freeze=["backbone"])


class TwoStages(ScoreSystem):
    """The classifier first, then the rest of the head on the frozen first layer."""

    def stages(self):
        first, last = self.backbone[1], self.backbone[3]
        return [
            Stage("features", [*first.parameters(), *last.parameters()], self.taught, epochs=2),
            Stage("head", list(last.parameters()), self.taught),
        ]


def test_a_stage_trains_its_own_parameters_and_starts_its_own_schedule(problem):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5))
    system, loader = TwoStages(lambda n: model, DeferralLoss("picce", "ce", 3), 3, 2), problem()
    state, seen = state_of(system, loader, {"schedule": "cosine", "lr": 1.0}, epochs=3), []
    for row in fit(state, lambda *step: None):
        seen.append((row["epoch"], row["stage"], round(row["lr"], 9), model[1].weight.sum().item()))
    assert [(epoch, stage) for epoch, stage, *_ in seen] == [
        (1, "features"), (2, "features"), (3, "head"), (4, "head"), (5, "head"),
    ]  # fmt: skip
    assert [lr for *_, lr, _ in seen] == pytest.approx([0.5, 0, 0.75, 0.25, 0], abs=1e-9)
    first_layer = [total for *_, total in seen]
    assert first_layer[0] != first_layer[1] and len(set(first_layer[1:])) == 1


def test_devices_and_precisions_are_chosen_or_rejected():
    here = "cuda" if torch.cuda.is_available() else "cpu"
    alone = Ranks.alone()
    chosen = Place.choose("auto", "auto", alone)
    assert chosen.device.type == here
    assert chosen.precision == ("bf16" if here == "cuda" else "float32")
    assert Place.choose("cpu", "bf16", alone).precision == "bf16"
    for name in ("gpu", "cuda:99", *([] if torch.backends.mps.is_available() else ["mps"])):
        with pytest.raises(UserError, match=rf"trainer\.device={name}"):
            Place.choose(name, "auto", alone)
    with pytest.raises(UserError, match=r"trainer\.precision=fp8"):
        Place.choose("cpu", "fp8", alone)


BF16 = """
import torch
from pathlib import Path
from omegaconf import OmegaConf
from l2d.data import Loader, Preprocessing, Split
from l2d.data.vectors import Vectors
from l2d.losses import DeferralLoss
from l2d.place import Place, Ranks
from l2d.systems import ScoreSystem
from l2d.training.checkpoint import Checkpoints
from l2d.training.loop import fit, predict
from l2d.signals import StopSignal
from l2d.training.state import TrainingState

torch.manual_seed(0)
labels = torch.arange(40) % 2
images = torch.randn(40, 3, 2, 2) + labels[:, None, None, None]
loader = Loader(Split(images, labels, labels[:, None]), Place.choose("cpu", "bf16", Ranks.alone()), 20, train=True)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
seen = set()
model.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
system = ScoreSystem(lambda num_outputs: model, DeferralLoss("picce", "ce", 2), 2, 1)
cfg = OmegaConf.create({
    "trainer": {"epochs": 10, "clip_grad": None, "log_every": 9, "skip_nonfinite": 0, "checkpoint_epochs": 0,
                "checkpoint_minutes": None, "sync_batchnorm": False},
    "optim": {"_target_": "torch.optim.SGD", "lr": 0.1, "schedule": "constant", "warmup_epochs": 0},
})
state = TrainingState(cfg, system, loader, Checkpoints(Path("nowhere"), ""), StopSignal())
rows = list(fit(state, lambda *step: None))
assert seen == {torch.bfloat16}, seen
assert predict(system, loader).outputs.dtype == torch.float32
assert all(p.dtype == torch.float32 for p in system.parameters())
assert rows[-1]["loss"] < rows[0]["loss"]
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process is Linux's to tell")
def test_the_peak_of_memory_is_the_runs_own():
    CPU.reset_peak_memory()
    before = CPU.peak_memory_mb()
    with mmap.mmap(-1, 200 * 2**20) as memory:  # not malloc's, which may keep what is freed
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1
        assert before + 190 < CPU.peak_memory_mb() < before + 250
    CPU.reset_peak_memory()
    assert CPU.peak_memory_mb() < before + 100


def test_the_peak_of_a_gpu_is_reset_also_before_anything_ran_on_it():
    """Torch refuses that of a GPU it has not initialised yet, and a run starts there."""
    code = 'import torch; from l2d.place import Place; Place(torch.device("cuda:0"), "bf16").reset_peak_memory()'
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_bf16_autocast_trains_on_the_cpu():
    """In a process of its own: oneDNN reads its instruction set once, and not every machine runs its newest one."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
    child = subprocess.run([sys.executable, "-c", BF16], env=environment, capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "loss"), [("mlp", "picce_ce"), ("mlp", "ova"), ("wrn28", "picce_ova")])
def test_model_and_loss_compile_to_one_graph(composed, backbone, loss):
    """No break in the graph, and the same value as without compiling."""
    from l2d.config import build

    cfg = composed(
        f"loss={loss}", f"backbone={backbone}", *["backbone.depth=10", "backbone.width=1"][: 2 * (backbone == "wrn28")]
    )
    model = build(cfg, "backbone", num_outputs=5, image_shape=(3, 8, 8)).eval()
    loss_fn = build(cfg, "loss", num_classes=3)

    def step(images, labels, answers):
        return loss_fn(model(images), labels, answers)

    case = (torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]), torch.tensor([[0, 1], [1, 1], [0, -1], [0, 0]]))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*case), step(*case))


@pytest.fixture
def static_sizes(monkeypatch) -> Iterator[list[bool]]:
    """Of every graph that is compiled, whether all its sizes are static; the graph itself is run as it is."""
    static = []

    def backend(graph, inputs):
        static.append(not any(isinstance(given, torch.SymInt) for given in inputs))
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    yield static
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
@pytest.mark.parametrize("evaluation", ["basic", "full"])
def test_a_compiled_run_compiles_nothing_twice_and_ends_as_one_that_is_not(
    composed, tmp_path, static_sizes, evaluation
):
    """The model in training and in evaluation, and the loss: three graphs, for 300 = 2 * 128 + 44 test samples too."""
    from torch._dynamo.utils import counters

    from l2d.train import run

    def metrics(folder: str, *more: str) -> dict:
        small = ("dataset.num_train=1500", "dataset.num_test=300", "trainer.epochs=2", "trainer.eval_every=1")
        rest = (f"evaluation={evaluation}", f"output_dir={tmp_path / folder}", "verbose=false", "trainer.device=cpu")
        return run(composed(*small, *rest, *more))

    counters.clear()
    assert metrics("compiled", "trainer.compile=true") == metrics("plain")
    assert static_sizes == [True] * 3 and not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
def test_every_run_of_a_sweep_is_compiled_for_itself(composed, tmp_path, static_sizes):
    """Ten losses and numbers of experts in one process: more than torch compiles a function for, and never with dynamic sizes."""
    from l2d.train import run

    small = ("dataset.num_train=20", "dataset.num_test=10", "trainer.epochs=1", "trainer.batch_size=10")
    losses = ["ce", "ova", "picce_ce", "picce_ova", "pice_ce", "pice_ova", "balanced_ce", "balanced_ova", "gce", "asm"]
    for experts, loss in enumerate(losses, 1):
        cell = (f"loss={loss}", f"experts.num={experts}", "trainer.compile=true", "trainer.device=cpu")
        run(composed(*small, *cell, f"output_dir={tmp_path}", "verbose=false"))
    assert static_sizes == [True] * 30  # the system in training and in evaluation, and its loss


@pytest.mark.parametrize(("mode", "graphs"), [("reduce-overhead", True), ("max-autotune-no-cudagraphs", False)])
def test_a_mode_of_compilation_reaches_torch_and_cuda_graphs_are_told_of_every_step(
    composed, tmp_path, monkeypatch, mode, graphs
):
    """Four of training, and one batch of test samples; the loss belongs to its step."""
    from l2d.train import run

    modes, steps = [], []
    monkeypatch.setattr(torch, "compile", lambda model, mode: modes.append(mode) or model)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: steps.append(1))
    small = (
        "dataset.num_train=20",
        "dataset.num_test=10",
        "trainer.epochs=2",
        "trainer.batch_size=10",
        "backbone.hidden=8",
    )
    run(composed(*small, f"trainer.compile={mode}", f"output_dir={tmp_path}", "verbose=false", "trainer.device=cpu"))
    assert modes == [mode, mode]  # of the system and of its loss
    assert len(steps) == (5 if graphs else 0)


def test_outputs_that_the_next_batch_overwrites_are_kept():
    """As those of a CUDA graph, which always writes to the same memory."""

    class Replayed(nn.Module):
        memory = torch.empty(4, 1)

        def forward(self, inputs):
            return self.memory.copy_(inputs)

    values = torch.arange(10.0)[:, None]  # [N, 1]
    vectors = Vectors(values.numpy(), Preprocessing((1,)))
    split = Split(vectors, torch.arange(10), torch.zeros(10, 1, dtype=torch.int8))
    predicted = predict(Replayed(), Loader(split, Place(), batch_size=4))
    assert torch.equal(predicted.outputs, values) and torch.equal(predicted.labels, torch.arange(10))


def test_a_whole_run_repeats_with_its_seed(composed, tmp_path):
    from l2d.train import run

    def metrics(seed: int, folder: str) -> dict:
        small = ("dataset.num_train=300", "dataset.num_test=200", "trainer.epochs=2", "trainer.device=cpu")
        return run(composed(*small, f"seed={seed}", f"output_dir={tmp_path / folder}", "verbose=false"))

    first = metrics(0, "a")
    assert metrics(0, "b") == first
    assert metrics(1, "c") != first
