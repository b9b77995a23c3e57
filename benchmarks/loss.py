"""What the losses cost: forward and backward at K=100, B=128, against F.cross_entropy on the same K+J columns.

`loop` is a Python loop over the experts, vectorised over the samples: as one writes it first, and as good as it gets.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import Row, alternated, main
from torch import Tensor

from l2d.compose import compose
from l2d.conf_files import config_dir
from l2d.config import build
from l2d.losses import DeferralLoss

K, B, CALLS = 100, 128, 100  # calls in one measurement
LOSSES = [(formulation, base) for formulation in ("vanilla", "picce") for base in ("ce", "ova")]


def batch(num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, labels, and experts that are right in seven of ten cases."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(K, (B,), generator=rng)
    right = torch.rand(B, num_experts, generator=rng) < 0.7
    answers = torch.where(right, labels[:, None], (labels[:, None] + 1) % K).to(torch.int8)
    return torch.randn(B, K + num_experts, generator=rng), labels, answers


def by_definition(base: str, scores: Tensor, labels: Tensor) -> tuple[Tensor, Callable[[int], Tensor]]:
    """phi(theta, y), and phi(theta, K + j) for an expert j: each term by itself, as it is written down."""
    if base == "ce":
        experts = lambda j: F.cross_entropy(scores, torch.full((len(scores),), K + j), reduction="none")  # noqa: E731
        return F.cross_entropy(scores, labels, reduction="none"), experts
    own = scores.gather(1, labels[:, None]).squeeze(1)  # [B]
    label = -F.logsigmoid(own) + F.logsigmoid(-own) - F.logsigmoid(-scores).sum(dim=1)
    return label, lambda j: -F.logsigmoid(scores[:, K + j]) + F.logsigmoid(-scores[:, K + j])


def shared(base: str, scores: Tensor, labels: Tensor) -> tuple[Tensor, Callable[[int], Tensor]]:
    """The same with what the terms share computed once: as good as a loop over experts gets."""
    columns = -F.log_softmax(scores, dim=1) if base == "ce" else -scores  # [B, K+J]
    label = columns.gather(1, labels[:, None]).squeeze(1)  # [B]
    return label if base == "ce" else label + F.softplus(scores).sum(dim=1), lambda j: columns[:, K + j]


def loop(formulation: str, base: str, terms: Callable) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """phi(theta, y) + sum_j w_j phi(theta, K + j), expert by expert."""

    def loss(scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        (total, expert_term), experts = terms(base, scores, labels), range(answers.shape[1])
        taught = [answers[:, j] == labels for j in experts]  # vanilla: every expert that is correct
        if formulation == "picce":
            best, picked = torch.full((len(scores),), -torch.inf), torch.full((len(scores),), -1)
            for j in experts:
                better = taught[j] & (scores[:, K + j].detach() > best)
                best, picked = torch.where(better, scores[:, K + j].detach(), best), torch.where(better, j, picked)
            taught = [picked == j for j in experts]
        for j in experts:
            total = total + taught[j].float() * expert_term(j)
        return total.mean()

    return loss


def stepping(loss: Callable[..., Tensor], scores: Tensor, *targets: Tensor) -> Callable[[], None]:
    """CALLS times forward and backward."""

    def step() -> None:
        for _ in range(CALLS):
            leaf = scores.detach().requires_grad_()
            loss(leaf, *targets).backward()

    return step


def cross_entropy(scores: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels)


def ratio(name: str, target: str, ours: Callable, theirs: Callable, repeats: int, slower: bool = False) -> Row:
    pairs = alternated(ours, theirs, repeats)
    note = " and ".join(f"{1e3 * min(side) / CALLS:.3f}" for side in zip(*pairs, strict=True)) + " ms"
    return Row(name, [b / a if slower else a / b for a, b in pairs], target, note)


def catalogue() -> dict[str, Callable]:
    """Every loss that `loss=NAME` chooses."""
    names = sorted({path.stem for path in Path(config_dir(), "loss").glob("*.yaml")} - {"none"})
    configs = {name: compose([f"loss={name}", "experts.costs=0.1"]) for name in names}
    return {name: build(cfg, "loss", num_classes=K, num_experts=20, complete=True) for name, cfg in configs.items()}


def measure(repeats: int) -> Iterator[Row]:
    warnings.filterwarnings("ignore", module="torch._inductor")  # advice about the machine, not about the loss
    at_20, at_1000, most = batch(20), batch(1000), f"<= {(K + 1000) / (K + 20):.2f}"
    plain = stepping(cross_entropy, *at_20)
    for name, loss in catalogue().items():
        torch.compiler.reset()  # all losses share the code of their classes, which is compiled for a few of them only
        compiled_plain = stepping(torch.compile(cross_entropy, fullgraph=True), *at_20)
        ours, compiled = stepping(loss, *at_20), stepping(torch.compile(loss, fullgraph=True), *at_20)
        yield ratio(f"{name}, J=20 / cross_entropy", "<= 4.0", ours, plain, 3 * repeats)
        yield ratio(f"{name}, J=20 / cross_entropy, both compiled", "<= 2.0", compiled, compiled_plain, 3 * repeats)
        yield ratio(f"{name}, J=1000 / J=20", most, stepping(loss, *at_1000), ours, repeats)
    for formulation, base in LOSSES:
        loss = DeferralLoss(formulation, base, K, complete=True)
        name, ours = f"{formulation} {base}", stepping(loss, *at_20)
        for terms, words in ((by_definition, "loop over experts"), (shared, "loop over experts, shared parts once")):
            other = loop(formulation, base, terms)
            torch.testing.assert_close(loss(*at_20), other(*at_20))  # both compute the same
            yield ratio(f"{words} / {name}, J=20", ">= 5", ours, stepping(other, *at_20), 3 * repeats, slower=True)


if __name__ == "__main__":
    main(measure, __doc__)
