"""``returnn-tf completion bash|zsh|fish``: a script that completes commands, options, settings and names.

What it knows is collected from the declarations when it is printed: the script runs nothing when a key is pressed.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Callable

from returnn_tf.blocks.block import BLOCKS
from returnn_tf.cli.commands import COMMANDS, RUN, register_command
from returnn_tf.cli.explain.pages import topics
from returnn_tf.cli.new.kinds import KINDS
from returnn_tf.config.errors import CommandError, did_you_mean
from returnn_tf.config.settings import all_settings
from returnn_tf.datasets.core.registry import DATASETS
from returnn_tf.engine.learning_rate.schedule import SCHEDULES
from returnn_tf.engine.update.optimizers.registry import OPTIMIZERS
from returnn_tf.export.exporters import EXPORTERS
from returnn_tf.graph.registry import LAYERS, LOSSES
from returnn_tf.ops.cells import UNITS
from returnn_tf.tasks.registry import TASKS

_CHOICE_OF_BASH = 'COMPREPLY=($(compgen -W "$words" -- "$cur"))'
_CHOICE_OF_ZSH = "COMPREPLY=(${(M)${=words}:#${(b)cur}*})"
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


@dataclasses.dataclass(frozen=True)
class Words:
    """What can be completed.

    :param commands: name -> one line
    :param options: command -> its options
    :param names: command -> what its arguments may be, besides files
    :param values: option -> its values
    :param settings: ``++key`` of each setting
    """

    commands: Mapping[str, str]
    options: Mapping[str, Sequence[str]]
    names: Mapping[str, Sequence[str]]
    values: Mapping[str, Sequence[str]]
    settings: Sequence[str]


def collect() -> Words:
    """Return the words that commands and registries declare."""
    commands = {name: command.help for name, command in COMMANDS.items()}
    options = {name: sorted({*_OPTION.findall(command.help_text([])), "--help"}) for name, command in COMMANDS.items()}
    names: dict[str, Sequence[str]] = {
        "layers": LAYERS.names(),
        "losses": LOSSES.names(),
        "datasets": DATASETS.names(),
        "units": UNITS.names(),
        "optimizers": OPTIMIZERS.names(),
        "schedules": SCHEDULES.names(),
        "blocks": BLOCKS.names(),
        "settings": sorted(all_settings()),
        "explain": topics(),
        "data": ["info", "dump", "to-hdf", "oggzip"],
        "completion": list(_SCRIPTS),
        "help": list(commands),
        **{name: command.names() for name, command in COMMANDS.items() if command.names is not None},
    }
    values = {
        "--kind": list(KINDS),
        "--to": [name for name, _ in EXPORTERS.items()],
        "++task": [name for name in TASKS.names() if name.isidentifier()],
    }
    return Words(commands, options, names, values, ["++" + name for name in sorted(all_settings())])


def bash(words: Words) -> str:
    """Return the script for bash."""

    def case(subject: str, rows: Mapping[str, Sequence[str]], indent: str) -> list[str]:
        lines = ["%s%s) words=%s ;;" % (indent, key, shlex.quote(" ".join(row))) for key, row in rows.items() if row]
        return ['%scase "%s" in' % (indent[2:], subject), *lines, indent[2:] + "esac"]

    first = " ".join(words.commands)
    return "\n".join(
        [
            '# completion of returnn-tf; put it into ~/.bashrc: eval "$(returnn-tf completion bash)"',
            "_returnn_tf() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""',
            '  local command="${COMP_WORDS[1]}"',
            *case("$prev", words.values, "    "),
            '  if [ -n "$words" ]; then :',
            '  elif [ "$COMP_CWORD" -eq 1 ]; then words=%s' % shlex.quote(first),
            '  elif [[ "$cur" == ++* ]]; then words=%s' % shlex.quote(" ".join(words.settings)),
            '  elif [[ "$cur" == -* ]]; then words=%s' % shlex.quote(" ".join(words.options[RUN])),
            *case("$command", words.options, "      "),
            "  else",
            *case("$command", words.names, "      "),
            "  fi",
            "  " + _CHOICE_OF_BASH,
            '  if [ ${#COMPREPLY[@]} -eq 0 ]; then COMPREPLY=($(compgen -f -- "$cur")); fi',
            "}",
            "complete -o filenames -F _returnn_tf returnn-tf",
        ]
    )


def zsh(words: Words) -> str:
    """Return the script for zsh: that for bash, which zsh runs, but for ``compgen -W``, which selects nothing there."""
    body = bash(words).partition("\n")[2].replace(_CHOICE_OF_BASH, _CHOICE_OF_ZSH)
    return "\n".join(
        [
            '# completion of returnn-tf; put it into ~/.zshrc: eval "$(returnn-tf completion zsh)"',
            "autoload -U +X compinit && compinit",
            "autoload -U +X bashcompinit && bashcompinit",
            body,
        ]
    )


def fish(words: Words) -> str:
    """Return the script for fish."""
    lines = ["# completion of returnn-tf: returnn-tf completion fish > ~/.config/fish/completions/returnn-tf.fish"]
    add = "complete -c returnn-tf "
    for name, text in words.commands.items():
        lines.append(add + "-n __fish_use_subcommand -a %s -d %s" % (name, _fish(text)))
    of_config = "not __fish_seen_subcommand_from %s" % " ".join(name for name in words.commands if name != RUN)
    for name, options in words.options.items():
        where = of_config if name == RUN else "__fish_seen_subcommand_from %s" % name
        for option in options:
            values = words.values.get(option)
            more = " -x -a %s" % _fish(" ".join(values)) if values else ""
            lines.append(add + "-n '%s' -l %s%s" % (where, option[2:], more))
    for key, values in words.values.items():
        if key.startswith("++"):
            lines.append(add + "-n 'test (commandline -opc)[-1] = %s' -x -a %s" % (key, _fish(" ".join(values))))
    for name, names in words.names.items():
        lines.append(add + "-n '__fish_seen_subcommand_from %s' -a %s" % (name, _fish(" ".join(names))))
    lines.append(add + "-n 'string match -q -- \"++*\" (commandline -ct)' -a %s" % _fish(" ".join(words.settings)))
    return "\n".join(lines)


def _fish(text: str) -> str:
    return "'%s'" % text.replace("\\", "\\\\").replace("'", "\\'")


_SCRIPTS: Mapping[str, Callable[[Words], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


@register_command(
    "completion",
    "|".join(_SCRIPTS),
    "print a script that completes commands, options and names in a shell",
    details='  bash: eval "$(returnn-tf completion bash)" in ~/.bashrc\n'
    '  zsh:  eval "$(returnn-tf completion zsh)" in ~/.zshrc\n'
    "  fish: returnn-tf completion fish > ~/.config/fish/completions/returnn-tf.fish",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the script for a shell.

    :param args: its name
    :raises ConfigError: none, or an unknown one
    """
    if len(args) != 1 or args[0] not in _SCRIPTS:
        hint = did_you_mean(args[0], _SCRIPTS) if args else "returnn-tf completion bash"
        raise CommandError("completion: for which shell: %s? %s" % (", ".join(_SCRIPTS), hint))
    print(_SCRIPTS[args[0]](collect()))
    return 0
