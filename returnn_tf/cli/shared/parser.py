"""Parsers for subcommands with many options: argparse, with the error handling of this program."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from returnn_tf.config.errors import CommandError, did_you_mean, nearest_name


class CommandParser(argparse.ArgumentParser):
    """An ``argparse`` parser which raises instead of exiting. ``--help`` is handled before it is called.

    :param command: e.g. "native build"
    :param doc: description at the start of the help, printed verbatim
    """

    def __init__(self, command: str, doc: str) -> None:
        super().__init__(
            prog="returnn-tf " + command,
            description=doc.strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise if a value is not one of the choices; argparse calls this."""
        if action.choices is not None and value not in action.choices:
            hint = did_you_mean(value, [str(choice) for choice in action.choices], in_order=True)
            raise argparse.ArgumentError(action, "invalid choice: %r. %s" % (value, hint))

    def error(self, message: str) -> NoReturn:
        """Raise ``message`` as the user's mistake.

        :raises ConfigError: always
        """
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            given = message[len(prefix) :].split()[0].partition("=")[0]
            near = nearest_name(given, [text for action in self._actions for text in action.option_strings], cutoff=0.6)
            message += ". Did you mean %r?" % near if near else ""
        end = "" if message.endswith((".", "?")) else "."
        raise CommandError("%s: %s%s All options: %s --help" % (self.prog, message, end, self.prog))


def positive(text: str) -> int:
    """Convert the value of an option which counts something, from 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError("expected a whole number, not %r" % text) from None
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1, not %r" % text)
    return value
