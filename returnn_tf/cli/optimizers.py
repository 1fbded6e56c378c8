"""``returnn-tf optimizers [CONFIG ...] [NAME ...]``: the optimizers and their options."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.reference import print_reference
from returnn_tf.engine.update.optimizers import OPTIMIZERS, Optimizer


@register_command(
    "optimizers",
    "[CONFIG ...] [NAME ...]",
    "list all optimizers, or explain some with their options",
    details="  CONFIG   a config whose own classes count too",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all optimizers, or the reference of some."""
    return print_reference("optimizers", args, OPTIMIZERS, base=Optimizer, common="Options of every optimizer:")
