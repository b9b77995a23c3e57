"""l2d-train: its help at once, from the YAML files as they are; everything else through Hydra, which takes longer to load."""

import os
import sys
from pathlib import Path
from textwrap import indent

from omegaconf import OmegaConf

from l2d.config import config_dir


def train() -> None:
    """l2d-train."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(help_text(Path(config_dir())))
        return
    from l2d.errors import errors_as_sentences
    from l2d.job import job

    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets exceptions through to here, instead of Hydra's shortened report
    os.environ.pop("L2D_SWEEP", None)
    with errors_as_sentences():
        job()


def help_text(root: Path) -> str:
    """Hydra's template for it, with the groups and the files of the defaults, comments and all."""
    text = (root / "train.yaml").read_text()
    main = OmegaConf.create(text)
    groups = sorted(folder for folder in root.iterdir() if folder.is_dir() and folder.name != "hydra")
    choices = [f"{group.name}: {', '.join(sorted(file.stem for file in group.glob('*.yaml')))}" for group in groups]
    defaults = [next(iter(entry.items())) for entry in main.defaults if OmegaConf.is_dict(entry)]
    chosen = {group: root / group / f"{option}.yaml" for group, option in defaults if option and "/" not in group}
    parts = [f"{group}: # {file.stem}\n{indent(file.read_text(), '  ')}" for group, file in chosen.items()]
    own = text.partition("_self_\n")[2].partition("\nhydra:")[0].strip()
    filled = {"$APP_CONFIG_GROUPS": "\n".join(choices) + "\n", "$CONFIG": "".join(parts) + own}
    help_ = main.hydra.help.template
    for name, content in filled.items():
        help_ = help_.replace(name, content)
    return help_
