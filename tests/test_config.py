"""Configs: every file composes and builds, wrong choices are refused in a sentence, runs are named by what matters."""

import datetime
import json
import re
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from annotated_types import Ge, Interval
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from torch import Tensor

from l2d.config import bind, build, check, config_dir
from l2d.errors import UserError
from l2d.experts import Drawing, make_panel
from l2d.identity import choices, fingerprint, run_name, settings
from l2d.settings import Settings, Trainer, validate, yaml_hint

GROUPS = sorted(p.name for p in Path(config_dir()).iterdir() if p.is_dir() and p.name != "__pycache__")


def options(group: str) -> list[str]:
    return sorted(p.stem for p in Path(config_dir(), group).glob("*.yaml"))


OPTIONS = [(group, option) for group in GROUPS for option in options(group)]

# What the datasets that live in files are like: number of classes, size of their class group, annotators.
IN_FILES = {
    "cifar10": (10, {"animal": 6}, 0),
    "cifar10n": (10, {"animal": 6}, 5),
    "cifar10h": (10, {"animal": 6}, 3),
    "cifar100": (100, {"animal": 50}, 0),
    "cifar100n": (100, {"animal": 50}, 1),
    "imagenet": (1000, {"dog": 120}, 0),
    "micebone": (3, {}, 8),
    "chaoyang": (4, {}, 3),
}
NEEDS = {
    "animal": "animal",
    "dog": "dog",
    "specialist": "specialty",
    "generalist": "specialty",
    "graded": "specialty",
}  # experts, up to the first _ -> class group
FREE = {  # choices that leave a result as it is
    "trainer.device": "cpu",
    "trainer.log_every": 7,
    "experts.costs": 0.1,
    "logger": {"_target_": "l2d.tracking.trackers.WandbTracker", "name": "wandb"},
    "output_dir": "elsewhere",
    "verbose": False,
    "force": "changed",
    "plan": "changed",
    "resume": "never",
    "record": "none",
    "record_mb": 1,
    "rule": {"_target_": "my.rule", "name": "mine"},
    "evaluation": {"_target_": "my.evaluation", "bins": 20},
    "trainer.checkpoint_minutes": 1,
    "trainer.checkpoint_epochs": 3,
    "trainer.rank_timeout_minutes": 5,
}


def overridden(cfg, key, value):
    changed = cfg.copy()
    with open_dict(changed):
        OmegaConf.update(changed, key, value, merge=False)
    return changed


@pytest.fixture
def filled(composed):
    """composed(...), with a value for whatever the files leave to the user."""

    def make(*overrides: str):
        cfg = composed(*overrides)
        for key in OmegaConf.missing_keys(cfg):
            OmegaConf.update(cfg, key, "resnet10t" if key == "backbone.name" else "somewhere")
        return cfg

    return make


@pytest.fixture
def dataset_of(composed, tiny_dataset):
    """The dataset of an option: built if it is embedded, else a tiny one with the same classes, groups and annotators."""

    def make(option: str):
        cfg = composed(f"dataset={option}")
        if cfg.dataset["_target_"] == "l2d.data.synthetic":
            return build(overridden(cfg, "dataset.num_test", 50), "dataset")
        stem = option.partition("_")[0]
        num_classes, groups, annotators = IN_FILES.get(option, IN_FILES.get(stem, (10, {}, 0)))
        return tiny_dataset(num_classes, {g: list(range(size)) for g, size in groups.items()}, annotators)

    return make


def test_every_formulation_and_base_is_a_loss_option():
    losses = {f"{formulation}{base}" for formulation in ("", "picce_", "pice_") for base in ("ce", "ova")}
    assert losses <= set(options("loss"))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_checks_and_names_its_runs(filled, group, option):
    cfg = filled(f"{group}={option}", "plan=true")  # a plan names runs whose data are not there
    check(cfg)
    assert re.fullmatch(r"[\w.=-]+/[\w.=-]+-[0-9a-f]{8}", run_name(cfg))
    chosen = choices(cfg)
    if group in chosen and group != "backbone":
        label = {"sgd_cosine": "sgd", "sgd_embedded": "sgd"}.get(option, option)
        assert chosen[group] == label


