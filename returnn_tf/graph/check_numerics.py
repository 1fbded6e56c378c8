"""Checks for NaN and Inf: ``debug_add_check_numerics_ops``, ``debug_add_check_numerics_on_output``."""

from __future__ import annotations

from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.graph.layer import Node
from returnn_tf.util.lazy_tf import tf

#: Which layers are checked: those with ``is_output_layer`` or a loss, and "output"; or all of them.
OUTPUTS, ALL = "outputs", "all"


def option(config: Config) -> str:
    """Return the choice of the config: ``ALL``, ``OUTPUTS``, or "" for no checks."""
    if NetworkSettings(config).debug_add_check_numerics_ops:
        return ALL
    return OUTPUTS if NetworkSettings(config).debug_add_check_numerics_on_output else ""


def checked_output(node: Node, value: Any, which: str) -> Any:
    """Return the output of a layer, with an assertion that names the layer if it contains NaN.

    Inf passes, since masked scores are -Inf; an unintended one shows up as NaN or in a loss.

    :param which: result of `option`
    """
    wanted = which == ALL or (which == OUTPUTS and _is_output(node))
    if not wanted or not value.dtype.is_floating:
        return value
    return _with_assertion(
        value,
        tf.logical_not(tf.reduce_any(tf.math.is_nan(value))),
        "Layer %r (class %r): NaN in its output. Its sources: %s."
        % (node.path, node.layer.class_name, ", ".join(source.path for source in node.sources) or "none"),
    )


def checked_finite(value: Any, what: str) -> Any:
    """Return a loss or a gradient, with an assertion that it contains neither NaN nor Inf.

    :param what: description for the message, e.g. "the loss of layer 'output'"
    """
    return _with_assertion(value, tf.reduce_all(tf.math.is_finite(value)), "NaN or Inf in %s." % what)


def _is_output(node: Node) -> bool:
    return node.path == "output" or bool(node.layer.is_output_layer) or bool(node.layer.loss)


def _with_assertion(value: Any, good: Any, message: str) -> Any:
    with tf.control_dependencies([tf.debugging.Assert(good, [message])]):
        return tf.identity(value)
