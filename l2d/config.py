"""From a composed config to objects. Nothing here needs torch."""

import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, NotRequired, Unpack, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from l2d.conf_files import config_dir as config_dir
from l2d.errors import UserError, sentence

# Keys that the framework reads itself; a target gets them only if it names them.
OWN_KEYS = {
    "name", "resample", "correlation", "answer_rate", "schedule", "warmup_epochs", "metrics", "annotators", "costs",
    "population", "distinct", "shift",
}  # fmt: skip
# Keys of a group that are the framework's alone, though a target may have a parameter of the same name.
FRAMEWORK_KEYS = {"rule": {"available", "absence", "loss_matrix"}}

_NOTHING = object()
NEUTRAL = {"loss": {"weight": 1}}  # a target that does not name a key is not given it at this value, which says nothing


def build(cfg: DictConfig, group: str, kind: type[Any] = object, /, **offered: Any) -> Any:
    """Call the `_target_` of a group with its keys, and with those of the `offered` values that it asks for by name;
    return what it makes, which must be of this kind."""
    function, arguments = bind(cfg, group, offered)
    try:
        made = function(**arguments)
    except (ValueError, OverflowError, MemoryError, RuntimeError) as error:
        # torch raises RuntimeError when out of memory
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        reason = " ".join(str(error).split()).rstrip(".") or "they need more memory than there is"
        raise UserError(f"{group} ({cfg[group]._target_}) does not work with its settings: {reason}.") from error
    if not isinstance(made, kind):
        raise UserError(
            f"{group}._target_={cfg[group]._target_} makes an object of type {type(made).__name__}; name what makes a {kind.__name__}."
        )
    return made


def bind(cfg: DictConfig, group: str, offered: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that `build` calls, and its arguments; UserError if it cannot be called with them."""
    from l2d.settings import shown, validate, yaml_hint

    settings = {key: value for key, value in plain(cfg[group]).items() if key not in FRAMEWORK_KEYS.get(group, ())}
    target = settings.pop("_target_", None)
    function = _import(group, target)
    parameters = parameters_of(f"{group}._target_={target}", function)
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    neutral = NEUTRAL.get(group, {})
    given = {k: v for k, v in settings.items() if k in named or not (k in OWN_KEYS or v == neutral.get(k, _NOTHING))}
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


def check(cfg: DictConfig) -> None:
    """UserError for values that cannot work, before anything is built."""
    from l2d.settings import Settings, validate

    try:
        values = {name: plain(cfg[name]) for name in Settings.model_fields if name in cfg}
    except InterpolationResolutionError as error:
        raise UserError(f"{error.full_key} cannot be resolved: {sentence(error).rstrip('.')}.") from error
    validate(Settings, values)


def plain(value: Any) -> Any:
    """The resolved value as dicts, lists and scalars."""
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


def locate(path: str) -> Callable[..., Any]:
    """The function or class at `package.module.name`, of an installed package or of the current folder."""
    if "" not in sys.path:
        sys.path.append("")  # the current folder, last: a user's file must not shadow a package
    module, _, name = path.rpartition(".")
    found = pkgutil.resolve_name(f"{module}:{name}")
    if not callable(found):
        raise TypeError("it is neither a function nor a class")
    if inspect.isabstract(found):
        raise TypeError("it is an abstract class; name one that is derived from it")
    return cast(Callable[..., Any], found)


def parameters_of(where: str, function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a signature, by name; the keys of `**settings: Unpack[SomeTypedDict]` are parameters of their own."""
    try:
        parameters = dict(inspect.signature(function, eval_str=True).parameters)
        for name, parameter in list(parameters.items()):
            if get_origin(parameter.annotation) is Unpack:
                del parameters[name]
                for key, hint in get_type_hints(get_args(parameter.annotation)[0], include_extras=True).items():
                    needed = get_origin(hint) is not NotRequired
                    kind, default = (hint, parameter.empty) if needed else (get_args(hint)[0], None)
                    parameters[key] = parameter.replace(
                        name=key, kind=parameter.KEYWORD_ONLY, annotation=kind, default=default
                    )
        return parameters
    except (NameError, AttributeError, TypeError):  # hints that only a type checker can resolve are not checked
        unchecked = inspect.signature(function).parameters
        return {name: p.replace(annotation=p.empty) for name, p in unchecked.items()}
    except ValueError as error:
        raise UserError(
            f"{where} has no signature, so its settings are unknown; name a function that calls it."
        ) from error


def _import(group: str, target: str | None) -> Callable[..., Any]:
    if not isinstance(target, str):
        raise UserError(
            f"{group} has no _target_: name the function or class that makes it, as in package.module.name."
        )
    try:
        return locate(target)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{group}._target_={target} cannot be imported: {reason}") from error
