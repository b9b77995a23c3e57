"""The reference of the settings: a page per config group, from the YAML files in conf/, their comments and what their targets take."""

import html
import inspect
from pathlib import Path
from typing import Any

import markup
import yaml_comments
from pydantic import TypeAdapter
from yaml_comments import ConfigFile, Key

from l2d.conf_files import config_dir, default_options, group_files
from l2d.config import locate, parameters_of
from l2d.settings import Settings, words, yaml_hint

FOLDER = "reference/settings"
TO_DOCS = "../../"  # from a page in FOLDER to the pages of docs/
NAME = "what tables and folders call it"


def pages() -> dict[str, str]:
    """Page -> Markdown: first the overview, then one page per group and one for Hydra's own groups."""
    groups = {
        group: {name: yaml_comments.read(file) for name, file in files.items()}
        for group, files in group_files().items()
    }
    made = {f"{FOLDER}/index.md": overview(groups)}
    made |= {f"{FOLDER}/{group}.md": group_page(group, options) for group, options in groups.items()}
    return made | {f"{FOLDER}/hydra.md": hydra_page()}


def overview(groups: dict[str, dict[str, ConfigFile]]) -> str:
    """How settings are given, every group with its default, and the keys that belong to no group."""
    defaults = default_options()
    rows = []
    for group, options in groups.items():
        chosen = defaults.get(group)
        link = f'<a href="{group}.html"><code>{group}</code></a>'
        rows.append((link, f"<code>{chosen}</code>" if chosen else "none", str(len(options))))
    main = yaml_comments.read(Path(config_dir(), "train.yaml"))
    own = [key for key in main.keys if not key.name.startswith("hydra.")]
    return "\n\n".join([
        "# Settings",
        "A **group** is a choice (`loss=ova`), and every option of it has **keys** (`loss.weight=balanced`). Both go on the command line of "
        "`l2d train`, or into an [experiment](experiment.md); what is said there replaces the default. `???` has no default and must be given. "
        "`l2d train dataset=cifar100 --cfg job` prints the settings of a command without running it.",
        "These pages are made from the files in `conf/`, their comments, and the functions that they name.",
        "## Groups",
        markup.table(("group", "default", "options"), rows),
        "[Hydra's own groups](hydra.md) say where and how the runs of a grid are run.",
        "## Keys without a group",
        markup.table(("key", "default", "meaning"), [key_row(key, key.name, key.comment, _allowed("", key.name)) for key in own]),
    ])  # fmt: skip


def group_page(group: str, options: dict[str, ConfigFile]) -> str:
    """Every option of a group with its keys, and what its targets take."""
    default = default_options().get(group)
    says = f"Chosen by `{group}=OPTION`" + (
        f"; the default is [`{default}`](#{default})." if default else "; none by default."
    )
    rows = [
        (
            f'<a href="#{name}"><code>{name}</code></a>',
            markup.inline(" ".join(line for line in file.header if not line.startswith("  "))),
        )
        for name, file in options.items()
    ]
    parts = [f"# {group}", says, markup.table(("option", "what it is"), rows)]
    for name, file in options.items():
        parts += [f"## {name} {{: #{name} }}", markup.prose(file.header, TO_DOCS), *option_parts(group, file, options)]
    called = sorted({target for file in options.values() if (target := target_of(group, file))})
    if called:
        parts += ["## What they call", *(target_section(target) for target in called)]
    return "\n\n".join(parts)


def option_parts(group: str, file: ConfigFile, options: dict[str, ConfigFile]) -> list[str]:
    """What an option calls, its keys, and what it sets in other groups; a file without keys of its group as it is."""
    own = own_keys(group, file)
    if not own:
        return [f"```yaml\n{file.body}\n```"]
    target = target_of(group, file)
    parts = [f"Calls [`{target}`](#{anchor(target)})."] if target else []
    rows = [
        key_row(key, f"{group}.{name}", meaning(group, name, file, options), _allowed(group, name, target))
        for name, key in own.items()
        if name != "_target_"
    ]
    parts += [markup.table(("key", "default", "meaning"), rows)] if rows else []
    inherited = [name for name in file.chosen if "=" not in name]
    parts += [f"Its other keys are those of [`{group}={name}`](#{name})." for name in inherited]
    others = [key for key in file.keys if key.name not in {k.name for k in own.values()}]
    brought = [name for name in file.chosen if "=" in name] + [f"{key.name}={key.default}" for key in others]
    return [*parts, f"It also sets {', '.join(f'`{word}`' for word in brought)}."] if brought else parts


