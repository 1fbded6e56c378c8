"""``returnn-tf schedules [NAME ...]``: the schedules of the learning rate and their options."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.reference import print_reference
from returnn_tf.engine.learning_rate.schedule import SCHEDULES, Schedule


@register_command(
    "schedules",
    "[NAME ...]",
    "list all schedules of the learning rate, or explain some with their options",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all schedules, or the reference of some."""
    return print_reference("schedules", args, SCHEDULES, base=Schedule, common="")
