"""Configs: every file composes and builds, wrong choices are refused in a sentence, runs are named by what matters."""

import json
import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf, open_dict

from l2d.config import build, check, choices, config_dir, fingerprint, run_name
from l2d.errors import UserError
from l2d.experts import make_panel

GROUPS = sorted(p.name for p in Path(config_dir()).iterdir() if p.is_dir() and p.name != "__pycache__")


def options(group: str) -> list[str]:
    return sorted(p.stem for p in Path(config_dir(), group).glob("*.yaml"))


OPTIONS = [(group, option) for group in GROUPS for option in options(group)]

# What the datasets that live in files are like: number of classes, size of their class group, annotators.
IN_FILES = {
    "cifar100": (100, {"animal": 50}, 0),
    "imagenet": (1000, {"dog": 120}, 0),
    "micebone": (3, {}, 8),
    "chaoyang": (4, {}, 3),
}
NEEDS = {"animal": "animal", "dog": "dog", "specialist": "specialty"}  # experts, up to the first _ -> class group
FREE = {  # choices that leave a result as it is
    "trainer.device": "cpu",
    "trainer.log_every": 7,
    "logger": {"_target_": "l2d.tracking.WandbTracker", "name": "wandb"},
    "output_dir": "elsewhere",
    "verbose": False,
    "force": "changed",
    "plan": "changed",
    "resume": "never",
    "trainer.checkpoint_minutes": 1,
    "trainer.checkpoint_epochs": 3,
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


def test_the_groups_a_user_may_choose_from():
    expected = {"dataset", "experts", "backbone", "loss", "optim", "trainer", "logger", "experiment"}
    assert expected <= {*GROUPS, "experiment"}
    losses = {f"{formulation}{base}" for formulation in ("", "picce_", "pice_") for base in ("ce", "ova")}
    assert losses <= set(options("loss"))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_checks_and_names_its_runs(filled, group, option):
    cfg = filled(f"{group}={option}")
    check(cfg)
    assert re.fullmatch(r"[\w.=-]+/[\w.=-]+-[0-9a-f]{8}", run_name(cfg))
    chosen = choices(cfg)
    if group in chosen and group != "backbone":
        label = {"sgd_cosine": "sgd"}.get(option, option)
        assert chosen[group] == label


@pytest.mark.parametrize("option", options("loss"))
def test_every_loss_is_the_pair_its_name_says(composed, option):
    """At scores 0 with K=2, J=2, both experts right: each phi is log 4 (ce); 4 log 2 in all, whatever is taught (ova)."""
    loss = build(composed(f"loss={option}"), "loss", num_classes=2)
    formulation, _, base = option.rpartition("_")
    assert (loss.formulation.__name__, loss.base.__name__) == (formulation or "vanilla", base)
    scores = torch.zeros(1, 4)
    value = loss(scores, torch.tensor([0]), torch.tensor([[0, 0]])).item()
    taught = 1 if formulation else 2
    log2 = torch.tensor(2.0).log().item()
    assert value == pytest.approx((1 + taught) * 2 * log2 if base == "ce" else 4 * log2, rel=1e-6)


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
def test_every_optimiser_takes_the_papers_recipe(composed, option):
    cfg = composed(f"optim={option}")
    optimizer = build(cfg, "optim", params=torch.nn.Linear(2, 2).parameters(), fused=False)
    lr, momentum, kind = {"sgd_cosine": (0.1, 0.9, torch.optim.SGD), "adamw": (3e-4, None, torch.optim.AdamW)}[option]
    settings = optimizer.param_groups[0]
    assert isinstance(optimizer, kind)
    assert (settings["lr"], settings["weight_decay"], settings.get("momentum")) == (lr, 5e-4, momentum)
    assert not settings.get("nesterov")
    assert (cfg.optim.schedule, cfg.optim.warmup_epochs) == ("cosine", 0)


@pytest.mark.parametrize("option", options("logger"))
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
    for key, value in (("root", str(tmp_path)), ("download", False)):
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
    if fits:
        panel = make_panel(build(cfg, "experts", **offered), data, cfg.experts.resample, 0)
        table = panel.predictions("train", data.train.labels)
        assert panel.num == cfg.experts.num
        assert table.shape == (len(data.train), cfg.experts.num)
        assert table.min() >= 0
        assert table.max() < data.num_classes
    else:
        with pytest.raises(UserError) as refused:
            build(cfg, "experts", **offered)
        assert re.search(r"\b(choose|use)\b.*experts=", str(refused.value))
        assert "\n" not in str(refused.value)


def test_an_unknown_key_an_unknown_option_and_a_wrong_override_do_not_compose(composed):
    for wrong in ("trainer.epoch=3", "loss=nosuch", "experts.nmu=3"):
        with pytest.raises(Exception, match=wrong.partition("=")[0].rpartition(".")[2]):
            composed(wrong)


# build


def strict(num, rate=0.5, *, offered=None):
    return {"num": num, "rate": rate, "offered": offered}


@pytest.fixture
def target():
    """A config whose group `part` has this file's `strict` as its target, with the given keys."""

    def make(**keys):
        return OmegaConf.create({"part": {"_target_": f"{__name__}.strict", **keys}})

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
    ],
)
def test_build_refuses_in_a_sentence(target, keys, sentence):
    with pytest.raises(UserError, match=sentence):
        build(target(**keys), "part", offered=1)


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


