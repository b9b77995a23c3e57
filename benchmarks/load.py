"""Many experts, classes and samples at once: whether each part of a run works at that size, its memory and its time.

An expert table of N samples and J experts is predicted to take N x J x 2 bytes (int16) and little beside it.
"""

import argparse
import gc
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l2d.evaluation import METRICS, measure, observe
from l2d.experts import accuracy_matrix, disjoint_domains, simulate
from l2d.losses import DeferralLoss
from l2d.systems import ScoreSystem
from l2d.training.loop import Predicted


def resident() -> int:
    """Bytes of this process in RAM now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measured(what: str, predicted: int, call: Callable[[], Any]) -> Any:
    """Call it, and print its time and the most memory it took beside what was predicted."""
    gc.collect()
    before, peak, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    took = max(peak[0], resident()) - before
    print(f"{what:<44} {seconds:7.1f} s   {took / 1e6:8.0f} MB   predicted {predicted / 1e6:8.0f} MB", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, default=500)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--evaluated", type=int, default=10_000)
    size = parser.parse_args()
    num_experts, num_classes = size.experts, size.classes
    print(f"{num_experts} experts, {num_classes} classes, {size.samples} samples")

    group = range(num_classes)
    domains = disjoint_domains(group, num_experts, num_classes // num_experts)
    matrix = measured(
        "accuracy matrix [J, K]",
        8 * num_experts * num_classes,
        lambda: accuracy_matrix(domains, group, num_classes, 0.94, 0.75),
    )
    labels = np.random.default_rng(0).integers(0, num_classes, size.samples)
    table = measured("expert table [N, J]", 2 * size.samples * num_experts, lambda: simulate(matrix, labels, seed=0))
    right = (table[:, 0] == labels).mean()
    assert table.dtype == np.int16 and abs(right - 0.75) < 0.01, (
        "expert 0 is right on its classes 0.94, on the rest 0.75"
    )

    outputs, y, answers = num_classes + num_experts, torch.from_numpy(labels), torch.from_numpy(table)
    scores = torch.randn(size.batch, outputs, requires_grad=True)
    for formulation in ("vanilla", "picce", "pice"):
        for base in ("ce", "ova"):
            scores.grad = None
            loss_fn = DeferralLoss(formulation, base, num_classes)
            loss = measured(
                f"loss {formulation} {base}, forward and backward",
                4 * 4 * size.batch * outputs,
                lambda f=loss_fn: _backward(f(scores, y[: size.batch], answers[: size.batch])),
            )
            assert loss.isfinite() and scores.grad is not None and scores.grad.isfinite().all()

    system = ScoreSystem(
        lambda outputs: torch.nn.Identity(), DeferralLoss("picce", "ce", num_classes), num_classes, num_experts
    )
    part = torch.arange(size.evaluated)
    predicted = Predicted(torch.randn(size.evaluated, outputs), y[part], answers[part], part)
    metrics = measured(
        f"outcome and metrics of {size.evaluated} samples",
        2 * 8 * size.evaluated * outputs,  # beliefs in float64, and what is computed on the way
        lambda: measure(observe(system, predicted), METRICS),
    )
    print(f"system_error {metrics['system_error']:.2f}  coverage {metrics['coverage']:.2f}")


def _backward(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss.detach()


if __name__ == "__main__":
    main()
