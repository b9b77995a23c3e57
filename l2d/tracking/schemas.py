"""What result.json and the files of .sweeps hold, as far as commands read it. Only l2d.tracking.read imports this."""

from typing import Any, Literal

from l2d.settings import Group


class Choices(Group):
    dataset: str = ""
    experts: str = ""
    backbone: str = ""
    loss: str = ""
    num_experts: int | None = None
    seed: int = 0


class Data(Group):
    digest: str | None
    complete: bool
    truth: bool


class Expert(Group):
    name: str


class Result(Group):
    schema_version: int = 1
    status: Literal["running", "finished", "failed", "interrupted"]
    metrics: dict[str, Any] | None = None
    bayes: dict[str, float | None] | None = None
    evaluation: dict[str, Any] | None = None
    own_metrics: list[dict[str, Any]] | None = None
    evaluated_with: dict[str, str] | None = None
    seconds: float | None = None
    error: str | None = None
    choices: Choices | None = None
    seed: int = 0
    device: str | None = None
    precision: str | None = None
    parameters: int | None = None
    class_names: list[str] | None = None
    experts: list[Expert] | None = None
    data: Data | None = None
    versions: dict[str, str] | None = None
    git_commit: str | None = None
    fingerprint: str | None = None


class Cell(Group):
    folder: str
    choices: Choices | None = None
    skipped: bool = False


class SweepManifest(Group):
    started: float
    command: list[str]
    cells: list[Cell]
