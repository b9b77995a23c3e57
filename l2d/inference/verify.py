"""Whether an exported file says and decides what the system does, on the same inputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from l2d.config import bind
from l2d.data.dataset import Generated
from l2d.data.load import load_dataset
from l2d.errors import UserError, notify
from l2d.evaluation.outcome import believed
from l2d.inference.decide import Decider
from l2d.inference.served import served_inputs
from l2d.inference.system import TrainedSystem
from l2d.training.loop import forward

TOLERANCE = 1e-4  # of beliefs and scores
OF_LARGE_SCORES = 1e-5  # of the largest score of an input, where that is more: float32 has seven digits
ROUNDING = 1e-6  # beliefs that are as close as this may be told apart by rounding alone
RANDOM, MOST = 64, 1024  # random inputs, and real ones at most

Exported = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # inputs -> scores, beliefs, decision


class Agreement(NamedTuple):
    """How close a file and its system are."""

    inputs: int
    scores: float  # the largest difference
    beliefs: float
    ties: int  # decisions that differ where two actions are worth the same but for rounding


def verify(
    trained: TrainedSystem, decider: Decider, exported: Exported, batch: int | None, values: Iterable[Tensor]
) -> Agreement:
    """Compare the file with the system on batches of inputs [b, ...] as they come from files or arrays; UserError where they
    differ. A file with a dynamic batch is given one input first, and then the others."""
    total = Agreement(0, 0.0, 0.0, 0)
    for part in values:
        theirs = _in_batches(exported, served_inputs(trained, part), batch)
        one = compared(trained, decider, part, theirs)
        total = Agreement(
            total.inputs + one.inputs,
            max(total.scores, one.scores),
            max(total.beliefs, one.beliefs),
            total.ties + one.ties,
        )
    return total


def compared(
    trained: TrainedSystem, decider: Decider, values: Tensor, theirs: tuple[Tensor, Tensor, Tensor]
) -> Agreement:
    """What the file said, `theirs`, beside what `l2d predict` computes for the same inputs."""
    scores = forward(trained.system, trained.prepared(values), trained.place).cpu()  # [b, *]
    beliefs = believed(trained.system, scores)  # [b, K+J]
    there = decider.chosen.expand(len(values), -1)  # [b, J]
    action = decider.action(decider.decide(beliefs, scores, there))  # [b]
    of_scores = (theirs[0] - scores).abs()
    of_beliefs = (theirs[1].double() - beliefs).abs()
    for name, off, allowed in (
        ("scores", of_scores, (OF_LARGE_SCORES * scores.abs().amax(dim=1, keepdim=True)).clamp(min=TOLERANCE)),
        ("beliefs", of_beliefs, torch.full_like(of_beliefs, TOLERANCE)),
    ):
        if not (off <= allowed).all():  # NaN is not
            raise UserError(
                f"The exported {name} differ from those of the system by up to {off.max():.2g}, and {TOLERANCE:g} is allowed; nothing was "
                "written."
            )
    other = (theirs[2] != action).nonzero().squeeze(1)  # [d]
    if len(other):
        slack = 2 * of_beliefs[other].amax(dim=1, keepdim=True) + ROUNDING  # [d, 1]
        wanted = theirs[2][other]
        raised = beliefs[other].scatter_add(1, wanted[:, None], slack)
        again = decider.action(decider.decide(raised, scores[other], there[other]))
        if not torch.equal(again, wanted):
            raise UserError(
                f"The exported decision is another one than that of the system for {int((again != wanted).sum())} of {len(values)} inputs; "
                "nothing was written."
            )
    return Agreement(len(values), float(of_scores.max()), float(of_beliefs.max()), len(other))


def random_inputs(trained: TrainedSystem, count: int = RANDOM) -> Tensor:
    """[count, ...] bytes from 0 to 255, or normal numbers with the mean and deviation of the run's features."""
    preprocessing, generator = trained.preprocessing, torch.Generator().manual_seed(0)
    if preprocessing.stored != "floats":
        return torch.randint(256, (count, *preprocessing.shape), dtype=torch.uint8, generator=generator)
    values = torch.randn(count, *preprocessing.shape, generator=generator)
    if trained.sizes.statistics is None:
        return values
    mean, std = (torch.tensor(numbers) for numbers in trained.sizes.statistics)  # [D]
    return values * std + mean


def real_inputs(trained: TrainedSystem, named: Sequence[str]) -> Iterator[Tensor]:
    """Batches of the first inputs that `named` names as for `l2d predict`, or else, where a run's data are generated, of its
    test split."""
    if named:
        batches = trained.intake.batches(list(named), min(trained.cfg.trainer.batch_size, MOST))
        left, errors = MOST, 0
        for incoming in batches:
            errors += len(incoming.errors)
            if len(incoming.values):
                yield incoming.values[:left]
                left -= len(incoming.values[:left])
            if not left:
                break
        if errors:
            notify(f"{errors:,} of the inputs to check with could not be read.")
        if left == MOST:
            raise UserError(f"None of the inputs to check with can be read: {', '.join(named)}.")
    elif getattr(bind(trained.cfg, "dataset", {})[0], "lister", None) is Generated:
        inputs: Any = load_dataset(trained.cfg).test.inputs
        yield inputs.pixels[:MOST]


def open_onnx(file: Path) -> Exported:
    """The file as onnxruntime runs it, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, beliefs, decision = session.run(None, {"inputs": inputs.contiguous().numpy()})
        return torch.from_numpy(scores), torch.from_numpy(beliefs), torch.from_numpy(decision)

    return run


def open_pt2(file: Path) -> Exported:
    """The file as torch runs it."""
    with open(file, "rb") as content:
        module = torch.export.load(content).module()
    return torch.no_grad()(module)


def _in_batches(exported: Exported, inputs: Tensor, batch: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs for inputs [b, ...] from a file that takes `batch` inputs at a time; None: any number."""
    if batch is None:
        parts = [part for part in (inputs[:1], inputs[1:]) if len(part)]
    else:
        missing = -len(inputs) % batch
        parts = list(F.pad(inputs, (0,) * (2 * inputs.dim() - 1) + (missing,)).split(batch))
    scores, beliefs, decision = zip(*map(exported, parts), strict=True)
    return tuple(torch.cat(column)[: len(inputs)] for column in (scores, beliefs, decision))  # type: ignore[return-value]
