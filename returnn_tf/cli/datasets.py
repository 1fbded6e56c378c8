"""``returnn-tf datasets [CONFIG ...] [NAME ...]``: the dataset classes and their options."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.reference import print_reference
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.registry import DATASETS


@register_command(
    "datasets",
    "[CONFIG ...] [NAME ...]",
    "list all dataset classes, or explain some with their options",
    details="  CONFIG   a config whose own classes count too",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all dataset classes, or the reference of some."""
    return print_reference(
        "datasets", args, DATASETS, options="Options", base=Dataset.Options, common="Options of every dataset:"
    )
