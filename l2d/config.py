"""From a composed config to objects, and to the name that a run's folder carries. Nothing here needs torch."""

import hashlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from l2d.errors import UserError, sentence

# Keys that the framework reads itself; a target gets them only if it names them.
OWN_KEYS = {"name", "resample", "schedule", "warmup_epochs", "holdout"}
# What may differ between two runs without their results differing: left out of the fingerprint.
FREE_GROUPS = {"hydra", "logger", "output_dir", "verbose", "force", "plan", "resume"}
FREE_KEYS = {
    "trainer": {"device", "log_every", "checkpoint_minutes", "checkpoint_epochs"},
    "dataset": {"root", "workers", "cache", "download", "verify"},
}


def config_dir() -> str:
    """Where the YAML lives: inside the package when installed from a wheel, beside it in a checkout."""
    packaged = Path(__file__).parent / "conf"
    return str(packaged if packaged.is_dir() else Path(__file__).parents[1] / "conf")


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
    from l2d.settings import shown, validate, yaml_hint

    settings = plain(cfg[group])
    target = settings.pop("_target_", None)
    function = _import(group, target)
    parameters = _parameters(f"{group}._target_={target}", function)
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given = {k: v for k, v in settings.items() if k in named or k not in OWN_KEYS}
    unknown = set() if takes_any else set(given) - named
    if unknown:
        raise UserError(
            f"{group} ({target}) has no setting {', '.join(sorted(unknown))}; "
            f"it takes {', '.join(sorted(named - set(offered)))}."
        )
    for key, value in given.items():
        hint = parameters[key].annotation if key in named else Any
        kind = yaml_hint(hint)
        if kind is Any and hint not in (Any, inspect.Parameter.empty) and key in offered:
            raise UserError(f"{group}.{key}={shown(value)} cannot be set, because the run provides it; leave it out.")
        validate(kind, value, f"{group}.{key}")
    arguments = {**{k: v for k, v in offered.items() if k in named}, **given}
    missing = {n for n in named if parameters[n].default is inspect.Parameter.empty} - set(arguments)
    if missing:
        raise UserError(f"{group} ({target}) needs {', '.join(f'{group}.{m}' for m in sorted(missing))}.")
    return function, arguments


def identity(cfg: DictConfig) -> dict[str, Any]:
    """Everything that determines the result, as plain values."""
    groups = {str(group): plain(cfg[group]) for group in cfg if group not in FREE_GROUPS}
    return _canonical({g: _without(v, FREE_KEYS[g]) if g in FREE_KEYS else v for g, v in groups.items()})


def fingerprint(cfg: DictConfig) -> str:
    """Eight hex digits of the identity."""
    return hashlib.sha256(json.dumps(identity(cfg), sort_keys=True).encode()).hexdigest()[:8]


def choices(cfg: DictConfig) -> dict[str, Any]:
    """What was chosen, in the words that tables and figures use."""
    chosen = {
        "dataset": _label(cfg, "dataset"),
        "experts": _label(cfg, "experts"),
        "num_experts": _num_experts(cfg),
        "backbone": _label(cfg, "backbone"),
        "loss": _label(cfg, "loss"),
        "formulation": cfg.loss.get("formulation"),
        "base": cfg.loss.get("base"),
        "optim": _label(cfg, "optim"),
        "seed": cfg.seed,
    }
    return {key: plain(value) for key, value in chosen.items()}


def run_name(cfg: DictConfig) -> str:
    """dataset/loss-experts-J-backbone-seed-fingerprint: readable, and never the same for two settings."""
    chosen = choices(cfg)
    parts = (
        chosen["loss"],
        chosen["experts"],
        f"J{chosen['num_experts']}",
        chosen["backbone"],
        f"seed{chosen['seed']}",
    )
    return f"{_safe(chosen['dataset'])}/{'-'.join(map(_safe, (*parts, fingerprint(cfg))))}"


def check(cfg: DictConfig) -> None:
    """Refuse values that cannot work, before anything is built."""
    from l2d.settings import Settings, validate

    try:
        values = {name: plain(cfg[name]) for name in Settings.model_fields if name in cfg}
    except InterpolationResolutionError as error:
        raise UserError(f"{error.full_key} cannot be resolved: {sentence(error).rstrip('.')}.") from error
    validate(Settings, values)


def register_resolvers() -> None:
    """`${l2d.run_name:}` in a config is that config's run name."""
    OmegaConf.register_new_resolver("l2d.run_name", lambda *, _root_: run_name(_root_), replace=True)


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


def _without(settings: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in keys}


def _canonical(value: Any) -> Any:
    """1.0 and 1 are the same setting."""
    if isinstance(value, dict):
        return {str(k): _canonical(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _num_experts(cfg: DictConfig) -> int | None:
    num = cfg.experts.get("num")
    return len(cfg.experts.annotators) if num is None and cfg.experts.get("annotators") else num


def _label(cfg: DictConfig, group: str) -> str:
    return str(cfg[group].get("name") or str(cfg[group].get("_target_")).rpartition(".")[2])


def _safe(part: Any) -> str:
    """Fit to be part of a name of at most 255 bytes, of which there are six; a letter may take four."""
    letters = "".join(c if c.isalnum() or c in "-_.=" else "_" for c in str(part)).lstrip(".")
    return letters.encode()[:48].decode(errors="ignore") or "_"


def locate(path: str) -> Callable:
    """The function or class at `package.module.name`."""
    module, _, name = path.rpartition(".")
    found = pkgutil.resolve_name(f"{module}:{name}")
    if not callable(found):
        raise TypeError("it is neither a function nor a class")
    return found


def _parameters(where: str, function: Callable) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function, eval_str=True).parameters
    except (NameError, AttributeError, TypeError):  # hints for the type checker alone: they are not judged
        parameters = inspect.signature(function).parameters
        return {name: p.replace(annotation=p.empty) for name, p in parameters.items()}
    except ValueError as error:
        raise UserError(f"{where} does not say which settings it takes; name a function that calls it.") from error


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
