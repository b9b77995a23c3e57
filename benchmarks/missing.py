"""What missing answers do to a system: embedded data, answers of training missing at random, complete at test.

    scripts/benchmark missing

For each loss and share of answers given: system error on the test set, and what is believed about the experts beside the
truth, which the embedded data know. Many samples for a small network, so that little is memorised.
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
from l2d.data.load import load_dataset
from l2d.evaluation.kept import read_kept
from l2d.experts import ExpertPanel, disjoint, simulate
from l2d.experts.simulator import table_dtype
from l2d.identity import fingerprint
from l2d.losses import DeferralLoss
from l2d.train import run

LOSSES = ("ce", "ova", "picce_ce", "picce_ova", "pice_ce", "pice_ova")
RATES = (1.0, 0.5, 0.1)


def specialists(dataset: Dataset, num: int) -> np.ndarray:
    """The accuracy matrix [J, K] of experts=specialist."""
    return disjoint(num, dataset.num_classes, dataset.groups, "specialty", 1, 0.94, 0.75)


def answering(dataset: Dataset, num: int, seed: int, rate: float) -> ExpertPanel:
    """Specialists whose answers to the training split are given with probability `rate`."""
    recorded = {}
    for stream, split in enumerate(("test", "train")):
        table = simulate(specialists(dataset, num), getattr(dataset, split).labels.numpy(), seed, stream)  # [N, J]
        if split == "train":
            absent = np.random.default_rng([seed, 7]).random(table.shape) >= rate
            table = np.where(absent, MISSING, table).astype(table_dtype(dataset.num_classes))
        recorded[split] = table
    return ExpertPanel([f"expert_{j}" for j in range(num)], recorded=recorded)


def trained(loss: str, rate: float, seed: int, folder: Path) -> tuple[float, float, float, float]:
    """System error, mean believed accuracy of the experts, its mean truth, and the mean absolute difference."""
    overrides = (
        f"loss={loss}", "experts._target_=missing.answering", "~experts.group", "~experts.classes_per_expert",
        "~experts.in_domain", "~experts.in_group", f"+experts.rate={rate}", "experts.num=4", "dataset.num_train=60000",
        "backbone.layers=1", "backbone.hidden=96", "trainer.epochs=8", "optim=sgd_cosine", f"seed={seed}", f"output_dir={folder}",
        "verbose=false", "trainer.device=cpu",
    )  # fmt: skip
    cfg = compose(overrides)
    with redirect_stdout(io.StringIO()):  # the run's own last lines
        metrics = run(cfg)
    (file,) = folder.glob("*/*/outcome.safetensors")
    kept = read_kept(file.parent, fingerprint(cfg))
    assert kept is not None
    dataset = load_dataset(cfg)
    scores = kept["test"].predicted.outputs.double()
    beliefs = DeferralLoss(cfg.loss.formulation, cfg.loss.base, dataset.num_classes).beliefs(scores)
    believed = beliefs[:, dataset.num_classes :].clamp(max=1)  # [N, J]
    assert dataset.posterior is not None
    eta = dataset.posterior(dataset.test.inputs.pixels)  # [N, K]
    true = eta @ torch.from_numpy(specialists(dataset, 4)).T.to(eta)  # [N, J]
    values = (believed.mean(), true.mean(), (believed - true).abs().mean())
    return metrics["system_error"], *(100 * value.item() for value in values)


def main() -> None:
    parser = argparse.ArgumentParser("scripts/benchmark missing", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(
        "Share of training answers given: 100 / 50 / 10 %, mean over seeds; a believed accuracy should be as the true one."
    )
    print("| loss | system error | mean believed accuracy | true | mean absolute error of it |")
    print("|---|---|---|---|---|")
    for loss in LOSSES:
        columns = []
        for rate in RATES:
            rows = []
            for seed in seeds:
                with tempfile.TemporaryDirectory() as folder:
                    rows.append(trained(loss, rate, seed, Path(folder)))
            columns.append(np.mean(rows, axis=0))
        error, believed, true, apart = (" / ".join(f"{c[i]:.2f}" for c in columns) for i in range(4))
        print(f"| {loss} | {error} | {believed} | {true.partition(' ')[0]} | {apart} |", flush=True)


if __name__ == "__main__":
    main()