GCE = (1 - 0.25**0.7) / 0.7  # phi of a column with probability 1/4
# At scores 0 with K=2, J=2 and both experts right: every softmax is 1/4, every sigmoid 1/2.
AT_ZERO = {
    "ce": 3 * log(4), "picce_ce": 2 * log(4), "pice_ce": 2 * log(4), "css": 3 * log(4), "liu": 3 * log(4),
    "ova": 4 * log(2), "picce_ova": 4 * log(2), "pice_ova": 4 * log(2),  # whatever is taught
    "balanced_ce": log(3) + log(6),  # exp(z) = 1, 1, 1/2, 1/2
    "balanced_ova": 2 * log(2) + log(2),
    "soft_picce_ce": log(4) + log(2),  # experts are right with 1/2 of the mass
    "soft_picce_ova": 4 * log(2) - log(2),
    "decoupled": 2 * log(2), "asm": 2 * log(2),  # one class is left for z = 0
    "gce": 3 * GCE, "picce_gce": 2 * GCE, "mae": 3 * 0.75,
    "rs": log(4 / 3), "moe": log(4 / 3), "rs_gce": (1 - 0.75**0.7) / 0.7,
}  # fmt: skip


@pytest.mark.parametrize("option", sorted(set(options("loss")) - {"none"}))
def test_every_loss_option_has_the_value_of_its_name(composed, option):
    loss = build(composed(f"loss={option}"), "loss", num_classes=2)
    value = loss(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([[0, 0]])).item()
    assert value == pytest.approx(AT_ZERO[option], rel=1e-6)


@pytest.mark.parametrize("option", options("backbone"))
def test_every_backbone_has_k_plus_j_outputs(filled, option):
    cfg = filled(f"backbone={option}")
    with torch.device("meta"):
        model = build(cfg, "backbone", num_outputs=13, image_shape=(3, 32, 32))
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 13)


def test_backbone_timm_needs_a_name(composed):
    with pytest.raises(UserError, match=r"backbone\.name"):
        build(composed("backbone=timm"), "backbone", num_outputs=13, image_shape=(3, 32, 32))


@pytest.mark.parametrize("option", options("optim"))
def test_every_optimiser_takes_its_recipe_the_papers_but_for_the_embedded_data(composed, option):
    cfg = composed(f"optim={option}")
    optimizer = build(cfg, "optim", params=torch.nn.Linear(2, 2).parameters(), fused=False)
    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    recipes = {
        "sgd_cosine": (sgd, 0.1, 5e-4, 0.9),
        "adamw": (adamw, 3e-4, 5e-4, None),
        "sgd_embedded": (sgd, 0.1, 5e-3, 0.9),
    }
    kind, lr, decay, momentum = recipes[option]
    settings = optimizer.param_groups[0]
    assert isinstance(optimizer, kind)
    assert (settings["lr"], settings["weight_decay"], settings.get("momentum")) == (lr, decay, momentum)
    assert not settings.get("nesterov")
    assert (cfg.optim.schedule, cfg.optim.warmup_epochs) == ("cosine", 0)


@pytest.mark.parametrize("option", sorted(set(options("logger")) - {"mlflow"}))  # which asks its server: test_mlflow.py
def test_every_logger_builds(composed, option):
    tracker = build(composed(f"logger={option}"), "logger")
    assert all(callable(getattr(tracker, method)) for method in ("start", "log", "finish"))


@pytest.mark.parametrize("option", options("dataset"))
def test_every_dataset_builds_or_says_which_files_it_misses(composed, tmp_path, option):
    cfg = composed(f"dataset={option}")
    if cfg.dataset["_target_"] == "l2d.data.synthetic":
        dataset = build(cfg, "dataset")
        assert len(dataset.train) == cfg.dataset.num_train
        return
    for key, value in (("root", str(tmp_path)), ("path", str(tmp_path)), ("download", False)):
        if key in cfg.dataset.keys():  # noqa: SIM118  a key without a value yet counts
            cfg.dataset[key] = value
    with pytest.raises(UserError) as refused:
        build(cfg, "dataset")
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "has no setting" not in str(refused.value)


