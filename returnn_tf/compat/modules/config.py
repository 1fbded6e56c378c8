"""``from returnn.config import Config, get_global_config, set_global_config``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config import Config
from returnn_tf.config.errors import CodeError
from returnn_tf.config.user_code import config_in_use, using_config

register_compat(__name__, "returnn.config", "Config")

__all__ = ["Config", "get_global_config", "global_config_ctx", "set_global_config"]


def get_global_config(
    raise_exception: bool = True, *, auto_create: bool = False, return_empty_if_none: bool = False
) -> Any:
    """Return the config whose network is being computed, else the one whose file was read last.

    :param raise_exception: whether it is an error if there is none; otherwise the result is None
    :param auto_create: make an empty config the global one if there is none
    :param return_empty_if_none: return an empty config if there is none
    :raises ConfigError: there is none
    """
    config = config_in_use()
    if config is None and (auto_create or return_empty_if_none):
        config = Config()
        if auto_create:
            config.become_global()
    if config is None and raise_exception:
        raise CodeError("get_global_config: no config was read.")
    return config


def set_global_config(config: Config) -> None:
    """Make a config the one that `get_global_config` returns."""
    config.become_global()


@contextlib.contextmanager
def global_config_ctx(config: Config) -> Iterator[Config]:
    """Make a config the one that `get_global_config` returns within the context."""
    with using_config(config):
        yield config
