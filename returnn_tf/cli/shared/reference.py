"""The reference texts that several commands print."""

from __future__ import annotations

from typing import Any

from returnn_tf.config import ConfigError
from returnn_tf.config.reference import describe, listing
from returnn_tf.config.registry import Registry


def print_reference(command: str, args: list[str], registry: Registry[Any], **facts: Any) -> int:
    """Print all entries of a registry, or the reference of some.

    :param command: its name
    :param args: empty, or names
    :param facts: for `describe`
    :raises ConfigError: unknown name
    :return: exit code
    """
    for name in args:
        if name.startswith("-"):
            raise ConfigError("%s: unknown option %r. returnn-tf %s [NAME ...]" % (command, name, command))
        print(describe(registry, name, command, **facts))
    if not args:
        print("\n".join(["`returnn-tf %s NAME` shows the options:" % command, *listing(registry.items())]))
    return 0
