"""Parsers for subcommands with many options: argparse, with the error handling of this program."""

from __future__ import annotations

import argparse
from typing import NoReturn

from returnn_tf.config import ConfigError, nearest_name


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

    def error(self, message: str) -> NoReturn:
        """Raise ``message`` as the user's mistake.

        :raises ConfigError: always
        """
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            given = message[len(prefix) :].split()[0].partition("=")[0]
            near = nearest_name(given, [text for action in self._actions for text in action.option_strings], cutoff=0.6)
            message += ". Did you mean %r?" % near if near else ""
        raise ConfigError("%s: %s. All options: %s --help" % (self.prog, message, self.prog))