def own_keys(group: str, file: ConfigFile) -> dict[str, Key]:
    """The keys of the file that belong to its own group, by their names in the group."""
    prefix = f"{group}." if file.is_global else ""
    return {key.name.removeprefix(prefix): key for key in file.keys if key.name.startswith(prefix)}


def target_of(group: str, file: ConfigFile) -> str | None:
    key = own_keys(group, file).get("_target_")
    return None if key is None or key.default == "null" else key.default


def meaning(group: str, name: str, file: ConfigFile, options: dict[str, ConfigFile]) -> str:
    """The comment of a key; without one that of the same key in the group's default option, or in one with the same target."""
    target, default = target_of(group, file), default_options().get(group)
    alike = [other for other in options.values() if target_of(group, other) == target]
    for other in (file, *([options[default]] if default else []), *alike):
        key = own_keys(group, other).get(name)
        if key and key.comment:
            return key.comment
    return NAME if name == "name" else ""


def key_row(key: Key, full_name: str, says: str, allowed: str) -> tuple[str, str, str]:
    """A row: name, default, meaning with what the value may be."""
    may_be = f'<span class="may-be">{html.escape(allowed)}</span>' if allowed else ""
    return f"<code>{full_name}</code>", f"<code>{html.escape(key.default)}</code>", markup.inline(says) + may_be


def _allowed(group: str, name: str, target: str | None = None) -> str:
    """What a value may be, in words: from the framework's own model, else from the target's type hint; "" where neither says."""
    schema = Settings.model_json_schema()
    if group:
        schema = schema["$defs"].get(group.capitalize(), {})
    if name in schema.get("properties", {}):
        return words(schema["properties"][name])
    parameter = parameters_of(target, locate(target)).get(name) if target else None
    hint = Any if parameter is None or parameter.annotation is parameter.empty else yaml_hint(parameter.annotation)
    return "" if hint is Any else words(TypeAdapter(hint).json_schema())


def target_section(target: str) -> str:
    """The signature of a target and the first paragraph of its docstring."""
    function = locate(target)
    names = [f"**{name}" if p.kind is p.VAR_KEYWORD else name for name, p in parameters_of(target, function).items()]
    says = (inspect.getdoc(function) or "").split("\n\n")[0]
    call = f"```python\n{target}({', '.join(names)})\n```"
    return f"### {target} {{: #{anchor(target)} }}\n\n{call}\n\n{markup.escape(says)}"


def anchor(target: str) -> str:
    return target.replace(".", "-").lower()


def hydra_page() -> str:
    """Hydra's groups of this project, the part of train.yaml that is Hydra's, and the example of a W&B sweep: the files as they are."""
    root = Path(config_dir())
    parts = [
        "# Hydra's groups",
        "`hydra/launcher=slurm` runs the cells of a grid as jobs of a cluster and `hydra/launcher=joblib hydra.launcher.n_jobs=8` in eight processes "
        "([sweeps](../../sweeps.md)). The keys below begin with the name of their group, as in `hydra.launcher.partition=gpu`.",
    ]
    for file in sorted((root / "hydra").glob("*/*.yaml")):
        read = yaml_comments.read(file)
        parts += [
            f"## hydra/{file.parent.name}={file.stem}",
            markup.prose(read.header, TO_DOCS),
            f"```yaml\n{read.body}\n```",
        ]
    own = (root / "train.yaml").read_text().partition("\nhydra:\n")[2]
    parts += ["## In train.yaml", f"```yaml\nhydra:\n{own.rstrip()}\n```"]
    sweep = yaml_comments.read(root / "wandb_sweep.yaml")
    return "\n\n".join(
        [*parts, "## wandb_sweep.yaml", markup.prose(sweep.header, TO_DOCS), f"```yaml\n{sweep.body}\n```"]
    )
