"""Mistakes that the fuzzer found: each is one sentence with its key and value."""

import shutil

import pytest
import torch
from hydra.errors import HydraException

from l2d.compose import compose
from l2d.decisions import Cases, Deployment
from l2d.errors import UserError, _is_user_error, sentence
from l2d.evaluate import find_run
from l2d.evaluation.evaluator import check_evaluation
from l2d.evaluation.rules import rule_of
from l2d.experts import Drawing, make_panel
from l2d.systems import load_system
from l2d.task import hold_out, load_task
from l2d.train import run

TINY = ("dataset.num_train=16", "dataset.num_test=8", "trainer.epochs=1", "verbose=false")


def test_a_share_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(UserError, match=r"held_out=0\.9 .* 3 training samples"):
        hold_out(3, 0.9, seed=0)


@pytest.mark.parametrize("target", ["torch.nn.Identity", "l2d.systems.System"])
def test_a_target_that_makes_no_system_is_refused(composed, target):
    cfg = composed(*TINY, f"system._target_={target}")
    with pytest.raises(UserError, match=f"system._target_={target}"):
        load_system(cfg, load_task(cfg))


def test_experts_that_are_neither_matrix_nor_panel_are_refused(tiny_dataset):
    with pytest.raises(UserError, match=r"experts\._target_ .* Identity"):
        make_panel(torch.nn.Identity(), tiny_dataset(2), Drawing())


def outcome_under(cfg):
    beliefs = torch.full((1, 3), 0.5)
    cases = Cases(beliefs, torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), beliefs, Deployment(["ann"]))
    return rule_of(cfg, None)(cases)


def test_a_rule_is_refused_before_the_training_and_what_it_returns_after(composed):
    with pytest.raises(UserError, match=r"rule\._target_=os\.getcwd"):
        check_evaluation(composed("rule._target_=os.getcwd"))
    with pytest.raises(UserError, match=r"rule\._target_=os\.getcwd .* Decision"):
        outcome_under(composed("rule._target_=os.getcwd"))


def test_errors_of_hydra_while_composing_are_user_errors(composed):
    with pytest.raises((ValueError, HydraException)) as refused:
        compose(["dataset=inf"])
    assert _is_user_error(refused.value) and sentence(refused.value)


@pytest.mark.parametrize(("old", "new"), [("base: ce", "base: ova"), ("\nseed: 0", "\nseed: 7")])
def test_an_edited_config_is_not_evaluated(composed, tmp_path, monkeypatch, old, new):
    monkeypatch.chdir(tmp_path)
    run(composed(*TINY))
    folder = next(tmp_path.glob("outputs/*/*"))
    shutil.copytree(folder, tmp_path / "copy")
    assert find_run("copy").result["status"] == "finished"
    config = tmp_path / "copy" / "config.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(UserError, match=r"copy/config\.yaml"):
        find_run("copy")
