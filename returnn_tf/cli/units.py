"""``returnn-tf units [CONFIG ...] [NAME ...]``: the recurrent units and their options."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.reference import print_reference
from returnn_tf.ops.cells import UNITS, Cell


@register_command(
    "units",
    "[CONFIG ...] [NAME ...]",
    "list all recurrent units, or explain some with their options",
    details="  CONFIG   a config whose own classes count too",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all recurrent units, or the reference of some."""
    return print_reference("units", args, UNITS, options="Options", base=Cell.Options, common="Options of every unit:")
