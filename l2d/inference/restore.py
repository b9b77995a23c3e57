"""The weights of a run, given to its system again, and what the run recorded about the inputs that they are for."""

from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig

from l2d.data import Preprocessing
from l2d.errors import UserError
from l2d.identity import eight_digits, identity
from l2d.settings import AtLeast1, Group, validate
from l2d.systems import System
from l2d.systems.weights import Weights, read_weights
from l2d.tracking.trained import WEIGHTS, Run
from l2d.training.checkpoint import read_checkpoint


def weights_of(run: Run) -> tuple[Path, Weights]:
    """The file of a run's weights, and what it holds; the names of classes and experts are in it, or in result.json."""
    path = run.weights or next((run.folder / name for name in WEIGHTS if (run.folder / name).is_file()), None)
    if path is None:
        raise UserError(
            f"{run.folder} has no weights, which this needs; its kept outcome answers evaluation=... and rule=... alone."
        )
    if path.name.startswith("checkpoint"):
        state = read_checkpoint(path)
        weights = Weights(state["system"], {"fingerprint": state["fingerprint"]})
    else:
        weights = read_weights(path)
    theirs, ours = weights.facts.get("fingerprint"), run.result.get("fingerprint")
    if (
        theirs and not ours and "data" in weights.facts and not run.config.get("init")
    ):  # a file and its config.yaml alone
        ours = eight_digits(identity(DictConfig(run.config), weights.facts["data"]))
    if theirs and ours and theirs != ours:
        raise UserError(
            f"{path} holds the weights of another run than the config.yaml beside it; restore the right ones."
        )
    experts = [expert["name"] for expert in run.result.get("experts") or []]
    recorded = {"class_names": run.result.get("class_names"), "expert_names": experts or None}
    facts = {name: value for name, value in recorded.items() if value} | weights.facts
    return path, weights._replace(facts=facts)


def give_weights(system: System, weights: Weights, path: Path, here: str) -> None:
    """Load the weights into a system; UserError where they are those of another one than `here`."""
    try:
        system.load_state_dict(weights.tensors)
    except RuntimeError as error:
        difference = str(error).splitlines()[1:2] or [str(error)]
        raise UserError(f"{path} does not fit {here}: {difference[0].strip()}") from error


class Facts(Group):
    """What the weights say about themselves."""

    class_names: list[str]
    expert_names: list[str]
    preprocessing: dict[str, Any]


class Stored(Group):
    """How the inputs of the run were stored; `stored` and `columns` are not there in older runs."""

    shape: list[AtLeast1]
    mean: list[float]
    std: list[float]
    resize: AtLeast1 | None
    stored: Literal["", "bytes", "floats", "files"] = ""
    columns: list[str] | None = None


class Data(Group):
    """How much the run was trained on."""

    complete: bool
    train: AtLeast1


def check_finished(run: Run) -> None:
    """Refuse a run that was not trained to its end, and one that did not record what new inputs need."""
    status = run.result.get("status")
    if status != "finished":
        found = f"its status is {status}" if status else "it has no result.json"
        raise UserError(f"{run.folder} is not a finished run ({found}); the command that trained it continues it.")
    if any(run.result.get(name) is None for name in ("class_names", "experts", "data", "preprocessing")):
        raise UserError(
            f"{run.folder} was made by version 0.1, which did not record its preprocessing; train it again."
        )
    validate(Data, run.result["data"], f"{run.folder / 'result.json'}: data")


def preprocessing_of(run: Run, path: Path, facts: dict[str, Any]) -> Preprocessing:
    """What the weights in `path` say about the inputs that they are for; UserError where a new input cannot be made like them."""
    validate(Facts, facts, str(path))
    given = facts["preprocessing"]
    validate(Stored, given, f"{path}: preprocessing")
    shape, mean, std = (tuple(given[name]) for name in ("shape", "mean", "std"))
    if len(shape) not in (1, 3) or len(mean) != len(std) or len(mean) not in (0, shape[0]):
        raise UserError(f"{path}: preprocessing has the shape {list(shape)} and {len(mean)} means; restore it.")
    stored = given.get("stored") if "stored" in given else _guessed(run, shape, mean, std)
    if not stored or (stored != "floats" and len(shape) != 3):
        raise UserError(
            f"{run.folder} was trained on inputs from a source of its own (dataset._target_={run.config['dataset'].get('_target_')}), so "
            "it is not known how new ones are prepared."
        )
    return Preprocessing(shape, mean, std, given["resize"], stored=stored, columns=tuple(given.get("columns") or ()))


def _guessed(run: Run, shape: tuple[int, ...], mean: tuple[float, ...], std: tuple[float, ...]) -> str:
    """How the inputs of a run that did not record it were stored."""
    if len(shape) == 1 or (set(mean) <= {0.0} and set(std) <= {1.0}):
        return "floats"
    return "files" if run.config["dataset"].get("feed") == "stream" else "bytes"
