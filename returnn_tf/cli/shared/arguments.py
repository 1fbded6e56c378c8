"""The command line of a run: config files, options, and ``++key value`` for any setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from returnn_tf.config.errors import CommandError, nearest_name

# short option -> setting
SHORT_OPTIONS = {
    "-a": "activation",
    "-b": "batch_size",
    "-c": "chunking",
    "-d": "description",
    "-e": "epoch",
    "-E": "eval",
    "-f": "gate_factors",
    "-g": "lreg",
    "-i": "save_interval",
    "-j": "dropout",
    "-k": "output_file",
    "-l": "log",
    "-L": "load",
    "-m": "momentum",
    "-n": "num_epochs",
    "-o": "order",
    "-p": "loss",
    "-q": "cache",
    "-r": "learning_rate",
    "-s": "hidden_sizes",
    "-t": "truncate",
    "-u": "device",
    "-v": "log_verbosity",
    "-w": "window",
    "-x": "task",
    "-y": "hidden_type",
    "-z": "max_seqs",
}
LONG_OPTIONS = {"--" + key: key for key in SHORT_OPTIONS.values()}
LONG_OPTIONS.update({"--verbose": "log_verbosity", "--max_sequences": "max_seqs"})
# option without a value -> (setting, its value)
FLAGS = {"--profile": ("profile", "True"), "--sanity": ("task", "sanity")}
_CONFIG = "--config"


@dataclass
class RunArguments:
    """Config files in order, and (key, text) to set before and after they are read."""

    files: list[str] = field(default_factory=list)
    overrides: list[tuple[str, str]] = field(default_factory=list)


def parse_arguments(args: Sequence[str]) -> RunArguments:
    """Parse the arguments after the program name.

    All arguments up to the first with "-" or "+" are config files.

    :raises ConfigError: for an unknown option, or a key without a value
    """
    parsed = RunArguments()
    rest = list(args)
    while rest and not rest[0].startswith(("-", "+")):
        parsed.files.append(rest.pop(0))
    while rest:
        argument = rest.pop(0)
        if argument in FLAGS:
            parsed.overrides.append(FLAGS[argument])
            continue
        option, equals, value = argument.partition("=")
        if argument.startswith("++"):
            key = option[2:]
            if equals:
                rest.insert(0, value)
        elif argument in SHORT_OPTIONS:
            key = SHORT_OPTIONS[argument]
        elif option in LONG_OPTIONS or option == _CONFIG:
            key = LONG_OPTIONS.get(option, "")
            if equals:
                rest.insert(0, value)
        else:
            raise CommandError(_unknown(argument))
        if not rest or option == "++":
            raise CommandError("command line: %r needs a value: ++key value" % argument)
        value = rest.pop(0)
        if argument.startswith("++") and value.startswith("+"):
            value = value[1:]  # "++key +-0.5": the minus must not be taken for an option
        if option == _CONFIG:
            parsed.files.append(value)
        else:
            parsed.overrides.append((key, value))
    return parsed


def _unknown(argument: str) -> str:
    if not argument.startswith(("-", "+")):
        return "command line: unexpected argument %r. Config files come first, then ++key value." % argument
    known = list(LONG_OPTIONS) + list(FLAGS) + list(SHORT_OPTIONS) + [_CONFIG]
    nearest = nearest_name(argument, known) if argument.startswith("--") else None
    hint = " Did you mean %r?" % nearest if nearest else ""
    return "command line: unknown option %r.%s Any setting: ++key value." % (argument, hint)
