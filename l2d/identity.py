"""Identity of a run: two settings or datasets never share a folder; the same setting, data and code have the same one.

Importing this does not import torch.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from l2d.atomic import read_bytes, read_text
from l2d.config import plain
from l2d.errors import UserError, notify
from l2d.source import code_digests

# Settings that do not change the training: left out of the fingerprint.
FREE_GROUPS = {
    "hydra", "logger", "output_dir", "verbose", "force", "plan", "resume", "evaluation", "rule", "record", "record_mb",
}  # fmt: skip
# Keys of `experts` that came later, at the values that change nothing: left out, so that older runs keep their fingerprint.
NEUTRAL_EXPERTS = {"population": None, "distinct": None, "shift": None, "wrap": False}
FREE_KEYS = {
    "experts": {"costs"},
    "trainer": {"device", "log_every", "checkpoint_minutes", "checkpoint_epochs", "rank_timeout_minutes"},
    "dataset": {"root", "path", "human", "workers", "cache", "follow_links", "download", "verify"},
}


def settings(cfg: DictConfig) -> dict[str, Any]:
    """Every setting that determines the training, as plain values; the data are not read."""
    groups = {str(group): plain(cfg[group]) for group in cfg if group not in FREE_GROUPS}
    if isinstance(groups.get("dataset"), dict) and isinstance(groups["dataset"].get("annotators"), str):
        groups["dataset"]["annotators"] = None  # a file, whose content is part of the data
    if isinstance(groups.get("experts"), dict):
        groups["experts"] = without_neutral(groups["experts"])
    kept = {g: _without(v, FREE_KEYS[g]) if g in FREE_KEYS and isinstance(v, dict) else v for g, v in groups.items()}
    return {group: _canonical(value) for group, value in kept.items()}


def without_neutral(experts: dict[str, Any]) -> dict[str, Any]:
    """The settings of experts without those that say nothing, which runs of older versions did not have."""
    return {k: v for k, v in experts.items() if k not in NEUTRAL_EXPERTS or v is not NEUTRAL_EXPERTS[k]}


def identity(cfg: DictConfig, data: str | None = None) -> dict[str, Any]:
    """The settings, digests of the data (computed unless given) and of the user's own code, the fingerprint of `init`."""
    whole = settings(cfg)
    if code := code_digests(whole):
        whole["code"] = code
    if data is None:
        from l2d.data.load import data_digest  # here, because names and labels alone need no data

        data = data_digest(cfg)
    if data:
        whole["data"] = data
    if cfg.get("init"):
        whole["init"] = _run_fingerprint(Path(cfg.init))
    return whole


def fingerprint(cfg: DictConfig) -> str:
    """Eight hex digits of the identity; for a plan (plan=true) where the data cannot be found, of the settings alone."""
    try:
        whole = identity(cfg)
    except UserError as error:
        if cfg.get("plan") is not True:
            raise
        _notify_once(f"The data were not found, so finished runs are not recognised: {error}")
        whole = settings(cfg)
    return eight_digits(whole)


def eight_digits(identity: dict[str, Any]) -> str:
    """The first eight hex digits of a digest."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


_notify_once = lru_cache(maxsize=32)(notify)  # a plan has many cells


def evaluated_with(cfg: DictConfig) -> dict[str, str]:
    """Identifies the settings that a finished run is reported with: `rule` with the experts' costs and who is there, and `evaluation`."""
    beside: dict[str, Any] = {}
    if cfg.experts.get("costs") is not None:
        beside["costs"] = plain(cfg.experts.costs)
    table = cfg.rule.get("available")
    if isinstance(table, str) and Path(table).is_file():
        beside["available"] = hashlib.sha256(read_bytes(Path(table))).hexdigest()
    digests = {}
    for group, more in (("rule", beside), ("evaluation", {})):
        chosen = _canonical({group: plain(cfg[group])})
        digests[group] = eight_digits(chosen | code_digests(chosen) | _canonical(more))
    return digests


