"""A YAML file of conf/ with its comments: what it says about itself, which options it chooses, and its keys."""

import re
from pathlib import Path
from typing import NamedTuple

import yaml

HYDRA_DIRECTIVE = "# @package"
BLOCK_SCALAR = re.compile(r":[ ]*[|>][-+]?[ ]*(?:#[ ]*(?P<comment>.*))?$")


class Key(NamedTuple):
    name: str  # dotted: trainer.epochs
    default: str  # as the file writes it
    comment: str  # what follows it on its line; "" without one


class ConfigFile(NamedTuple):
    header: list[str]  # comment lines at the top, without their #
    chosen: list[str]  # other options that it brings along: backbone=resnet18
    keys: list[Key]
    body: str  # the file without its header
    is_global: bool  # its keys are full names (trainer.epochs), not keys of its own group


def read(file: Path) -> ConfigFile:
    """The file's header, choices and keys."""
    text = file.read_text()
    lines = text.splitlines()
    count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = [line[1:].removeprefix(" ") for line in lines[:count] if not line.startswith(HYDRA_DIRECTIVE)]
    is_global = any(line == f"{HYDRA_DIRECTIVE} _global_" for line in lines[:count])
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    chosen = [choice for entry in _entry(root, "defaults") for choice in _choices(entry)]
    return ConfigFile(header, chosen, list(_keys(root, text)), "\n".join(lines[count:]).strip(), is_global)


def _entry(mapping: yaml.MappingNode, name: str) -> list[yaml.Node]:
    """The items of the list under this name; none without such a key."""
    return next((value.value for key, value in mapping.value if key.value == name), [])


def _choices(entry: yaml.Node) -> list[str]:
    """`- override /backbone: resnet18` -> backbone=resnet18; `- wandb` -> wandb; _self_ chooses nothing."""
    if isinstance(entry, yaml.ScalarNode):
        return [] if entry.value == "_self_" else [entry.value]
    return [f"{key.value.removeprefix('override ').lstrip('/')}={value.value}" for key, value in entry.value]


def _keys(mapping: yaml.MappingNode, text: str, prefix: str = "") -> list[Key]:
    """Every key whose value is not a mapping in block style, by its dotted name; not the list of defaults."""
    found: list[Key] = []
    for key, value in mapping.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            found += _keys(value, text, f"{name}.")
        elif name != "defaults":
            written = text[value.start_mark.index : value.end_mark.index].strip()
            found.append(Key(name, written, _comment(key, value, text)))
    return found


def _comment(key: yaml.Node, value: yaml.Node, text: str) -> str:
    block = BLOCK_SCALAR.match(_rest_of_line(text, key.end_mark.index))
    if block:
        return block["comment"] or ""
    after = _rest_of_line(text, value.end_mark.index).strip()
    return after[1:].strip() if after.startswith("#") else ""


def _rest_of_line(text: str, start: int) -> str:
    return text[start:].split("\n", 1)[0]
