"""l2d completion: a script for the shell, which calls `l2d completion words ...` for candidates. Loads no Hydra."""

import sys
from itertools import pairwise
from pathlib import Path

from l2d.cli import COMMANDS
from l2d.conf_files import config_dir, group_files
from l2d.errors import show

SCRIPTS = {
    "bash": """\
# eval "$(l2d completion bash)" in ~/.bashrc
_l2d() {
    local words word
    read -ra words <<< "${COMP_LINE:0:COMP_POINT}"
    [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")
    word=${words[-1]}
    mapfile -t COMPREPLY < <(l2d completion words "${words[@]}" 2> /dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
    # bash starts a new word after `=`, and replaces only that
    [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}")
}
complete -o default -F _l2d l2d l2d-train""",
    "zsh": """\
# eval "$(l2d completion zsh)" in ~/.zshrc, after compinit
_l2d() {
    local -a found=("${(@f)$(l2d completion words "${(@)words[1,CURRENT]}" 2> /dev/null)}")
    if [[ -z $found ]]; then _files; return; fi
    compadd -S '' -- ${(M)found:#*[=.]}
    compadd -- ${found:#*[=.]}
}
compdef _l2d l2d l2d-train""",
    "fish": """\
# l2d completion fish | source, in ~/.config/fish/config.fish
function __l2d
    l2d completion words (commandline -opc) (commandline -ct) 2> /dev/null
end
complete -c l2d -a '(__l2d)'
complete -c l2d-train -a '(__l2d)'""",
}
USAGE = f"usage: l2d completion {'|'.join(SCRIPTS)}"


def main(arguments: list[str]) -> None:
    """l2d completion SHELL prints its script; `words` and a command line print the candidates for its last word."""
    if arguments[:1] == ["words"]:
        for text in candidates(arguments[1:]):
            show(text)
    elif len(arguments) == 1 and arguments[0] in SCRIPTS:
        show(SCRIPTS[arguments[0]])
    elif arguments in (["--help"], ["-h"]):
        print(USAGE, *(script.splitlines()[0] for script in SCRIPTS.values()), sep="\n")
    else:
        sys.stderr.write(
            f"l2d: l2d completion {' '.join(arguments)} needs the name of one shell: {', '.join(SCRIPTS)}.\n"
        )
        sys.exit(2)


def candidates(line: list[str]) -> list[str]:
    """Completions of the last word of a command line; none where the shell should offer files."""
    program, *before, word = line
    if Path(program).name == "l2d-train":
        before.insert(0, "train")
    return sorted(text for text in _following(before, word) if text.startswith(word))


def _following(before: list[str], word: str) -> list[str]:
    if not before:
        return list(COMMANDS)
    if before[0] not in COMMANDS:
        return []
    command = COMMANDS[before[0]]
    first, takes_settings = command.usage.split()[0].strip("[]"), "KEY=VALUE" in command.usage
    words = [*command.options.split(), "--help"]
    flags = [text for text, after in pairwise([*words, "--"]) if text.startswith("--") and after.startswith("--")]
    options = [text for text in words if text.startswith("--") and text not in flags]  # that a value follows
    options += ["--config-dir"] if takes_settings else []
    if before[-1] in (*options, "-cd"):
        return []
    if word.startswith("-"):
        return [*options, *flags]
    if len(before) == 1 and "=" not in first:
        return first.split("|") if first.islower() else []
    known = _settings(before, word) if takes_settings else []
    return [text for text in known if text.startswith(command.settings) or _leads_to(text, command.settings)]


def _leads_to(text: str, settings: tuple[str, ...]) -> bool:
    """Whether a group such as `experts.` has one of these settings in it."""
    return text.endswith(".") and any(setting.startswith(text) for setting in settings)


def _settings(before: list[str], word: str) -> list[str]:
    """`loss=`, `loss.` and `seed=`; after `loss=` its options; after `loss.` the keys of the option that is chosen."""
    import yaml

    folders = [text for option, text in pairwise(before) if option in ("--config-dir", "-cd")]
    groups = group_files([folder for folder in folders if Path(folder).is_dir()])
    main = yaml.safe_load(Path(config_dir(), "train.yaml").read_text())
    group, equals, values = word.partition("=")
    if equals:
        done = values.rpartition(",")[0]  # of a grid: loss=ce,pi
        return [f"{group}={done}{',' if done else ''}{option}" for option in groups.get(group, ())]
    group, dot, _ = word.partition(".")
    if dot:
        chosen = [{group: text.partition("=")[2]} for text in before if text.startswith(f"{group}=")]
        options = [entry[group] for entry in [*main["defaults"], *chosen] if group in entry]
        file = groups.get(group, {}).get(options[-1]) if options else None
        keys = yaml.safe_load(file.read_text()) if file else {}
        return [f"{group}.{key}=" for key in keys if key not in ("defaults", "_target_")]
    keys = [f"{key}=" for key in main if key not in ("defaults", "hydra")]
    of_keys = [group for group in groups if group not in ("experiment", "task")]
    return [*keys, *(f"{group}=" for group in groups), *(f"{group}." for group in of_keys)]
