"""``returnn-tf losses [CONFIG ...] [NAME ...]``: the losses and their options."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.reference import print_reference
from returnn_tf.graph.loss import Loss
from returnn_tf.graph.registry import LOSSES


@register_command(
    "losses",
    "[CONFIG ...] [NAME ...]",
    "list all losses, or explain some with their options",
    details="  CONFIG   a config whose own classes count too",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all losses, or the reference of some."""
    return print_reference("losses", args, LOSSES, base=Loss, common="Options of every loss:")
