"""From a composed config to objects. Nothing here needs torch."""

import inspect
import math
import pkgutil
import sys
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from l2d.conf_files import config_dir as config_dir
from l2d.errors import UserError

# Keys that the framework reads itself; a target gets them only if it names them.
OWN_KEYS = {"name", "resample", "schedule", "warmup_epochs", "metrics"}
NULLABLE = {"trainer.clip_grad", "trainer.checkpoint_minutes", "experts.num", "optim.weight_decay"}  # null: none of it


def build(cfg: DictConfig, group: str, **offered: Any) -> Any:
    """Call the `_target_` of a group with its keys, and with those of the `offered` values that it asks for by name."""
    function, arguments = bind(cfg, group, offered)
    try:
        return function(**arguments)
    except (ValueError, OverflowError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):  # torch's way to say that memory is out
            raise
        reason = " ".join(str(error).split()).rstrip(".") or "they need more memory than there is"
        raise UserError(f"{group} ({cfg[group]._target_}) does not work with its settings: {reason}.") from error


def bind(cfg: DictConfig, group: str, offered: dict[str, Any]) -> tuple[Callable, dict[str, Any]]:
    """What `build` calls, and with which arguments; refuses what cannot be called with them."""
    settings = plain(cfg[group])
    target = settings.pop("_target_", None)
    function = _import(group, target)
    parameters = _parameters(function)
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given = {k: v for k, v in settings.items() if k in named or k not in OWN_KEYS}
    unknown = set() if takes_any else set(given) - named
    if unknown:
        raise UserError(
            f"{group} ({target}) has no setting {', '.join(sorted(unknown))}; "
            f"it takes {', '.join(sorted(named - set(offered)))}."
        )
    for key in given.keys() & named:
        if not _fits(given[key], parameters[key].annotation):
            raise UserError(f"{group}.{key}={given[key]} must be {_kind(parameters[key].annotation)}.")
    arguments = {**{k: v for k, v in offered.items() if k in named}, **given}
    missing = {n for n in named if parameters[n].default is inspect.Parameter.empty} - set(arguments)
    if missing:
        raise UserError(f"{group} ({target}) needs {', '.join(f'{group}.{m}' for m in sorted(missing))}.")
    return function, arguments


def _parameters(function: Callable) -> dict[str, inspect.Parameter]:
    """Of its signature, by name; the keys of `**settings: Unpack[TypedDict]` count as parameters of their own."""
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    for name, parameter in list(parameters.items()):
        if parameter.kind is parameter.VAR_KEYWORD and get_origin(parameter.annotation) is Unpack:
            del parameters[name]
            for key, hint in get_type_hints(get_args(parameter.annotation)[0]).items():
                parameters[key] = inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=hint)
    return parameters


def check(cfg: DictConfig) -> None:
    """Refuse values that cannot work, before anything is built."""
    for key, kind, low, high in (
        ("seed", int, 0, 2**63 - 1),
        ("trainer.epochs", int, 1, None),
        ("trainer.batch_size", int, 1, None),
        ("trainer.eval_every", int, 0, None),
        ("trainer.log_every", int, 1, None),
        ("trainer.clip_grad", float, 0, None),
        ("trainer.checkpoint_minutes", float, 0, None),
        ("trainer.checkpoint_epochs", int, 0, None),
        ("trainer.skip_nonfinite", int, 0, None),
        ("trainer.sync_batchnorm", bool, None, None),
        ("trainer.channels_last", bool, None, None),
        ("trainer.compile", bool, None, None),
        ("trainer.deterministic", bool, None, None),
        ("verbose", bool, None, None),
        ("force", bool, None, None),
        ("plan", bool, None, None),
        ("trainer.device", str, None, None),
        ("trainer.precision", str, None, None),
        ("experts.num", int, 1, None),
        ("experts.resample", str, None, None),
        ("optim.schedule", str, None, None),
        ("resume", str, None, None),
        ("output_dir", str, None, None),
        ("optim.lr", float, 0, 1e30),  # beyond, torch's float32 overflows
        ("optim.weight_decay", float, 0, 1e30),
        ("optim.warmup_epochs", float, 0, None),
        ("held_out", float, 0, 0.9),
        ("record", str, None, None),
        ("record_mb", float, 0, None),
        ("evaluation.bins", int, 1, None),
        ("evaluation.curve_points", int, 2, None),
        ("evaluation.labels_shown", int, 1, None),
    ):
        group, _, name = key.rpartition(".")
        if group == "trainer" and OmegaConf.is_dict(cfg.get(group)) and name not in cfg[group]:
            raise UserError(
                f"{key} was taken out and is needed; leave it in{', or set it to null' if key in NULLABLE else ''}."
            )
        value = OmegaConf.select(cfg, key)
        if value is None and (key in NULLABLE or (key.startswith("evaluation.") and not cfg.evaluation._target_)):
            continue
        if not _fits(value, kind) or (low is not None and not low <= value <= (math.inf if high is None else high)):
            raise UserError(f"{key}={value} must be {_kind(kind) if low is None else _range(kind, low, high)}.")