def test_the_fingerprint_ignores_where_a_dataset_lies(composed):
    cfg = composed()
    with open_dict(cfg):
        cfg.dataset.root = "here"
    assert fingerprint(overridden(cfg, "dataset.root", "there")) == fingerprint(cfg)


def test_every_other_setting_changes_the_fingerprint(composed):
    """Every leaf of the default config, one at a time, and no two changes alike."""
    cfg = composed()
    prints = {fingerprint(cfg)}
    leaves = [
        f"{group}.{key}" if isinstance(value, dict) else group
        for group, value in OmegaConf.to_container(cfg).items()
        for key in (value if isinstance(value, dict) else [None])
    ]
    counted = [leaf for leaf in leaves if leaf not in FREE and leaf.partition(".")[0] not in FREE]
    assert len(counted) > 30
    for key in counted:
        prints.add(fingerprint(overridden(cfg, key, "changed")))
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

WHOLE, NUMBER, SWITCH = "whole number", "number", "true or false"


@pytest.mark.parametrize(
    ("key", "wrong", "sentence"),
    [
        ("seed", -1, WHOLE),
        ("seed", 1.5, WHOLE),
        ("seed", 2**63, WHOLE),
        ("seed", None, WHOLE),
        ("seed", True, WHOLE),
        ("trainer.epochs", 0, WHOLE),
        ("trainer.epochs", "many", WHOLE),
        ("trainer.batch_size", 0, WHOLE),
        ("trainer.eval_every", -1, WHOLE),
        ("trainer.log_every", 0, WHOLE),
        ("trainer.clip_grad", -0.1, NUMBER),
        ("trainer.compile", "yes", SWITCH),
        ("trainer.channels_last", 1, SWITCH),
        ("trainer.deterministic", None, SWITCH),
        ("experts.num", 0, WHOLE),
        ("experts.num", 2.5, WHOLE),
        ("optim.lr", -0.1, NUMBER),
        ("optim.lr", float("nan"), NUMBER),
        ("optim.lr", float("inf"), NUMBER),
        ("optim.lr", "fast", NUMBER),
        ("optim.weight_decay", -1, NUMBER),
        ("optim.warmup_epochs", -1, NUMBER),
    ],
)
def test_values_out_of_range_are_refused_by_name(composed, key, wrong, sentence):
    with pytest.raises(UserError, match=f"^{re.escape(key)}=.* must be .*{sentence}"):
        check(overridden(composed(), key, wrong))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("trainer.epochs", 1),
        ("trainer.clip_grad", None),
        ("trainer.clip_grad", 1),
        ("optim.lr", 1),
        ("optim.warmup_epochs", 0.5),
    ],
)
def test_values_at_the_edge_are_accepted(composed, key, value):
    check(overridden(composed(), key, value))


@pytest.mark.parametrize("override", ["loss.formulation={a:1}", "loss.base=[ce]", "seed={a:1}", "experts.num=[1]"])
def test_choices_can_be_written_down_whatever_was_chosen(composed, override):
    """A sweep lists them before any cell is refused."""
    assert json.loads(json.dumps(choices(composed(override)))) == choices(composed(override))
