"""The YAML files of the config, read as files: where they are, which groups and options there are. Loads no Hydra."""

from collections.abc import Sequence
from pathlib import Path

Folders = Sequence[str | Path]


def config_dir() -> str:
    """The package's own folder of YAML files: inside it when installed from a wheel, beside it in a checkout."""
    packaged = Path(__file__).parent / "conf"
    return str(packaged if packaged.is_dir() else Path(__file__).parents[1] / "conf")


def group_files(config_dirs: Folders = ()) -> dict[str, dict[str, Path]]:
    """Group -> option -> file, of the package and of `config_dirs`; the first that has an option wins, as in Hydra."""
    groups: dict[str, dict[str, Path]] = {}
    for root in map(Path, (config_dir(), *config_dirs)):
        for folder in sorted(path for path in root.iterdir() if path.is_dir() and path.name != "hydra"):
            for file in sorted(folder.glob("*.yaml")):
                groups.setdefault(folder.name, {}).setdefault(file.stem, file)
    return dict(sorted(groups.items()))


def default_options() -> dict[str, str | None]:
    """Group -> the option that train.yaml chooses."""
    import yaml

    entries = yaml.safe_load(Path(config_dir(), "train.yaml").read_text())["defaults"]
    return {group: option for entry in entries if isinstance(entry, dict) for group, option in entry.items()}
