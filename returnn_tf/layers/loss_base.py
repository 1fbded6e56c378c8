"""The base of all losses: options, how a value per frame becomes a sum, and by what a report divides it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Iterator, List, Mapping, Optional

from returnn_tf.config import ConfigError
from returnn_tf.layers.emit_context import EmitContext
from returnn_tf.layers.node import LossNode, Node
from returnn_tf.layers.options import option
from returnn_tf.ops.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


class LossPlanContext:
    """Given to `Loss.check`: templates only."""

    def __init__(self, node: Node, target: Optional[Node], behavior_version: int) -> None:
        self.node = node
        self.behavior_version = behavior_version
        self.output = node.output
        self.target = None if target is None else target.output

    def error(self, message: str) -> ConfigError:
        """To be raised; the compiler puts the layer path in front."""
        return ConfigError(message)


class LossContext:
    """Given to `Loss.value` and `Loss.error`: the values of the layer and of its target."""

    def __init__(self, loss_node: LossNode, ctx: EmitContext) -> None:
        self.loss_node = loss_node
        self.ctx = ctx
        self.node = ctx.node
        self.output = ctx.node.output
        self.target_node = loss_node.target
        self.train = ctx.train

    @property
    def target(self) -> Data:
        """Template of the target."""
        assert self.target_node is not None
        return self.target_node.output

    @property
    def output_value(self) -> Any:
        """The values of the layer."""
        return self.ctx.value(self.node)

    @property
    def target_value(self) -> Any:
        """The values of the target."""
        assert self.target_node is not None
        return self.ctx.value(self.target_node)

    def pre_activation(self, *names: str) -> Any:
        """The values before the activation, if the layer (or the one it copies) has one of these activations; else None."""
        noted = self.ctx.noted(self.node, "pre_activation")
        if noted is None or noted[1] not in names:
            return None
        return noted[0]

    # --- frames and sequences ---

    def frames(self, x: Any, data: Data, flatten: bool) -> Any:
        """[frames, features...] of the valid frames, or [batch, time, features...] if ``flatten`` is off.

        The frames are in the order of the sequences, so those of output and target belong together.
        """
        x, data = batch_major(x, data)
        if not flatten or data.batch_axis is None:
            return x
        time = frame_axis(data)
        if time is None:
            return x
        if data.dims[time].is_dynamic:
            return tf.boolean_mask(x, self.ctx.seq_mask_by_batch(data, time))
        return tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], axis=0))

    def lens(self, data: Data) -> Any:
        """[batch] lengths of the time axis; ones if there is none."""
        time = frame_axis(data)
        batch = self.ctx.lowering.get_size(data.dims[data.batch_axis]) if data.batch_axis is not None else 1
        if time is None:
            return tf.ones([batch], tf.int32)
        return tf.broadcast_to(self.ctx.lens(data.dims[time]), [batch])

    def sequences(self, x: Any, data: Data) -> Any:
        """[batch, time, features...]."""
        return batch_major(x, data)[0]


@dataclasses.dataclass(eq=False, repr=False)
class Loss:
    """What every loss can be told by ``loss_opts``.

    A loss gives its value as a sum over frames or sequences, and optionally an error in the same unit.
    """

    class_name: ClassVar[str] = ""
    #: Whether it compares the layer with a target; the default target is "classes".
    needs_target: ClassVar[bool] = True

    use_flatten_frames: bool = option(True, help="drop padded frames before computing; False: they count too")
    use_normalized_loss: bool = option(False, help="divide the loss in the objective by the number of frames")
    custom_norm_factor: Any = option(None, help="number or layer by which the loss is multiplied for reports")
    custom_inv_norm_factor: Any = option(None, help="layer whose sum divides the loss for reports", refs=True)
    scale: float = option(1.0, help="factor of the loss in the objective, together with loss_scale")

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Layer names which the loss needs beside its target and the options declared with ``refs``."""
        return iter(())

    def check(self, ctx: LossPlanContext) -> None:
        """Whether layer and target fit; no TensorFlow."""

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Scalar, summed over frames or sequences; None if this loss is only an error."""
        raise AssertionError("%s has no value()" % type(self).__name__)

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Scalar in the unit of `value`, or None if the loss defines none."""
        return None

    def count(self, ctx: LossContext) -> Any:
        """Float scalar: the number of frames (or sequences without time axis) by which reports divide."""
        if self.custom_inv_norm_factor is not None:
            return tf.cast(tf.reduce_sum(ctx.ctx.value(self.custom_inv_norm_factor)), tf.float32)
        data = ctx.target if ctx.target_node is not None else ctx.output
        return tf.cast(tf.reduce_sum(ctx.lens(data)), tf.float32)


def batch_major(x: Any, data: Data) -> Any:
    """The tensor and template with batch first, then time (if any), then the other axes, feature last."""
    order: List[int] = []
    if data.batch_axis is not None:
        order.append(data.batch_axis)
    time = frame_axis(data)
    if time is not None:
        order.append(time)
    rest = [i for i in range(data.rank) if i not in order and i != data.feature_axis]
    order += rest
    if data.feature_axis is not None and data.feature_axis not in order:
        order.append(data.feature_axis)
    return transpose(x, order), data.permuted(order)


def frame_axis(data: Data) -> Optional[int]:
    """The axis over which a frame-wise loss runs: time, if it is no feature axis."""
    axis = data.time_axis
    return None if axis is None or axis == data.feature_axis else axis
