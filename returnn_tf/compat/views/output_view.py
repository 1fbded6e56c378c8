"""The values of a layer before and after its activation, for user code."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.ops.activations import clipped_log, get_activation
from returnn_tf.util.lazy_tf import tf


class OutputWithActivation:
    """``x``, the values before an activation, and ``y``, those after it.

    :param act_func: name or function of the activation, or None
    :param y: the values after the activation, if these are known
    """

    def __init__(self, x: Any, act_func: Any = None, y: Optional[Any] = None) -> None:
        self.x = x
        self.act_func = act_func
        self.y = (get_activation(act_func)(x) if act_func else x) if y is None else y

    def is_softmax_act_func(self) -> bool:
        """Return whether the activation is a softmax."""
        return self.act_func == "softmax" or self.act_func is tf.nn.softmax

    def get_logits(self) -> Any:
        """Return values whose softmax is the output."""
        return self.x if self.is_softmax_act_func() else clipped_log(self.y)

    def get_log_output(self) -> Any:
        """Return the log of the output."""
        return tf.nn.log_softmax(self.x) if self.is_softmax_act_func() else clipped_log(self.y)
