"""The reference texts that several commands print."""

from __future__ import annotations

import os
from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.reference import describe, listing
from returnn_tf.config.registry import Registry


def print_reference(command: str, args: list[str], registry: Registry[Any], **facts: Any) -> int:
    """Print all entries of a registry, or the reference of some.

    :param args: config files whose own classes count too, and names
    :param facts: for `describe`
    :raises ConfigError: unknown name
    :return: exit code
    """
    names = read_configs(command, args, registry)
    for name in names:
        print(describe(registry, name, command, **facts))
    if not names:
        print("\n".join(["`returnn-tf %s NAME` shows the options:" % command, *listing(registry.items())]))
    return 0


def read_configs(command: str, args: list[str], *registries: Registry[Any]) -> list[str]:
    """Read the config files among the arguments, which registers the classes that they define.

    An argument is one if it has a dot or a slash, as in ``my.config``, or is a file and no name of an entry.

    :param registries: with the entries that it explains
    :return: the other arguments
    :raises ConfigError: unknown option, or a config can't be read
    """
    for argument in args:
        if argument.startswith("-"):
            raise CommandError(
                "%s: unknown option %r. returnn-tf %s [CONFIG ...] [NAME ...]" % (command, argument, command)
            )
    known = [argument for argument in args if any(argument in registry for registry in registries)]
    files = [
        argument
        for argument in args
        if "." in argument or os.sep in argument or (argument not in known and os.path.isfile(argument))
    ]
    Config.from_files(files)
    return [argument for argument in args if argument not in files]
