"""Three annotators in a CSV: which images does the system answer, and about which does it ask whom?

    python examples/annotators.py [FOLDER]

Writes small images and labels.csv with a column per annotator, as you would have them: not everybody saw every image. An owl
looks like nothing else, but a cat looks like a fox and a dog like a wolf. Ada knows dogs from wolves, Bob cats from foxes, and
Eve guesses a lot.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

import l2d
from l2d.compose import compose
from l2d.train import run, run_folder

CLASSES = ["cat", "dog", "fox", "owl", "wolf"]
# For each class its mean red, green and blue, [K, 3], and how often each annotator is right; then the share of images that each saw.
TINTS = np.array([[96, 60, 40], [60, 60, 60], [90, 60, 40], [40, 60, 96], [60, 66, 60]])
SKILLS = {"ada": [0.5, 0.95, 0.5, 0.5, 0.95], "bob": [0.95, 0.5, 0.95, 0.5, 0.5], "eve": [0.4, 0.4, 0.4, 0.4, 0.4]}
SAW = {"ada": 0.9, "bob": 0.8, "eve": 0.7}


def write_images(root: Path, count: int = 600, seed: int = 0) -> pd.DataFrame:
    """Images of 16 x 16 pixels and labels.csv below `root`; return the manifest."""
    rng = np.random.default_rng(seed)
    (root / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(count):
        label = int(rng.integers(len(CLASSES)))
        pixels = rng.normal(TINTS[label], 40, size=(16, 16, 3)).clip(0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"images/{i:03}.png")
        row = {"path": f"images/{i:03}.png", "label": CLASSES[label], "split": "train" if i < 0.7 * count else "test"}
        for name, skill in SKILLS.items():
            wrong = (label + rng.integers(1, len(CLASSES))) % len(CLASSES)
            said = CLASSES[label if rng.random() < skill[label] else wrong]
            row[name] = said if rng.random() < SAW[name] else ""  # an empty cell: not seen
        rows.append(row)
    manifest = pd.DataFrame(rows)
    manifest.to_csv(root / "labels.csv", index=False)
    return manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("outputs/examples/annotators"))
    out = parser.parse_args().folder
    manifest = write_images(out)
    print(manifest.head(4).to_csv(index=False))

    # l2d train dataset=folder dataset.root=FOLDER dataset.manifest=labels.csv experts=human experts.num=null ...
    cfg = compose([
        "dataset=folder", "dataset.manifest=labels.csv", "dataset.size=16", "dataset.resize=16", "dataset.augment=none",
        "experts=human", "experts.num=null", "loss=decoupled", "backbone=mlp", "backbone.hidden=64", "optim.lr=3e-3",
        "trainer.epochs=15", "trainer.batch_size=32", "verbose=false",
    ])  # fmt: skip
    cfg.dataset.root, cfg.dataset.cache, cfg.output_dir = str(out), str(out / "cache"), str(out / "runs")
    run(cfg)

    # Whom does it ask about the test images?
    test = manifest[manifest["split"] == "test"].reset_index(drop=True)
    system = l2d.load(run_folder(cfg))
    decisions = system.predict([out / path for path in test["path"]]).to_pandas()
    who = decisions["decision"].where(decisions["asked"], "(itself)")
    print("\nWho answers, in percent of the test images of each class:")
    shares = 100 * pd.crosstab(test["label"], who, normalize="index")
    print(shares.round(1).rename_axis(index=None, columns=None).to_string())
    decisions.to_csv(out / "decisions.csv", index=False)
    print(f"\nEvery decision: {out / 'decisions.csv'}")


if __name__ == "__main__":
    main()
