"""``returnn-tf layers [CLASS]``: the layer classes and their options."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.layer_docs import describe_layer, list_layers
from returnn_tf.config import ConfigError


@register_command(
    "layers",
    "[CLASS ...]",
    "list all layer classes and losses, or explain some with their options",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all layer classes, or the reference of some.

    :param args: empty, or the names of classes
    """
    for name in args:
        if name.startswith("-"):
            raise ConfigError("layers: unknown option %r. returnn-tf layers [CLASS]" % name)
        print(describe_layer(name))
    if not args:
        print(list_layers())
    return 0