@pytest.mark.parametrize("experts", options("experts"))
@pytest.mark.parametrize("dataset", options("dataset"))
def test_every_pair_of_dataset_and_experts_works_or_is_refused(composed, dataset_of, dataset, experts):
    data, cfg = dataset_of(dataset), composed(f"dataset={dataset}", f"experts={experts}")
    offered = {"dataset": data, "num_classes": data.num_classes, "groups": data.groups, "seed": 0}
    group = NEEDS.get(experts.partition("_")[0])
    fits = group in data.groups if group else bool(data.annotators)  # the others are people
    if fits and "overlap" in cfg.experts and cfg.experts.overlap + cfg.experts.num > len(data.groups[group]):
        with pytest.raises(UserError, match=r"experts\.overlap"):  # CIFAR-10 has six animals
            build(cfg, "experts", **offered)
    elif fits:
        panel = make_panel(build(cfg, "experts", **offered), data, Drawing())
        table = panel.answers("train", data.train.labels)
        assert panel.num == cfg.experts.num
        assert table.shape == (len(data.train), cfg.experts.num)
        assert table.min() >= 0
        assert table.max() < data.num_classes
    else:
        with pytest.raises(UserError) as refused:
            build(cfg, "experts", **offered)
        assert re.search(r"\b(choose|use)\b.*experts=", str(refused.value))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("wrong", "named"), [("trainer.epoch=3", "epoch"), ("loss=nosuch", "loss/nosuch")])
def test_unknown_keys_and_options_do_not_compose(composed, wrong, named):
    with pytest.raises(HydraException, match=named):
        composed(wrong)


# build


def unhinted(num, rate=0.5, *, offered=None):
    return {"num": num, "rate": rate, "offered": offered}


def hinted(
    text: str = "",
    flag: bool = False,
    count: Annotated[int, Ge(1)] = 1,
    rate: float = 0.5,
    optional: int | None = None,
    choice: Literal["once", "per_epoch"] = "once",
    pair: tuple[float, float] = (0, 1),
    several: Sequence[int] = (),
    either: float | Sequence[float] = 0,
    groups: dict[str, list[int]] | None = None,
    text_or_mapping: str | dict[str, int] = "",
    rate_or_tensor: float | Tensor = 0,
    tensor: Tensor | None = None,
    function: Callable | None = None,
    path: Path | None = None,
    anything: Any = None,
):
    return locals()


@pytest.fixture
def target():
    """A config whose group `part` has this file's `unhinted` as its target, with the given keys."""

    def make(**keys):
        return OmegaConf.create({"part": {"_target_": f"{__name__}.unhinted", **keys}})

    return make


