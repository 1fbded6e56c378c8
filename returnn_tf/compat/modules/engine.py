"""``from returnn.tf.engine import get_global_engine``: an error that names the alternatives."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config.errors import CodeError

register_compat(__name__, "returnn.tf.engine", "TFEngine")

__all__ = ["get_global_engine"]


def get_global_engine() -> Any:
    """Raise an error that says what to use instead.

    :raises ConfigError: always; the state of a training run is not open to its config
    """
    raise CodeError(
        "get_global_engine: a config can't reach into the running engine. Functions of a config get what they need as "
        "arguments, e.g. the epoch; a task of your own (@register_task) can run a network with Network.from_config."
    )
