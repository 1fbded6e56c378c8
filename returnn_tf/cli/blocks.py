"""``returnn-tf blocks [NAME ...]``: the functions of `returnn_tf.blocks` and their options."""

from __future__ import annotations

from returnn_tf.blocks.block import BLOCKS, options_of, summary_of
from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.reference import read_configs
from returnn_tf.config.reference import listing, option_lines


@register_command(
    "blocks",
    "[NAME ...]",
    "list all blocks, functions that return parts of networks, or explain some with their options",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all blocks, or the reference of some.

    :raises ConfigError: unknown name
    """
    names = read_configs("blocks", args, BLOCKS)
    for name in names:
        function = BLOCKS.get(name, "blocks")
        head = "block %r: blocks.%s(name, *, option=value, ...)" % (name, name)
        options = option_lines([*options_of(function).values()])
        print("\n".join([head, "", summary_of(function), "", "Options:", *options]))
    if not names:
        print("\n".join(["`returnn-tf blocks NAME` shows the options:", *listing(BLOCKS.items())]))
    return 0
