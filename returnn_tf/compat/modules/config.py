"""``from returnn.config import Config, get_global_config, set_global_config``."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config import Config
from returnn_tf.config.errors import CodeError
from returnn_tf.config.user_code import config_in_use

register_compat(__name__, "returnn.config", "Config")

__all__ = ["Config", "get_global_config", "set_global_config"]


def get_global_config(raise_exception: bool = True) -> Any:
    """Return the config whose network is being computed, else the one whose file was read last.

    :raises ConfigError: there is none
    """
    config = config_in_use()
    if config is None and raise_exception:
        raise CodeError("get_global_config: no config was read.")
    return config


def set_global_config(config: Config) -> None:
    """Make a config the one that `get_global_config` returns."""
    config.become_global()
