"""The configs of the cells of a sweep. Hydra reads each file once and composes each choice of options once; values are set in copies of that."""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException


class CellConfigs:
    """Composes as `ConfigLoader.load_sweep_config`, which takes a tenth of a second, but cells that choose the same options
    share its work: a value such as seed=1 is set afterwards, as Hydra does it."""

    def __init__(self, loader: ConfigLoader, config: DictConfig):
        self.loader, self.config = reads_once(loader), config
        self.parser = OverridesParser.create(config_loader=loader)
        self.composed: dict[tuple[str, ...], bytes] = {}  # pickled: reading is six times faster than copying
        self.groups: dict[str, bool] = {}  # key -> whether it chooses an option

    def of(self, overrides: Sequence[str]) -> DictConfig:
        """The config of the cell with these overrides."""
        parsed = self.parser.parse_overrides(list(overrides))
        values = [override for override in parsed if self._sets_a_value(override)]
        options = tuple(o.input_line for o in parsed if o not in values and o.input_line)
        if not values:
            return self._compose(list(overrides))
        if options not in self.composed:
            self.composed[options] = pickle.dumps(self._compose(list(options)))
        cfg: DictConfig = pickle.loads(self.composed[options])
        try:
            for override in values:
                OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:
            return self._compose(list(overrides))  # Hydra says what is wrong
        self._record(cfg, [override for override in parsed if not override.is_hydra_override()])
        return cfg

    def _record(self, cfg: DictConfig, overrides: list[Override]) -> None:
        """Note the overrides where Hydra does: as a list, and as the text that hydra.job.override_dirname is."""
        form = cfg.hydra.job.config.override_dirname
        named = sorted(str(o.input_line) for o in overrides if o.key_or_group not in form.exclude_keys)
        with open_dict(cfg.hydra):
            cfg.hydra.overrides.task = [o.input_line for o in overrides]
            cfg.hydra.job.override_dirname = form.item_sep.join(named).replace("=", form.kv_sep)

    def _compose(self, overrides: list[str]) -> DictConfig:
        return self.loader.load_sweep_config(self.config, overrides)

    def _sets_a_value(self, override: Override) -> bool:
        """Whether an override changes a value of the run itself, and neither adds, removes nor chooses anything."""
        key = override.key_or_group
        plain = override.type is not None and override.type.name == "CHANGE" and override.package is None
        if not plain or key.startswith("hydra") or "/" in key:
            return False
        if key not in self.groups:
            self.groups[key] = bool(self.loader.get_group_options(key))
        return not self.groups[key]


def reads_once(loader: ConfigLoader) -> ConfigLoader:
    """The same loader, which composes several configs from files that it reads once."""
    own: Any = copy.copy(loader)
    own.repository = _ReadOnce(own.config_search_path)
    return own  # type: ignore[no-any-return]


class _ReadOnce(ConfigRepository):
    """Hydra takes a deep copy of its repository for each config that it composes; what is read here is known to all copies."""

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self.read: dict[str, bytes] = {}  # pickled, because composing changes what it is given

    def load_config(self, config_path: str) -> Any:
        if config_path not in self.read:
            self.read[config_path] = pickle.dumps(super().load_config(config_path))
        return pickle.loads(self.read[config_path])

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ReadOnce":
        return copy.copy(self)
