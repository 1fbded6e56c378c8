"""``returnn-tf decode``: words from the posteriors of a CTC model, with a lexicon, a language model and hot words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.run import run as run_task
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.config.errors import CommandError
from returnn_tf.config.settings.decoding import DecodingSettings
from returnn_tf.engine.decoding.tuning import values_of
from returnn_tf.engine.search.output import formats

_PREFIX = "decode_"
_DOC = """
Decode the posteriors of a CTC model: prefix beam search with a lexicon, an n-gram model and hot words; or search with
them where the network has a loop with 'choice'. An option NAME is the setting decode_NAME; data and output are those of
task search.

    returnn-tf decode my.config --data dev --output words.ctm --format ctm
    returnn-tf decode my.config --lexicon words.txt --lm words.arpa --lm-scale 0.6 --hot-words names.txt
    returnn-tf decode my.config --lexicon words.txt --lm words.arpa --tune lm_scale=0.2:1.2:0.2 word_score=0,0.5,1
"""
#: Options of the command that stand for settings of other names.
_OTHERS = {
    "data": ("search_data", "NAME", "the dataset to decode; default: eval"),
    "output": ("search_output_file", "FILE", "the file to write"),
    "format": ("search_output_file_format", "NAME", "its format"),
    "load": ("load", "PREFIX", "path prefix of the checkpoint"),
    "epoch": ("load_epoch", "N", "epoch of the checkpoint; default: the newest one"),
}


def help_text(_: list[str]) -> str:
    """Return the text of ``--help``."""
    return _parser().format_help().rstrip()


@register_command(
    "decode",
    "CONFIG ... [--data NAME] [--output FILE] [--lexicon FILE] [--lm FILE] [--tune NAME=VALUES ...] [++key value ...]",
    "recognise words with a lexicon, a language model and hot words",
    own_help=help_text,
    group="use",
)
def run(args: list[str]) -> int:
    """Run task decode with the settings of the options.

    :param args: config files, options, ``++key value``
    :raises ConfigError: wrong arguments
    :raises DataError: a file does not fit the model
    """
    first = next((index for index, text in enumerate(args) if text.startswith("++")), len(args))
    given = _parser().parse_args(args[:first])
    return run_task([*given.config, *args[first:], *_overrides(given)])


def _overrides(given: argparse.Namespace) -> list[str]:
    settings = {setting: getattr(given, name) for name, (setting, _, _) in _OTHERS.items()}
    settings.update({name: getattr(given, name) for name in DecodingSettings.declared() if name != "decode_tune"})
    words = ["++task", "decode"]
    for name, value in settings.items():
        words += [] if value is None else ["++" + name, value]
    if given.decode_tune:
        words += ["++decode_tune", repr(_grid(given.decode_tune))]
    return words


def _grid(given: Sequence[str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for text in given:
        name, sign, values = text.partition("=")
        if not sign or name in found:
            problem = "is there twice" if sign else "has no values: an argument is NAME=VALUES"
            raise CommandError("decode: --tune: %r %s" % (name, problem))
        found[name] = values_of(values)
    return found


def _parser() -> CommandParser:
    parser = CommandParser("decode", _DOC)
    parser.add_argument("config", metavar="CONFIG", nargs="+", help="config files")
    for name, (_, metavar, text) in _OTHERS.items():
        known = ": " + ", ".join(formats()) if name == "format" else ""
        parser.add_argument("--" + name, metavar=metavar, help=text + known)
    for name, info in DecodingSettings.declared().items():
        flag = "--" + name[len(_PREFIX) :].replace("_", "-")
        more: dict[str, Any] = {"choices": list(info.choices)} if info.choices else {"metavar": "VALUE"}
        if name == "decode_tune":
            more = {"metavar": "NAME=VALUES", "nargs": "+"}
        default = "" if info.default in (None, "") else "; default: %s" % (info.default,)
        text = (info.help + default).replace("%", "%%")
        parser.add_argument(flag, dest=name, help=text, **more)
    return parser
