"""Error for a NaN or Inf loss or gradient, and the search for the first layer with such values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.compiler.feed_function import FeedFunction
from returnn_tf.compiler.network import Network
from returnn_tf.config import DataError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.util.lazy_tf import tf

_MAX_TAGS = 20
_DATA = "data"  # path of the input with this key; for other keys it is data:<key>


class NonFiniteError(DataError):
    """Loss or gradient of a step is NaN or Inf; the step changed no variable. Ends with exit code 1.

    :param step: global step, from 0
    :param grad_norm: L2 norm of the raw gradient, None outside of training
    :param losses: loss by name
    """

    class_topic = "nan"

    def __init__(self, step: int, total_loss: float, grad_norm: Optional[float], losses: dict[str, float]) -> None:
        self.step = step
        self.total_loss = total_loss
        self.grad_norm = grad_norm
        self.losses = losses
        self.seq_tags: list[str] = []
        self.layer: Optional[str] = None  # or the input, see `first_bad_layer`
        self.where = ""  # rank and host, if there are several
        self.own_finite = False  # whether loss and gradient of this rank are finite
        self.common = False  # whether all ranks see it in the same step
        super().__init__()

    def at(self, seq_tags: Sequence[str], layer: Optional[str]) -> NonFiniteError:
        """Return the same error with the sequences of the batch and the first bad layer, if known."""
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
        key = data_key(self.layer)
        if key is not None:
            text += " The data itself has NaN or Inf, in the key %r: check these sequences in the dataset." % key
        elif self.layer is not None:
            text += " First layer with NaN or Inf in its output: %r." % self.layer
        elif self.seq_tags:
            text += " All layer outputs are finite, so it arises in a loss or in a gradient."
        if self.seq_tags:
            more = len(self.seq_tags) - _MAX_TAGS
            text += " Sequences: %s%s." % (
                ", ".join(self.seq_tags[:_MAX_TAGS]),
                " and %i more" % more if more > 0 else "",
            )
        return text + (" Often a smaller learning_rate or gradient_clip_global_norm helps." if key is None else "")


def data_key(path: Optional[str]) -> Optional[str]:
    """Return the data key of the input with this path; None if it is the path of a layer."""
    if path == _DATA:
        return _DATA
    return path[len(_DATA) + 1 :] if path is not None and path.startswith(_DATA + ":") else None


def first_bad_layer(net: Network, feed: Mapping[str, Any], *, step: int, train: bool = True) -> Optional[str]:
    """Return the first input or layer, in network order, whose output has NaN or Inf; None if all are finite.

    Inputs are checked before all layers, which inherit their values. Frames beyond the end of a sequence are considered
    only if all others are finite. Builds and runs the network again, so it is meant for the end of a failed run.

    :param feed: feed key -> array or tensor
    :param step: global train step (random masks depend on it)
    :param train: whether the step was one of training
    :return: the path of the layer; ``data`` or ``data:<key>`` for an input
    """
    names: list[str] = []

    def check(feed: dict[str, Any]) -> Any:
        graph = net.lower(feed, train=train, step=tf.constant(step, "int64"))
        flags = [tf.constant([True, True])]
        for node, value in graph.lowering.values.outputs.items():
            if tf.is_tensor(value) and (value.dtype.is_floating or value.dtype.is_complex):
                names.append(node.path)
                flags.append(_finite(EmitContext(node, graph.lowering), value))
        return tf.stack(flags)

    flags = FeedFunction(net.feed_format(), check)(feed).numpy()[1:]
    for within in (True, False):
        for name, (in_sequences, everywhere) in zip(names, flags):
            if not (in_sequences if within else everywhere):
                return name
    return None


def _finite(ctx: EmitContext, value: Any) -> Any:
    """Return whether an output is finite, bool [2]: within the sequences, and including the padding."""
    good, data = tf.math.is_finite(tf.math.abs(value)), ctx.output
    known = [axis for axis in data.dynamic_axes if ctx.has_lens(data.dims[axis]) and ctx.knows_mask(data, [axis])]
    mask = ctx.masks(data, known)
    within = good if mask is None else tf.logical_or(good, tf.logical_not(mask))
    return tf.stack([tf.reduce_all(within), tf.reduce_all(good)])
