"""What a setting may be: the framework's own keys as a pydantic model, and a target's keys by its type hints.

Imported only where something is validated: pydantic would double the time of `l2d --help`.
"""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Interval
from pydantic import BaseModel, ConfigDict, Strict, TypeAdapter, ValidationError

from l2d.errors import UserError

STRICT = ConfigDict(strict=True, allow_inf_nan=False)

AtLeast0 = Annotated[int, Ge(0)]
AtLeast1 = Annotated[int, Ge(1)]
NonNegative = Annotated[float, Ge(0)]
Step = Annotated[float, Interval(ge=0, le=1e30)]  # beyond, torch's float32 overflows


class Group(BaseModel):
    """Some keys of a config group; the others are its target's."""

    model_config = STRICT


class Trainer(Group):
    epochs: AtLeast1
    batch_size: AtLeast1
    device: str
    precision: str
    channels_last: bool
    compile: bool | Literal["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    deterministic: bool
    clip_grad: NonNegative | None
    eval_every: AtLeast0
    log_every: AtLeast1
    checkpoint_minutes: NonNegative | None
    checkpoint_epochs: AtLeast0
    skip_nonfinite: AtLeast0
    sync_batchnorm: bool
    rank_timeout_minutes: Annotated[float, Interval(gt=0, le=1e6)]


class Experts(Group):
    num: AtLeast1 | None = None
    resample: Literal["once", "per_epoch"]
    correlation: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    answer_rate: Annotated[float, Interval(gt=0, le=1)] = 1.0
    distinct: AtLeast1 | None = None
    shift: dict[str, Annotated[float, Interval(ge=0, le=1)]] | None = None
    costs: NonNegative | list[NonNegative] | None = None
    population: AtLeast1 | None = None


class Optim(Group):
    lr: Step
    weight_decay: Step | None = None
    schedule: Literal["cosine", "constant"]
    warmup_epochs: NonNegative


class Evaluation(Group):
    metrics: list[str]


class Settings(Group):
    """All keys that the framework reads itself."""

    seed: AtLeast0
    output_dir: str
    verbose: bool
    force: bool
    resume: str
    plan: bool
    held_out: Annotated[float, Interval(ge=0, le=0.9)]
    init: str | None
    freeze: list[str]
    record: Literal["scores", "decisions", "none"]
    record_mb: NonNegative
    trainer: Trainer
    experts: Experts
    optim: Optim
    evaluation: Evaluation


def validate(kind: Any, value: Any, key: str = "") -> None:
    """UserError for a value from YAML that is not of this kind, a model or the result of `yaml_hint`; `key` is its full name."""
    refuse_beyond_64_bits(value, key)
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    adapter = TypeAdapter(kind, config=None if is_model else STRICT)
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        raise UserError(_sentence(error.errors()[0], adapter.json_schema(), value, key)) from error


def yaml_hint(hint: Any) -> Any:
    """The part of a type hint that YAML can express, for pydantic; Any if there is none (Tensor, Callable, no hint)."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        kind = yaml_hint(parts[0])
        return kind if kind is Any else Annotated[kind, *hint.__metadata__]
    if origin in (Union, UnionType):
        known = [kind for kind in map(yaml_hint, parts) if kind is not Any]
        useful = any(kind is not NoneType for kind in known) and Any not in parts
        return Union[tuple(known)] if useful else Any  # noqa: UP007
    if origin is tuple and parts and Ellipsis not in parts:
        kind = GenericAlias(tuple, tuple(map(yaml_hint, parts)))
        return Annotated[kind, Strict(False)]  # accepts a list, whose items stay strict
    if origin in (list, tuple, Sequence):
        return GenericAlias(list, (yaml_hint(parts[0]) if parts else Any,))
    if origin in (dict, Mapping):
        return GenericAlias(dict, tuple(map(yaml_hint, parts or (Any, Any))))
    if origin in (Path, PathLike):
        return str
    return hint if origin in (int, float, bool, str, None, NoneType, Literal) else Any


def refuse_beyond_64_bits(value: Any, key: str) -> None:
    if isinstance(value, dict):
        for name, entry in value.items():
            refuse_beyond_64_bits(entry, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for entry in value:
            refuse_beyond_64_bits(entry, key)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{key}={value} must fit into 64 bits; the largest number is {2**63 - 1}.")


def shown(value: Any) -> str:
    """A value as YAML writes it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def words(schema: dict[str, Any]) -> str:
    """A JSON schema in English.

    >>> words(TypeAdapter(Annotated[int, Ge(1)] | None).json_schema())
    'a whole number of at least 1 or null'
    """
    if "anyOf" in schema:
        return " or ".join(map(words, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        *first, last = map(shown, schema.get("enum") or [schema["const"]])
        return f"{', '.join(first)} or {last}" if first else last
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "array":
        items = [words(item) for item in schema.get("prefixItems") or [schema["items"]]]
        each = f"{items[0]} each" if len(set(items)) == 1 else ", ".join(items)
        return f"a list of {len(items)} ({each})" if "prefixItems" in schema else f"a list ({each})"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"a mapping ({words(schema['additionalProperties'])} under each name)"
    names = {"string": "a string", "boolean": "true or false", "null": "null", "object": "a mapping"}
    return names.get(kind or "", "any value")


def _number(schema: dict[str, Any]) -> str:
    whole, low, high = schema["type"] == "integer", schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"a {'whole ' if whole else ''}number from {low} to {high}"
    name = "a whole number" if whole else "a finite number"
    limits = {
        "minimum": "of at least",
        "maximum": "of at most",
        "exclusiveMinimum": "above",
        "exclusiveMaximum": "below",
    }
    phrases = [f"{phrase} {schema[limit]}" for limit, phrase in limits.items() if limit in schema]
    return f"{name} {' and '.join(phrases)}".rstrip()


def _sentence(error: Any, schema: dict[str, Any], value: Any, key: str) -> str:
    """What pydantic found, as `key=value must be ...`, with the key of the entry if it is inside a mapping."""
    models, missing, parts = schema.get("$defs", {}), error["type"] == "missing", error["loc"]
    if "[key]" in parts:  # a name of the wrong kind: show the mapping that it stands in
        parts = parts[: parts.index("[key]") - 1]
    for part in parts:
        inner = _entry(schema, part)
        if inner is None or not isinstance(value, dict) or (part not in value and not missing):
            break  # inside a list or a union: show the whole value
        schema, value = models.get(inner.get("$ref", "").rpartition("/")[2], inner), value.get(part)
        key = f"{key}.{part}".lstrip(".")
    else:
        if missing:
            return f"{key} is required, and was removed with `~` or never set; set it to {words(schema)}."
    return f"{key}={shown(value)} must be {words(schema)}."


def _entry(schema: dict[str, Any], key: Any) -> dict[str, Any] | None:
    """The schema of what stands under `key` in a mapping."""
    for option in schema.get("anyOf", [schema]):
        entry = option.get("properties", {}).get(key, option.get("additionalProperties"))
        if isinstance(entry, dict):
            return entry
    return None