_KINDS = {
    int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", NoneType: "null",
    list: "a list", tuple: "a list", Sequence: "a list", dict: "a mapping",
}  # fmt: skip


def _kind(annotation: Any) -> str:
    """A type hint in words."""
    parts = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(
            map(_kind, [part for part in parts if (get_origin(part) or part) in _KINDS] or parts)
        )  # YAML has no tensors
    if get_origin(annotation) is tuple and Ellipsis not in parts:
        return f"a list of {len(parts)} ({', '.join(map(_kind, parts))})"
    if get_origin(annotation) in (list, tuple, Sequence):
        return f"a list ({_kind(parts[0])} each)"
    return _KINDS.get(get_origin(annotation) or annotation, str(annotation))


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value from YAML is what the target's type hint asks for; hints of other kinds are not judged."""
    if annotation in (int, float):
        kinds = (int, float) if annotation is float else int
        if not isinstance(value, kinds) or isinstance(value, bool):
            return False
        return -(2**63) <= value < 2**63 if isinstance(value, int) else math.isfinite(value)
    if annotation in (bool, str, None, NoneType):
        return isinstance(value, annotation or NoneType)
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _fits(value, parts[0])
    if get_origin(annotation) is Literal:
        return value in parts
    if get_origin(annotation) in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if get_origin(annotation) is tuple and Ellipsis not in parts:
        return isinstance(value, list) and len(value) == len(parts) and all(map(_fits, value, parts))
    if get_origin(annotation) in (list, tuple, Sequence):
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    return annotation is inspect.Parameter.empty or not isinstance(value, str | int | float | bool | NoneType | list)


def _range(kind: type, low: float | None, high: float | None) -> str:
    return f"a{' whole' if kind is int else ''} number of at least {low}" + (f" and at most {high}" if high else "")


def plain(value: Any) -> Any:
    """Resolved, as dicts, lists and scalars."""
    try:
        return (
            OmegaConf.to_container(value, resolve=True, throw_on_missing=True) if OmegaConf.is_config(value) else value
        )
    except MissingMandatoryValue as error:
        raise UserError(
            f"{str(error).split(': ')[-1].splitlines()[0]} has no value yet; give it one on the command line."
        ) from error


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A mapping of mappings as one mapping with dotted keys.

    >>> flatten({"optim": {"lr": 0.1}, "seed": 0})
    {'optim.lr': 0.1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def locate(path: str) -> Callable:
    """The function or class at `package.module.name`, of an installed package or of the current folder."""
    if "" not in sys.path:
        sys.path.append("")  # the current folder, last: a user's file must not hide a package
    module, _, name = path.rpartition(".")
    found = pkgutil.resolve_name(f"{module}:{name}")
    if not callable(found):
        raise TypeError("it is neither a function nor a class")
    return found


def _import(group: str, target: str | None) -> Callable:
    if not isinstance(target, str):
        raise UserError(
            f"{group} has no _target_: name the function or class that makes it, as in package.module.name."
        )
    try:
        return locate(target)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{group}._target_={target} cannot be imported: {reason}") from error