def test_build_passes_the_keys_and_only_what_is_asked_for(target):
    assert build(target(num=2), "part", offered="x", dataset="y") == {"num": 2, "rate": 0.5, "offered": "x"}
    assert build(target(num=2, rate=1, name="label", schedule="cosine"), "part") == {
        "num": 2,
        "rate": 1,
        "offered": None,
    }


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"num": 2, "ratio": 1}, r"part .*has no setting ratio; it takes num, rate"),
        ({"rate": 1}, r"part .*needs part\.num"),
        ({"num": "???"}, r"part\.num has no value yet"),
        ({"_target_": "no_such_package.f"}, r"part\._target_=no_such_package\.f cannot be imported"),
        ({"_target_": "l2d.losses.nosuch"}, r"part\._target_=l2d\.losses\.nosuch cannot be imported"),
        ({"_target_": "l2d.losses.BASES"}, r"part\._target_=l2d\.losses\.BASES"),  # a dictionary, not a function
        ({"_target_": None}, "part has no _target_"),
        ({"_target_": "builtins.dict"}, r"part\._target_=builtins\.dict"),  # has no signature
    ],
)
def test_targets_that_cannot_be_called_are_rejected(target, keys, sentence):
    with pytest.raises(UserError, match=sentence):
        build(target(**keys), "part", offered=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text", "a"),
        ("flag", True),
        ("count", 1),
        ("count", 2**63 - 1),
        ("rate", 1),
        ("rate", 1e300),
        ("optional", None),
        ("choice", "per_epoch"),
        ("pair", [1, 2.5]),
        ("several", []),
        ("several", [1, 2]),
        ("either", 1),
        ("either", [1, 2.5]),
        ("groups", {"a": [1, 2]}),
        ("rate_or_tensor", 1),
        ("tensor", [1, 2]),  # YAML has no tensors: for the target to judge
        ("function", "math.sqrt"),
        ("path", "a/b"),
        ("anything", {"a": [None]}),
    ],
)
def test_values_that_fit_the_type_hint_reach_the_target_unchanged(key, value):
    cfg = OmegaConf.create({"part": {"_target_": f"{__name__}.hinted", key: value}})
    received = build(cfg, "part")[key]
    assert received == value
    assert type(received) is type(value)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("text", 1, "text=1"),
        ("flag", 1, "flag=1"),
        ("flag", "true", "flag=true"),
        ("count", 0, "count=0"),
        ("count", "1", "count=1"),
        ("count", 1.0, "count=1.0"),
        ("count", True, "count=true"),
        ("count", None, "count=null"),
        ("count", 2**63, "count=9223372036854775808"),
        ("rate", float("nan"), "rate=nan"),
        ("rate", float("-inf"), "rate=-inf"),
        ("rate", True, "rate=true"),
        ("rate", 10**40, f"rate={10**40}"),
        ("optional", 1.5, "optional=1.5"),
        ("choice", "twice", "choice=twice"),
        ("pair", [1], "pair=[1]"),
        ("pair", [1, "a"], "pair=[1, 'a']"),
        ("pair", 1, "pair=1"),
        ("several", "12", "several=12"),
        ("several", [1, None], "several=[1, None]"),
        ("either", ["a"], "either=['a']"),
        ("groups", ["a"], "groups=['a']"),
        ("groups", {"a": 1}, "groups.a=1"),
        ("groups", {1: [1]}, "groups={1: [1]}"),
        ("text_or_mapping", {"a": "b"}, "text_or_mapping={'a': 'b'}"),
        ("rate_or_tensor", "fast", "rate_or_tensor=fast"),
        ("path", 3, "path=3"),
        ("anything", [2**63], "anything=9223372036854775808"),
    ],
)
def test_values_that_do_not_fit_the_type_hint_are_rejected_by_key_and_value(key, value, named):
    cfg = OmegaConf.create({"part": {"_target_": f"{__name__}.hinted", key: value}})
    with pytest.raises(UserError, match=rf"^{re.escape(f'part.{named}')} must [^\n]*\.$"):
        build(cfg, "part")


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (int, "a whole number"),
        (float, "a finite number"),
        (Annotated[int, Ge(1)] | None, "a whole number of at least 1 or null"),
        (Annotated[float, Interval(ge=0, le=0.9)], "a number from 0 to 0.9"),
        (Annotated[float, Interval(gt=0, lt=1)], "a finite number above 0 and below 1"),
        (Literal["a", "b", "c"], "a, b or c"),
        (tuple[float, float], "a list of 2 (a finite number each)"),
        (tuple[str, bool], "a list of 2 (a string, true or false)"),
        (list, "a list (any value each)"),
        (float | list[str], "a finite number or a list (a string each)"),
        (dict[str, list[int]], "a mapping (a list (a whole number each) under each name)"),
        (dict, "a mapping"),
    ],
)
def test_the_sentence_says_what_would_work(hint, expected):
    with pytest.raises(UserError, match=f"must be {re.escape(expected)}\\.$"):
        validate(yaml_hint(hint), datetime.date(2024, 1, 1), "part.key")


def test_a_value_that_the_run_provides_cannot_be_set():
    cfg = OmegaConf.create({"part": {"_target_": f"{__name__}.hinted", "tensor": 3}})
    with pytest.raises(UserError, match=r"^part\.tensor=3 "):
        build(cfg, "part", tensor=torch.zeros(1))


