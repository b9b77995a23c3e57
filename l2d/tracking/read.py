"""Reads the files of runs, which others may have written or damaged: what is not as a run writes it is a UserError that names it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import DictConfig, OmegaConf

from l2d.atomic import read_text
from l2d.errors import UserError, sentence
from l2d.evaluation import metrics

if TYPE_CHECKING:  # pydantic takes a moment to import
    from pydantic import BaseModel

HEADLINE = [metric.name for metric in metrics.HEADLINE]
TRAIN_AGAIN = "restore it, or train again with force=true."
MAX_DEPTH = 50  # of a config.yaml; a run writes about 5
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_result(folder: Path) -> dict[str, Any] | None:
    """A folder's result.json; None where there is none that can be read."""
    try:
        return checked_result(folder)
    except UserError:
        return None


def checked_result(folder: Path) -> dict[str, Any] | None:
    """A folder's result.json; None where there is none, UserError where it is not what a run writes."""
    from l2d.tracking.schemas import Result

    path = folder / "result.json"
    result = _checked(path, Result, TRAIN_AGAIN)
    if result is None or result["status"] != "finished":
        return result
    for name in HEADLINE:
        value = (result.get("metrics") or {}).get(name)
        if not isinstance(value, int | float) or not 0 <= value <= 100:
            raise UserError(
                f"{path} is damaged (metrics.{name} is {json.dumps(value)}, not from 0 to 100); {TRAIN_AGAIN}"
            )
    return result


def epoch_lines(folder: Path) -> list[str]:
    """The lines of metrics.csv; without the last one if it was never completed, because its last number may be cut."""
    *lines, _ = read_text(folder / "metrics.csv").split("\n")
    return lines


def checked_manifest(path: Path) -> dict[str, Any] | None:
    """The cells of a sweep, as a file of .sweeps lists them; None where there is no file, UserError where it is damaged."""
    from l2d.tracking.schemas import SweepManifest

    return _checked(path, SweepManifest, "remove it.")


def _checked(path: Path, kind: "type[BaseModel]", hint: str) -> dict[str, Any] | None:
    """The mapping in a JSON file, if it fits the model; None where there is no file."""
    from pydantic import ValidationError

    from l2d.settings import refuse_beyond_64_bits

    try:
        content: dict[str, Any] = json.loads(read_text(path))
        refuse_beyond_64_bits(content, "")
        kind.model_validate(content)
    except FileNotFoundError:
        return None
    except ValidationError as error:  # a ValueError, like those of json
        first = error.errors()[0]
        value = "" if first["type"] == "missing" else f" is {json.dumps(first['input'])[:60]}"
        reason = f"{'.'.join(map(str, first['loc']))}{value}: {first['msg']}"
    except OSError as error:
        reason = str(error.strerror)
    except (ValueError, UserError) as error:
        reason = sentence(error)
    except RecursionError:
        reason = "it is nested too deeply"
    else:
        return content
    raise UserError(f"{path} is damaged ({reason.rstrip('.')[:300]}); {hint}")


def config_text(folder: Path) -> str:
    """The text of a folder's config.yaml; UserError unless it is UTF-8 without aliases, which could grow without bound."""
    path = folder / "config.yaml"
    try:
        text, depth = read_text(path), 0
        for event in yaml.parse(text, Loader=YAML_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
                raise UserError(f"{path} has aliases or is nested too deeply; it must be the one that the run wrote.")
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; keep what a run wrote together with its config.yaml.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as YAML; it must be the one that the run wrote.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); it must be the one that the run wrote.") from error
    return text


def checked_config(folder: Path) -> DictConfig:
    """A folder's config.yaml, unresolved; UserError unless it is a mapping."""
    try:
        saved = OmegaConf.create(config_text(folder))
    except (yaml.YAMLError, ValueError) as error:  # a tag, a date that is none
        raise UserError(
            f"{folder / 'config.yaml'} cannot be read as YAML; it must be the one that the run wrote."
        ) from error
    if not isinstance(saved, DictConfig):
        raise UserError(f"{folder / 'config.yaml'} is not a mapping; it must be the one that the run wrote.")
    return saved
