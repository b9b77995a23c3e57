"""The configs of a sweep's cells are those that Hydra composes."""

from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
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


def test_a_file_is_read_once_for_all_cells(loader: ConfigLoaderImpl, master: DictConfig, monkeypatch) -> None:
    files: list[str] = []
    read = ConfigRepository.load_config

    def counted(repository: ConfigRepository, config_path: str) -> Any:
        files.append(config_path)
        return read(repository, config_path)

    monkeypatch.setattr(ConfigRepository, "load_config", counted)
    configs = CellConfigs(loader, master)
    for overrides in (["loss=ce"], ["loss=ova"], ["loss=ova", "optim=adamw"]):
        configs.of(overrides)
    assert {"loss/ce", "loss/ova", "optim/adamw"} <= set(files) and len(files) == len(set(files))


def test_cells_find_options_on_the_search_path(loader: ConfigLoaderImpl, tmp_path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "mine.yaml").write_text("_target_: my.loss\nname: mine\n")
    words = ["hydra.job.name=l2d", f"hydra.searchpath=[file://{tmp_path}]"]
    master = loader.load_configuration("train", words, run_mode=RunMode.MULTIRUN)
    configs = CellConfigs(loader, master)
    assert [configs.of([f"loss={name}"]).loss.name for name in ("mine", "ce", "mine")] == ["mine", "ce", "mine"]


def test_an_unknown_key_is_refused_by_hydra_itself(loader: ConfigLoaderImpl, master: DictConfig) -> None:
    with pytest.raises(Exception, match=r"experts\.nam"):
        CellConfigs(loader, master).of(["loss=ova", "experts.nam=3"])
