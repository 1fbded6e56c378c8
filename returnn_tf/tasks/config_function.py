"""Tasks ``config:<name>`` and ``optional-config:<name>``: call a function of the config. ``nop``: nothing at all."""

from __future__ import annotations

from returnn_tf.config import Config, ConfigError, did_you_mean
from returnn_tf.config.settings import TaskSettings
from returnn_tf.tasks.registry import register_task


@register_task("config:")
def call_config_function(config: Config) -> int:
    """Calls the function which the config defines under the name; an int which it returns is the exit code."""
    name = TaskSettings(config).task.split(":", 1)[1]
    function = config.typed(name)
    if not callable(function):
        functions = [key for key in config.keys() if callable(config.typed(key))]
        hint = did_you_mean(name, functions)
        raise ConfigError("task config:%s: the config has no function %r. %s" % (name, name, hint))
    result = function()
    return result if isinstance(result, int) else 0


@register_task("optional-config:")
def call_optional_config_function(config: Config) -> int:
    """The same, but it is no error if there is no such function."""
    name = TaskSettings(config).task.split(":", 1)[1]
    return call_config_function(config) if name in config else 0


@register_task("nop")
def do_nothing(config: Config) -> int:
    """Reads the config, and that is all."""
    return 0
