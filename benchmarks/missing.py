"""What missing answers do to a system: embedded data, answers of training missing at random, complete at test.

    scripts/benchmark missing

For each loss and share of answers given: system error on the test set, and how far the believed accuracies are from those of
the same training with complete answers (mean over samples and experts), beside what another seed alone changes.
"""

import argparse
import io
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch

from l2d.compose import compose
from l2d.data import MISSING, Dataset
from l2d.evaluation.kept import read_kept
from l2d.experts import ExpertPanel, disjoint, simulate
from l2d.experts.simulator import table_dtype
from l2d.losses import DeferralLoss
from l2d.train import run

LOSSES = ("ce", "ova", "picce_ce", "picce_ova", "pice_ce", "pice_ova")
RATES = (1.0, 0.5, 0.1)


def answering(dataset: Dataset, num: int, seed: int, rate: float) -> ExpertPanel:
    """Specialists as in experts=specialist, whose answers to the training split are given with probability `rate`."""
    matrix = disjoint(num, dataset.num_classes, dataset.groups, "specialty", 1, 0.94, 0.75)
    recorded = {}
    for stream, split in enumerate(("test", "train")):
        table = simulate(matrix, getattr(dataset, split).labels.numpy(), seed, stream)  # [N, J]
        if split == "train":
            absent = np.random.default_rng([seed, 7]).random(table.shape) >= rate
            table = np.where(absent, MISSING, table).astype(table_dtype(dataset.num_classes))
        recorded[split] = table
    return ExpertPanel([f"expert_{j}" for j in range(num)], recorded=recorded)


def trained(loss: str, rate: float, seed: int, folder: Path) -> tuple[float, torch.Tensor]:
    """System error, and the beliefs about every expert on the test set, [N, J]."""
    overrides = (
        f"loss={loss}", "experts._target_=missing.answering", "~experts.group", "~experts.classes_per_expert",
        "~experts.in_domain", "~experts.in_group", f"+experts.rate={rate}", "experts.num=4", "dataset.num_train=20000",
        "backbone.layers=1", "backbone.hidden=64", "trainer.epochs=10", f"seed={seed}", f"output_dir={folder}",
        "verbose=false", "trainer.device=cpu",
    )  # fmt: skip
    cfg = compose(overrides)
    with redirect_stdout(io.StringIO()):  # the run's own last lines
        metrics = run(cfg)
    (file,) = folder.glob("*/*/outcome.safetensors")
    kept = read_kept(file.parent)
    assert kept is not None
    scores = kept["test"].predicted.outputs.double()
    beliefs = DeferralLoss(cfg.loss.formulation, cfg.loss.base, 40).beliefs(scores)
    return metrics["system_error"], beliefs[:, 40:].clamp(max=1)


def main() -> None:
    parser = argparse.ArgumentParser("scripts/benchmark missing", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print("| loss | system error at 100 / 50 / 10 % | beliefs at 50 / 10 % against 100 % | against another seed |")
    print("|---|---|---|---|")
    for loss in LOSSES:
        found = {}
        for rate in RATES:
            for seed in seeds:
                with tempfile.TemporaryDirectory() as folder:
                    found[rate, seed] = trained(loss, rate, seed, Path(folder))
        errors = [np.mean([found[rate, seed][0] for seed in seeds]) for rate in RATES]
        apart = [
            np.mean([100 * (found[rate, seed][1] - found[1.0, seed][1]).abs().mean().item() for seed in seeds])
            for rate in RATES[1:]
        ]
        noise = np.mean(
            [100 * (found[1.0, s][1] - found[1.0, t][1]).abs().mean().item() for s in seeds for t in seeds if s < t]
        )
        shown = " / ".join(f"{error:.2f}" for error in errors)
        print(f"| {loss} | {shown} | {' / '.join(f'{a:.2f}' for a in apart)} | {noise:.2f} |", flush=True)


if __name__ == "__main__":
    main()
