"""The error when a loss or a gradient is NaN or Inf, and the search for the first layer which went bad."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from returnn_tf.config import DataError
from returnn_tf.util.lazy_tf import tf

_MAX_TAGS = 20


class NonFiniteError(DataError):
    """Loss or gradient of a step is NaN or Inf; no variable was changed by that step. Ends with exit code 1."""

    def __init__(self, step: int, total_loss: float, grad_norm: Optional[float], losses: Dict[str, float]) -> None:
        """
        :param step: global step, from 0
        :param total_loss: the objective
        :param grad_norm: L2 norm of the raw gradient, None outside of training
        :param losses: loss by name
        """
        self.step = step
        self.total_loss = total_loss
        self.grad_norm = grad_norm
        self.losses = losses
        self.seq_tags: List[str] = []
        self.layer: Optional[str] = None
        self.where = ""  # rank and host, if there are several
        self.own_finite = False  # whether those of this rank alone are finite
        self.common = False  # whether all ranks see it in the same step
        super().__init__()

    def at(self, seq_tags: Sequence[str], layer: Optional[str]) -> "NonFiniteError":
        """The same error with the sequences of the batch and the first layer with a bad value, as far as known."""
        self.seq_tags = [str(tag) for tag in seq_tags]
        self.layer = layer
        return self

    def __str__(self) -> str:
        where = " on %s" % self.where if self.where else ""
        parts = ["Step %i: the loss or its gradient is not finite%s" % (self.step, where)]
        parts.append("loss %s" % self.total_loss)
        if self.grad_norm is not None:
            parts.append("gradient norm %s" % self.grad_norm)
        parts.extend("%s: %s" % item for item in sorted(self.losses.items()))
        text = ", ".join(parts) + ". The parameters were not changed by this step."
        if self.layer is not None:
            text += " First layer with NaN or Inf in its output: %r." % self.layer
        elif self.seq_tags:
            text += " All layer outputs are finite, so it arises in a loss or in a gradient."
        if self.seq_tags:
            more = len(self.seq_tags) - _MAX_TAGS
            text += " Sequences: %s%s." % (
                ", ".join(self.seq_tags[:_MAX_TAGS]),
                " and %i more" % more if more > 0 else "",
            )
        return text + " Often a smaller learning_rate or gradient_clip_global_norm helps."


def first_bad_layer(net: Any, feed: Mapping[str, Any], *, step: int, train: bool = True) -> Optional[str]:
    """The first layer, in the order of the network, whose output has NaN or Inf; None if all are finite.

    Builds and runs the network once more, so it is meant for the moment before the program ends.

    :param net: Network
    :param feed: feed key -> array or tensor
    :param step: global train step (random masks depend on it)
    :param train: whether the step was one of training
    """
    names: List[str] = []
    tensors = net.convert_feed(feed)
    signature = {name: spec for name, spec in net.input_signature().items() if name in tensors}

    def check(feed: Dict[str, Any]) -> Any:
        graph = net.lower(feed, train=train, step=tf.constant(step, "int64"))
        flags = []
        for node, value in graph.lowering.values.items():
            if tf.is_tensor(value) and (value.dtype.is_floating or value.dtype.is_complex):
                names.append(node.path)
                flags.append(tf.reduce_all(tf.math.is_finite(tf.math.abs(value))))
        return tf.stack(flags) if flags else tf.constant([True])

    flags = tf.function(check, input_signature=[signature], autograph=False)(tensors).numpy()
    bad = [name for name, flag in zip(names, flags) if not flag]
    return bad[0] if bad else None
