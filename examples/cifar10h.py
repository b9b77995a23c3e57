"""A task with real people and real networks: CIFAR-10H, the 10,000 test images of CIFAR-10 as three networks and 50 people saw them.

    python examples/cifar10h.py FOLDER cifar10h.npz
    l2d train dataset=features dataset.path=cifar10h.npz experts.num=3

FOLDER holds resnet-110.csv, preresnet-110.csv and densenet-bc-L190-k40.csv, without a header: label, how many people gave each of
the ten answers, the network's ten probabilities. The inputs are the log-probabilities of one network; the experts are the other two
and one person per image, drawn from the votes.
"""

import argparse
from pathlib import Path

import numpy as np

NETWORKS = ("resnet-110", "preresnet-110", "densenet-bc-L190-k40")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def make_task(folder: Path, network: str, seed: int) -> dict[str, np.ndarray]:
    """The arrays of the .npz file: x [N, 10], y [N], answers [N, 3]."""
    tables = {name: np.loadtxt(folder / f"{name}.csv", delimiter=",") for name in NETWORKS}  # [N, 21] each
    labels, votes = tables[network][:, 0].astype(int), tables[network][:, 1:11]
    if not all((table[:, :11] == tables[network][:, :11]).all() for table in tables.values()):
        raise SystemExit(f"The files in {folder} do not agree on the labels and votes; they must list the same images.")
    probabilities = {name: table[:, 11:] for name, table in tables.items()}  # [N, 10] each
    u = np.random.default_rng(seed).random((len(labels), 1)) * votes.sum(axis=1, keepdims=True)
    person = (u >= votes.cumsum(axis=1)).sum(axis=1)  # [N]: each answer as likely as it is frequent
    others = [name for name in NETWORKS if name != network]
    return {
        "x": np.log(np.maximum(probabilities[network], 1e-12)).astype(np.float32),
        "y": labels,
        "answers": np.stack([*(probabilities[name].argmax(axis=1) for name in others), person], axis=1),
        "names": np.array([*others, "person"]),
        "classes": np.array(CLASSES),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--network", choices=NETWORKS, default=NETWORKS[0], help="whose log-probabilities are the inputs"
    )
    parser.add_argument("--seed", type=int, default=0, help="which person is drawn for each image")
    options = parser.parse_args()
    task = make_task(options.folder, options.network, options.seed)
    np.savez(options.out, **task)
    accuracy = 100 * (task["answers"] == task["y"][:, None]).mean(axis=0)
    own = 100 * (task["x"].argmax(axis=1) == task["y"]).mean()
    print(f"{options.out}: {len(task['y']):,} images; {options.network} is right on {own:.2f}%,")
    print(", ".join(f"{name} on {value:.2f}%" for name, value in zip(task["names"], accuracy, strict=True)))


if __name__ == "__main__":
    main()
