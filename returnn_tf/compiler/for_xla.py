"""``jit_compile``: graphs that XLA compiles when they are called, and what it says where it cannot."""

from __future__ import annotations

import re
from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.errors import DimError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.graph import check_numerics
from returnn_tf.logging.log import log
from returnn_tf.ops.xla import keep_compiled
from returnn_tf.util.lazy_tf import tf


class ForXla:
    """A concrete function that XLA compiles at the first call with tensors of these shapes.

    :param function: traced with ``jit_compile``
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, *args: Any) -> Any:
        """Run it.

        :raises ConfigError: XLA cannot compile it
        """
        try:
            return self._function(*args)
        except tf.errors.OpError as exc:
            if "tf2xla conversion failed" not in exc.message and "XLA_" not in exc.message:
                raise
            raise DimError(
                "jit_compile: XLA cannot compile this network: %s. Remove jit_compile." % _reason(exc.message)
            ) from exc


def _reason(message: str) -> str:
    """Return the message of XLA without the traceback of the op, and the name of the op."""
    first = message.strip().splitlines()[0]
    unknown = re.search(r"on XLA_\w+: (\w+)", first)
    reason = "it has no kernel of %s" % unknown.group(1) if unknown else first.split("[[{{")[0].rstrip(" .:")
    op = re.search(r"{{node ([^}]*)}}", message)
    return reason + (" (op %s)" % op.group(1) if op else "")


def prepare_for_xla(config: Config) -> None:
    """Get XLA ready for a network.

    :raises ConfigError: the config asks for what XLA leaves out
    """
    if check_numerics.option(config):
        raise DimError("jit_compile: XLA leaves out the checks of debug_add_check_numerics_*. Remove one of them.")
    if NetworkSettings(config).debug_print_layer_output:
        raise DimError("jit_compile: XLA leaves out what debug_print_layer_output prints. Remove one of them.")
    announce_xla()


def announce_xla() -> None:
    """Log the first XLA compilation and enable its cache."""
    text = "jit_compile: XLA compiles a step for each shape of a batch and keeps it in %s"
    log.write(3, text % keep_compiled(), once=True)
