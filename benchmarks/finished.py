"""The finished runs below a folder, as the scripts that compare them read them."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def finished_runs(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The result and the config of each."""
    for path in sorted(folder.glob("**/result.json")):
        result = json.loads(path.read_text())
        if result["status"] == "finished":
            yield result, yaml.safe_load(path.with_name("config.yaml").read_text())


def step_seconds(run: Path) -> float:
    """Seconds in the training steps alone of the run in a folder on the embedded data, from the speed of every epoch."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    batch = config["trainer"]["batch_size"]
    images = config["dataset"]["num_train"] // batch * batch
    rows = csv.DictReader((run / "metrics.csv").read_text().splitlines())
    return sum(images / float(row["images_per_second"]) for row in rows)


def network(config: dict[str, Any]) -> str:
    """`linear`, or layers x units."""
    layers = config["backbone"].get("layers") or 0
    return f"{layers}x{config['backbone']['hidden']}" if layers else "linear"
