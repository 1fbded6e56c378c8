"""``returnn-tf settings [NAME ...]``: the settings of a config."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.config.errors import CommandError
from returnn_tf.config.settings.docs import describe_setting, list_settings


@register_command(
    "settings",
    "[NAME ...]",
    "list all settings of a config by topic, or explain some",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all settings, or the reference of some."""
    for name in args:
        if name.startswith("-"):
            raise CommandError("settings: unknown option %r. returnn-tf settings [NAME ...]" % name)
        print(describe_setting(name))
    if not args:
        print(list_settings())
    return 0