def test_hints_that_only_a_type_checker_can_evaluate_are_ignored(tmp_path, monkeypatch):
    (tmp_path / "checker_only.py").write_text("def part(rate: 'NotImported'): return rate\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert build(OmegaConf.create({"part": {"_target_": "checker_only.part", "rate": 1}}), "part") == 1


@pytest.mark.parametrize(
    "override",
    [
        "backbone.hidden=0",
        "backbone.layers=-1",
        "dataset.num_classes=1",
        "dataset.separation=-1",
        "dataset.num_train=0",
        "experts.classes_per_expert=0",
        "experts.in_domain=1.5",
        "experts.in_domain=[0.1, 0.2, 0.3]",
        "experts.in_group=-0.1",
        "logger.mode=sideways",
    ],
)
def test_values_that_a_target_cannot_take_are_rejected(composed, override):
    group = override.partition(".")[0]
    cfg = composed("logger=wandb", override)
    with pytest.raises(UserError, match=f"^{re.escape(override)} must be "):
        bind(cfg, group, dict.fromkeys(["num_outputs", "image_shape", "num_classes", "groups"]))


def test_a_users_own_experts_and_backbone(tmp_path, monkeypatch):
    """One function each, in a module of their own, named by _target_."""
    (tmp_path / "my_parts.py").write_text(
        "import numpy, torch\n"
        "def experts(num, num_classes, skill): return numpy.full((num, num_classes), skill)\n"
        "def backbone(num_outputs): return torch.nn.LazyLinear(num_outputs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cfg = OmegaConf.create(
        {
            "experts": {"_target_": "my_parts.experts", "num": 3, "skill": 0.7},
            "backbone": {"_target_": "my_parts.backbone"},
        }
    )
    assert build(cfg, "experts", num_classes=4, groups={}, seed=0).tolist() == [[0.7] * 4] * 3
    assert build(cfg, "backbone", num_outputs=7, image_shape=(3, 8, 8)).out_features == 7


# fingerprint and run_name


@pytest.mark.parametrize("key", FREE)
def test_the_fingerprint_ignores_what_does_not_change_the_result(composed, key):
    cfg = composed()
    changed = overridden(cfg, key, FREE[key])
    assert OmegaConf.to_yaml(changed) != OmegaConf.to_yaml(cfg)
    assert fingerprint(changed) == fingerprint(cfg)
    assert run_name(changed) == run_name(cfg)


def test_a_run_whose_data_are_missing_can_be_planned_and_not_named(composed):
    assert run_name(composed("dataset=cifar100", "dataset.root=nowhere", "plan=true")).startswith("cifar100/")
    with pytest.raises(UserError, match=r"dataset\.root=nowhere"):
        run_name(composed("dataset=cifar100", "dataset.root=nowhere"))


def test_every_other_setting_belongs_to_the_identity(composed):
    """Every leaf of the default config, one at a time, and no two changes alike."""
    cfg = composed()
    prints = {json.dumps(settings(cfg))}
    leaves = [
        f"{group}.{key}" if isinstance(value, dict) else group
        for group, value in OmegaConf.to_container(cfg).items()
        for key in (value if isinstance(value, dict) else [None])
    ]
    counted = [leaf for leaf in leaves if leaf not in FREE and leaf.partition(".")[0] not in FREE]
    assert len(counted) > 30
    for key in counted:
        prints.add(json.dumps(settings(overridden(cfg, key, "changed"))))
    assert len(prints) == len(counted) + 1
    assert {"seed", "loss.formulation", "experts.num", "trainer.epochs", "dataset.seed"} <= set(counted)


def test_the_fingerprint_sees_values_not_their_spelling(composed):
    cfg = composed("optim.lr=1")
    assert fingerprint(composed("optim.lr=1.0")) == fingerprint(cfg)
    assert fingerprint(composed("optim.lr=1.5")) != fingerprint(cfg)
    reordered = OmegaConf.create({key: cfg[key] for key in reversed(list(cfg))})
    assert fingerprint(reordered) == fingerprint(cfg)
    assert re.fullmatch("[0-9a-f]{8}", fingerprint(cfg))


def test_a_run_is_named_by_its_choices(composed):
    cfg = composed("loss=picce_ova", "experts=specialist_varying", "experts.num=7", "seed=3")
    assert run_name(cfg) == f"synthetic/picce_ova-specialist_varying-J7-mlp-seed3-{fingerprint(cfg)}"


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b", "a/b", "a\\b:c*?", "..", "/", "$(x)", "π"])
def test_a_run_name_stays_inside_its_folder(composed, name):
    cfg = composed()
    for key in ("dataset.name", "loss.name", "backbone.name"):
        folder = run_name(overridden(cfg, key, name))
        parts = Path(folder).parts
        assert len(parts) == 2
        assert all(re.fullmatch(r"[\w=-][\w.=-]*", part) for part in parts)


# check


@pytest.mark.parametrize(
    ("key", "wrong", "named"),
    [
        ("seed", -1, "seed=-1"),
        ("seed", 1.5, "seed=1.5"),
        ("seed", 2**63, "seed=9223372036854775808"),
        ("seed", None, "seed=null"),
        ("seed", True, "seed=true"),
        ("verbose", "yes", "verbose=yes"),
        ("resume", False, "resume=false"),
        ("output_dir", None, "output_dir=null"),
        ("trainer", 5, "trainer=5"),
        ("trainer.epochs", 0, "trainer.epochs=0"),
        ("trainer.epochs", "many", "trainer.epochs=many"),
        ("trainer.batch_size", 0, "trainer.batch_size=0"),
        ("trainer.eval_every", -1, "trainer.eval_every=-1"),
        ("trainer.log_every", 0, "trainer.log_every=0"),
        ("trainer.clip_grad", -0.1, "trainer.clip_grad=-0.1"),
        ("trainer.checkpoint_minutes", float("inf"), "trainer.checkpoint_minutes=inf"),
        ("trainer.compile", "yes", "trainer.compile=yes"),
        ("trainer.channels_last", 1, "trainer.channels_last=1"),
        ("trainer.deterministic", None, "trainer.deterministic=null"),
        ("experts.num", 0, "experts.num=0"),
        ("experts.num", 2.5, "experts.num=2.5"),
        ("experts.resample", "sometimes", "experts.resample=sometimes"),
        ("optim.lr", -0.1, "optim.lr=-0.1"),
        ("optim.lr", float("nan"), "optim.lr=nan"),
        ("optim.lr", 1e31, "optim.lr=1e+31"),
        ("optim.lr", "fast", "optim.lr=fast"),
        ("optim.weight_decay", -1, "optim.weight_decay=-1"),
        ("optim.warmup_epochs", -1, "optim.warmup_epochs=-1"),
        ("optim.schedule", "spiral", "optim.schedule=spiral"),
        ("held_out", 0.95, "held_out=0.95"),
        ("record", "everything", "record=everything"),
        ("record_mb", -1, "record_mb=-1"),
        ("init", 3, "init=3"),
        ("freeze", "backbone", "freeze=backbone"),
        ("evaluation.metrics", "mine", "evaluation.metrics=mine"),
    ],
)
def test_invalid_settings_are_rejected_by_key_and_value(composed, key, wrong, named):
    with pytest.raises(UserError, match=rf"^{re.escape(named)} must [^\n]*\.$"):
        check(overridden(composed(), key, wrong))


@pytest.mark.parametrize(
    "key", ["seed", "trainer", "trainer.epochs", "trainer.checkpoint_minutes", "optim.lr", "experts.resample"]
)
def test_a_required_key_that_was_removed_is_named(composed, key):
    with pytest.raises(UserError, match=rf"^{re.escape(key)} is required"):
        check(composed(f"~{key}"))


@pytest.mark.parametrize("key", ["resume", "trainer.epochs"])
def test_a_value_that_cannot_be_resolved_is_named(composed, key):
    with pytest.raises(UserError, match=rf"^{re.escape(key)} .*NOWHERE"):
        check(composed(f"{key}=${{oc.env:NOWHERE}}"))


def test_every_key_of_the_framework_is_validated(composed):
    cfg = composed()
    assert set(Trainer.model_fields) == set(cfg.trainer)
    assert set(Settings.model_fields) >= {key for key, value in cfg.items() if not OmegaConf.is_dict(value)}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("trainer.epochs", 1),
        ("trainer.clip_grad", None),
        ("trainer.clip_grad", 1),
        ("optim.lr", 1),
        ("optim.weight_decay", None),
        ("optim.warmup_epochs", 0.5),
        ("experts.num", None),
    ],
)
def test_values_at_the_edge_are_accepted(composed, key, value):
    check(overridden(composed(), key, value))


@pytest.mark.parametrize("override", ["loss.formulation={a:1}", "loss.base=[ce]", "seed={a:1}", "experts.num=[1]"])
def test_choices_are_json_for_every_override(composed, override):
    """A sweep lists them before any cell is refused."""
    assert json.loads(json.dumps(choices(composed(override)))) == choices(composed(override))


def test_an_experiment_may_change_what_every_run_has(composed):
    assert composed("experiment=all_methods").held_out == 0.1
    assert composed("experiment=all_methods", "held_out=0.3").held_out == 0.3
