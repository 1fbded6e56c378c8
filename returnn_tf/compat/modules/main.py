"""``import returnn.__main__ as rnn``: functions by which scripts read a config and set up the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.log import log
from returnn_tf.config import Config
from returnn_tf.config.user_code import config_in_use

register_compat(__name__, "returnn.__main__")

__all__ = ["init_better_exchook", "init_config", "init_log", "init_thread_join_hack"]


def __getattr__(name: str) -> Any:
    if name == "config":
        return config_in_use()
    raise AttributeError("module 'returnn.__main__' has no attribute %r" % name)


def init_config(
    config_filename: Union[str, Sequence[str], None] = None,
    command_line_options: Sequence[str] = (),
    default_config: Optional[Mapping[str, Any]] = None,
    extra_updates: Optional[Mapping[str, Any]] = None,
) -> Config:
    """Read config files, and make the result the global config.

    :param config_filename: one file, or several
    :param command_line_options: pairs "++key", "value"
    :param default_config: values of keys that the files do not set
    :param extra_updates: values that win over those of the files
    """
    files = [config_filename] if isinstance(config_filename, str) else list(config_filename or ())
    options = list(command_line_options)
    if len(options) % 2 or not all(key.startswith("++") for key in options[::2]):
        raise ValueError("init_config: expected pairs '++key', 'value', got %r" % (options,))
    config = Config.from_files(files, [(key[2:], value) for key, value in zip(options[::2], options[1::2])])
    config.update({key: value for key, value in (default_config or {}).items() if key not in config})
    config.update(extra_updates or {})
    config.become_global()
    return config


def init_log() -> None:
    """Set up the log of the global config."""
    log.init_by_config(config_in_use())


def init_better_exchook() -> None:
    """Do nothing: the hook for exceptions of this process stays as it is."""


#: The same: threads end with the process.
init_thread_join_hack = init_better_exchook
