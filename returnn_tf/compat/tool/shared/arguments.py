"""Arguments that several tools have."""

from __future__ import annotations

import argparse
import itertools

from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.config.errors import CommandError
from returnn_tf.logging.log import log


def parse(parser: CommandParser, args: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the arguments of a tool.

    :return: the options, and all ``++key value`` among the arguments, for the config
    :raises ConfigError: an option is wrong
    """
    own: list[str] = []
    settings: list[str] = []
    rest = iter(args)
    for argument in rest:
        if not argument.startswith("++"):
            own.append(argument)
            continue
        settings.append(argument)
        if "=" not in argument:
            settings += itertools.islice(rest, 1)
    return parser.parse_args(own), settings


def natural(text: str) -> int:
    """Convert an option that counts from 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def last_seq(text: str) -> int:
    """Convert the number of the last sequence; -1 or ``inf``: all."""
    value = -1 if text.strip().lower() in ("inf", "+inf", "infinity") else int(float(text))
    if value < -1:
        raise argparse.ArgumentTypeError("must be a number from 0, or -1 for all")
    return value


def add_verbosity(parser: CommandParser, default: int = 4) -> None:
    """Add the option for the level of the log; `configure_log` applies it."""
    parser.add_argument(
        "--verbosity", metavar="N", type=int, default=default, help="level of the log, from 0 to 5 (%d)" % default
    )


def configure_log(verbosity: int) -> None:
    """Set the level of the log on the terminal.

    :raises ConfigError: there is no such level
    """
    try:
        log.configure(verbosity=[verbosity])
    except ValueError as exc:
        raise CommandError("--verbosity: %s" % exc) from None


def check_sources(where: str, given: dict[str, object]) -> None:
    """Check that exactly one of several options is given.

    :raises ConfigError: none or several are
    """
    names = [name for name, value in given.items() if value]
    if len(names) != 1:
        have = "got none" if not names else "got %s" % " and ".join(names)
        raise CommandError("%s: give one of %s; %s" % (where, ", ".join(given), have))
