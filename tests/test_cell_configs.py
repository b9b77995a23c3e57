"""The configs of a sweep's cells are those that Hydra composes."""

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_automatic_config_search_path
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from l2d.cell_configs import CellConfigs
from l2d.conf_files import config_dir
from l2d.identity import register_resolvers
from l2d.job import register_plugins

CELLS = [
    ["loss=ce", "experts.num=4", "seed=1"],
    ["loss=ce", "experts.num=12", "seed=1"],
    ["loss=ova", "seed=0"],
    ["seed=3"],
    ["system=two_stage", "loss=ova", "optim.lr=0.3", "optim=adamw"],
    ["optim=adamw", "optim.lr=0.3", "freeze=[a,b]", "experts.costs=[0.1,0.2]", "experts.num=2"],
    ["experiment=synthetic", "+trainer.new=1", "~loss.weight", "hydra.sweep.subdir=x", "seed=2"],
    ["backbone.hidden=8", "loss=picce_ce", "output_dir='a b,c'"],
]


@pytest.fixture(scope="module")
def loader() -> ConfigLoaderImpl:
    register_resolvers()
    register_plugins()
    return ConfigLoaderImpl(create_automatic_config_search_path(None, None, config_dir()))


@pytest.fixture(scope="module")
def master(loader: ConfigLoaderImpl) -> DictConfig:
    return loader.load_configuration("train", ["hydra.job.name=l2d"], run_mode=RunMode.MULTIRUN)


def test_a_cell_has_the_config_that_hydra_composes(loader: ConfigLoaderImpl, master: DictConfig) -> None:
    configs = CellConfigs(loader, master)
    for overrides in CELLS:
        expected = OmegaConf.to_yaml(loader.load_sweep_config(master, overrides))
        assert OmegaConf.to_yaml(configs.of(overrides)) == expected, overrides


def test_cells_that_differ_in_values_are_composed_once_and_do_not_share_a_config(loader, master, monkeypatch) -> None:
    composed = []
    whole = loader.load_sweep_config

    def counted(config: DictConfig, overrides: list[str]) -> DictConfig:
        composed.append(overrides)
        return whole(config, overrides)

    monkeypatch.setattr(loader, "load_sweep_config", counted)
    configs = CellConfigs(loader, master)
    cells = [configs.of(["loss=ova", f"seed={seed}", f"experts.num={num}"]) for seed in range(3) for num in (1, 4)]
    assert composed == [["loss=ova"]]
    assert [(cell.seed, cell.experts.num) for cell in cells] == [(s, n) for s in range(3) for n in (1, 4)]


def test_an_unknown_key_is_refused_by_hydra_itself(loader: ConfigLoaderImpl, master: DictConfig) -> None:
    with pytest.raises(Exception, match=r"experts\.nam"):
        CellConfigs(loader, master).of(["loss=ova", "experts.nam=3"])