def reported_otherwise(cfg: DictConfig, result: dict[str, Any]) -> bool:
    """Whether a finished run was decided by another rule, or lacks the evaluation that `cfg` asks for."""
    before, now = result.get("evaluated_with") or {}, evaluated_with(cfg)
    asks = bool(cfg.evaluation.get("_target_") or cfg.evaluation.get("metrics"))
    return now["rule"] != before.get("rule") or (asks and now["evaluation"] != before.get("evaluation"))


def choices(cfg: DictConfig | dict[str, Any]) -> dict[str, Any]:
    """The main choices of a config, or of one that was resolved to plain values, by the names that tables and figures use."""
    chosen = {
        "dataset": _label(cfg, "dataset"),
        "experts": _label(cfg, "experts"),
        "num_experts": cfg["experts"].get("num"),
        "backbone": _label(cfg, "backbone"),
        "loss": _label(cfg, "loss"),
        "formulation": cfg["loss"].get("formulation"),
        "base": cfg["loss"].get("base"),
        "system": _label(cfg, "system") if cfg.get("system") else "score",
        "optim": _label(cfg, "optim"),
        "seed": cfg["seed"],
    }
    return {key: plain(value) for key, value in chosen.items()}


def method_parts(chosen: dict[str, Any]) -> list[str]:
    """The names of the loss, where one is chosen, and of the system, where it is not the usual one.

    >>> method_parts({"loss": "ce", "system": "score"}), method_parts({"loss": "none", "system": "compare_confidence"})
    (['ce'], ['compare_confidence'])
    """
    loss, system = str(chosen.get("loss") or ""), str(chosen.get("system") or "score")
    return [*([] if loss == "none" else [loss]), *([] if system == "score" else [system])]


def run_name(cfg: DictConfig) -> str:
    """dataset/loss-experts-J-backbone-seed-fingerprint: readable, and never the same for two settings or two datasets."""
    chosen = choices(cfg)
    count = "all" if chosen["num_experts"] is None else chosen["num_experts"]
    method = reversed(method_parts(chosen))
    parts = [*method, chosen["experts"], f"J{count}", chosen["backbone"], f"seed{chosen['seed']}"]
    return f"{_safe(chosen['dataset'])}/{'-'.join(map(_safe, (*parts, fingerprint(cfg))))}"


def register_resolvers() -> None:
    """`${l2d.run_name:}` is the config's run name; `${l2d.num_annotators:2}` the number of annotators named, else 2;
    `${l2d.if_linear:A,B}` is A for a backbone without hidden layers, else B."""
    OmegaConf.register_new_resolver("l2d.run_name", lambda *, _root_: run_name(_root_), replace=True)
    OmegaConf.register_new_resolver("l2d.num_annotators", _num_annotators, replace=True)
    OmegaConf.register_new_resolver("l2d.if_linear", _if_linear, replace=True)


def _num_annotators(otherwise: int | None, *, _parent_: DictConfig) -> int | None:
    named = _parent_.get("annotators")
    if named is None:
        return otherwise
    return len(named) if OmegaConf.is_list(named) else 1


def _if_linear(linear: float, otherwise: float, *, _root_: DictConfig) -> float:
    return linear if _root_.backbone.get("layers") == 0 else otherwise


def _run_fingerprint(folder: Path) -> str:
    """The fingerprint of the finished run in a folder."""
    try:
        result = json.loads(read_text(folder / "result.json"))
        assert result["status"] == "finished"
        return str(result["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, AssertionError, RecursionError) as error:
        raise UserError(
            f"init={folder} is not the folder of a finished run; give one that holds a result.json."
        ) from error


def _without(group: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in keys}


def _canonical(value: Any) -> Any:
    """The value with whole floats as integers: 1.0 and 1 are the same setting."""
    if isinstance(value, dict):
        return {str(k): _canonical(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _label(cfg: DictConfig | dict[str, Any], group: str) -> str:
    return str(cfg[group].get("name") or str(cfg[group].get("_target_")).rpartition(".")[2])


def _safe(part: Any) -> str:
    """The part without unsafe characters and of at most 36 bytes: up to seven parts fit into a name of 255."""
    letters = "".join(c if c.isalnum() or c in "-_.=" else "_" for c in str(part)).lstrip(".")
    return letters.encode()[:36].decode(errors="ignore") or "_"
