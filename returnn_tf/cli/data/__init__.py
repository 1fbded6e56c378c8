"""``returnn-tf data info|dump|audio|...``: look at the datasets of a config, convert them, make corpora."""

from __future__ import annotations

from typing import Callable

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.data import audio, dump, info, oggzip, pieces, to_hdf
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.config.errors import FileError, did_you_mean

_ACTIONS: dict[str, tuple[Callable[[], CommandParser], Callable[[list[str]], int]]] = {
    "info": (info.parser, info.run),
    "dump": (dump.parser, dump.run),
    "audio": (audio.parser, audio.run),
    "to-hdf": (to_hdf.parser, to_hdf.run),
    "oggzip": (oggzip.parser, oggzip.run),
    "bpe": (pieces.bpe_parser, pieces.run_bpe),
    "sentencepiece": (pieces.sentencepiece_parser, pieces.run_sentencepiece),
}


def help_text() -> str:
    """Return the text of ``returnn-tf data --help``."""
    lines = ["usage: returnn-tf data %s ..." % "|".join(_ACTIONS), ""]
    lines += ["Look at the datasets of a config, convert them, make corpora and pieces of words.", ""]
    width = max(map(len, _ACTIONS))
    for name, (parser, _) in _ACTIONS.items():
        lines.append("  %-*s  %s" % (width, name, (parser().description or "").partition("\n")[0]))
    lines += ["", "All options of one of them: returnn-tf data %s --help" % next(iter(_ACTIONS))]
    return "\n".join(lines)


def help_of(args: list[str]) -> str:
    """Return the help of the action that the arguments name, else that of all."""
    return _ACTIONS[args[0]][0]().format_help() if args and args[0] in _ACTIONS else help_text()


@register_command(
    "data",
    "|".join(_ACTIONS) + " ...",
    "show, dump and convert datasets, make corpora of speech and pieces of words",
    own_help=help_of,
    group="start",
)
def run(args: list[str]) -> int:
    """Run one of the actions.

    :param args: its name and arguments
    :raises ConfigError: there is no such action
    """
    if not args or args[0] not in _ACTIONS:
        hint = did_you_mean(args[0], _ACTIONS) if args else "returnn-tf data info CONFIG [train]"
        raise FileError("data: %s? %s" % (", ".join(_ACTIONS), hint))
    return _ACTIONS[args[0]][1](args[1:])
