"""``returnn-tf layers [CONFIG ...] [CLASS ...]``: the layer classes and their options."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.layer_docs import describe_layer, list_layers
from returnn_tf.cli.shared.reference import read_configs
from returnn_tf.graph.registry import LAYERS, LOSSES


@register_command(
    "layers",
    "[CONFIG ...] [CLASS ...]",
    "list all layer classes and losses, or explain some with their options",
    details="  CONFIG   a config whose own classes count too",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all layer classes, or the reference of some.

    :param args: config files, and the names of classes
    """
    names = read_configs("layers", args, LAYERS, LOSSES)
    for name in names:
        print(describe_layer(name))
    if not names:
        print(list_layers())
    return 0
