"""Tasks ``config:<name>`` and ``optional-config:<name>``: call a function of the config. ``nop``: do nothing."""

from __future__ import annotations

from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, did_you_mean
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.tasks.registry import register_task


@register_task("config:")
def call_config_function(config: Config) -> int:
    """Call the function of this name in the config; if it returns an int, that is the exit code."""
    name = TaskSettings(config).task.split(":", 1)[1]
    function = config.typed(name)
    if not callable(function):
        functions = [key for key in config.keys() if callable(config.typed(key))]
        hint = did_you_mean(name, functions)
        raise CommandError("task config:%s: the config has no function %r. %s" % (name, name, hint))
    result = function()
    return result if isinstance(result, int) else 0


@register_task("optional-config:")
def call_optional_config_function(config: Config) -> int:
    """Call the function of this name in the config, if there is one."""
    name = TaskSettings(config).task.split(":", 1)[1]
    return call_config_function(config) if name in config else 0


@register_task("nop")
def do_nothing(config: Config) -> int:
    """Do nothing; the config has been read."""
    return 0
