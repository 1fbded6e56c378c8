"""The base of all losses: options, the planning and emitting contexts, and the normalisation of reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Optional

from returnn_tf.config.errors import ConfigError, TargetError
from returnn_tf.config.options import LayerOrNumber, LayerRef, option
from returnn_tf.graph.aux_values import PRE_ACTIVATION, Aux, T
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.same_labels import SameLabels, same_labels
from returnn_tf.graph.sealing import Sealable
from returnn_tf.graph.semantics import Semantics
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


class LossPlanContext:
    """The context passed to `Loss.check`: templates only.

    :param node: the layer with the loss
    :param train: whether the network is planned for training
    """

    def __init__(self, node: Node, target: Optional[Node], semantics: Semantics, train: bool = True) -> None:
        self.node = node
        self.train = train
        self.semantics = semantics
        self.behavior_version = semantics.behavior_version
        self.output = node.output
        self.target_node = target
        self.target = None if target is None else target.output

    @property
    def target_name(self) -> str:
        """Return the name of the target in the config: the data key or the layer."""
        assert self.target_node is not None
        return self.target_node.extern_key or self.target_node.path

    def error(self, message: str) -> ConfigError:
        """Return an error to raise; the compiler prepends the layer path."""
        return TargetError(message)


class LossContext:
    """The context passed to `Loss.value` and `Loss.error`: the values of the layer and of its target.

    :param ctx: that of the layer with the loss
    """

    def __init__(self, loss_node: LossNode, ctx: EmitContext) -> None:
        self.loss_node = loss_node
        #: The context of the layer with the loss.
        self.of_layer = ctx
        self.node = ctx.node
        self.output = ctx.node.output
        self.target_node = loss_node.target
        self.train = ctx.train
        #: Values that value and error share, e.g. the frames; lives as long as the context.
        self.cache: dict[str, Any] = {}

    @property
    def target(self) -> Data:
        """Return the template of the target."""
        assert self.target_node is not None
        return self.target_node.output

    @property
    def output_value(self) -> Any:
        """Return the values of the layer."""
        return self.of_layer.value(self.node)

    @property
    def target_value(self) -> Any:
        """Return the values of the target."""
        assert self.target_node is not None
        return self.of_layer.value(self.target_node)

    @property
    def seq_tags(self) -> Any:
        """Return the names of the sequences, string [batch], for a loss with ``needs_seq_tags``."""
        assert self.loss_node.seq_tags is not None
        return self.of_layer.value(self.loss_node.seq_tags)

    @property
    def lowering(self) -> Lowering:
        """Return the state of the emission of the graph."""
        return self.of_layer.lowering

    @property
    def behavior_version(self) -> int:
        """Return the behavior version of the config."""
        return self.of_layer.behavior_version

    @property
    def float_dtype(self) -> str:
        """Return the type of floats, see `Semantics`."""
        return self.of_layer.float_dtype

    def value(self, node: Node) -> Any:
        """Return the values of another layer, such as an option of the loss."""
        return self.of_layer.value(node)

    def aux(self, node: Node, aux: Aux[T]) -> Optional[T]:
        """Return an auxiliary value of a layer, or None."""
        return self.of_layer.aux(node, aux)

    def mask(self, data: Data, axis: int) -> Any:
        """Return the bool mask of the valid frames of a dynamic axis, with size 1 on all other axes but batch."""
        return self.of_layer.mask(data, axis)

    def masks(self, data: Data, axes: Sequence[int]) -> Any:
        """Return `mask` of all dynamic axes among these, combined; None if no axis is dynamic."""
        return self.of_layer.masks(data, axes)

    def pre_activation(self, *names: str) -> Any:
        """Return the values before the activation, if the layer (or the one it copies) has one of these; else None."""
        before = self.of_layer.aux(self.node, PRE_ACTIVATION)
        if before is None or not isinstance(before.activation, str) or before.activation.strip().lower() not in names:
            return None
        return before.values

    def lens(self, data: Data) -> Any:
        """Return the lengths of the time axis, [batch]; ones if there is no time axis."""
        time = frame_axis(data)
        batch = self.of_layer.size(data.dims[data.batch_axis]) if data.batch_axis is not None else 1
        if time is None:
            return tf.ones([batch], tf.int32)
        return tf.broadcast_to(self.of_layer.lens(data.dims[time]), [batch])

    def require(self, good: Any, message: str, **shown: Any) -> list[Any]:
        """Fail the step if a sequence of the batch violates the condition, see `EmitContext.require`."""
        return self.of_layer.require(good, message, **shown)


@dataclasses.dataclass(eq=False, repr=False)
class Loss(Sealable):
    """The options of every loss, given by ``loss_opts``.

    A loss returns its value as a sum over frames or sequences, and optionally an error in the same unit.
    """

    class_name: ClassVar[str] = ""
    #: Whether it compares the layer with a target; the default target is "classes".
    needs_target: ClassVar[bool] = True
    #: Whether it compares with a target if the layer has the option.
    takes_target: ClassVar[bool] = False
    #: Whether the padding of the values of the layer, and of the target, never matters.
    ignores_padding: ClassVar[bool] = False
    #: Whether the value for a sequence depends on the other sequences of the batch.
    mixes_sequences: ClassVar[bool] = False
    #: Whether it needs the names of the sequences.
    needs_seq_tags: ClassVar[bool] = False
    #: Whether the layer has a blank label in addition to those of the target.
    has_blank: ClassVar[bool] = False

    use_flatten_frames: bool = option(
        True, help="how padded frames are left out of the sum", inert="padded frames never count, either way"
    )
    use_normalized_loss: bool = option(False, help="divide the loss in the objective by the number of frames")
    custom_norm_factor: Optional[LayerOrNumber] = option(
        None, help="number or layer that multiplies the sum for reports", refs=True
    )
    custom_inv_norm_factor: Optional[LayerRef] = option(
        None, help="layer whose sum divides the loss for reports", refs=True
    )
    scale: float = option(1.0, help="weight of the loss in the objective, on top of loss_scale")

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layer names that the loss needs besides its target and the options declared with ``refs``."""
        return iter(())

    def check(self, ctx: LossPlanContext) -> object:
        """Check that layer and target fit; no TensorFlow.

        :return: what the other methods need of what was found, as `LossNode.found`; most need nothing
        :raises ConfigError: by ``ctx.error``
        """

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Return the scalar loss, summed over frames or sequences; None if this loss is only an error."""
        raise AssertionError("%s has no value()" % type(self).__name__)

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Return the scalar error in the unit of `value`, or None if the loss defines none."""
        return None

    def uniform_value(self, node: LossNode) -> Optional[float]:
        """Return the value per frame if all labels have the same probability; None if that depends on the data."""
        return None

    def same_labels(self, node: LossNode) -> Iterator[SameLabels]:
        """Return that the labels of the layer are those of the target, if both have labels and are compared by them."""
        if node.target is None or not node.target.output.sparse:
            return iter(())
        output, target = node.owner.output, node.target.output
        alike = output.sparse or self.has_blank or output.dim == target.dim
        return same_labels(output, target, self.blank) if alike else iter(())

    @property
    def blank(self) -> Optional[int]:
        """Return the index of the blank, negative from the end, of a loss that has one."""
        return None

    def unreduced_template(self, output: Data, float_dtype: str) -> Data:
        """Return the template of `unreduced`, for the layer "loss".

        :param float_dtype: see `Semantics`
        :raises ConfigError: if this loss has no values before the sum
        """
        raise TargetError("the loss %r has no values per frame or sequence." % self.class_name)

    def unreduced(self, ctx: LossContext, *, error: bool = False) -> Any:
        """Return the values (or errors) before the sum, in the layout of `unreduced_template`."""
        raise AssertionError("%s has no unreduced()" % type(self).__name__)

    def count(self, ctx: LossContext) -> Any:
        """Return the number of frames (or sequences without time axis) that reports divide by, float scalar."""
        if self.custom_inv_norm_factor is not None:
            return tf.cast(tf.reduce_sum(ctx.value(self.custom_inv_norm_factor)), ctx.float_dtype)
        if isinstance(self.custom_norm_factor, Node):
            return 1.0 / tf.cast(tf.reduce_sum(ctx.value(self.custom_norm_factor)), ctx.float_dtype)
        if self.custom_norm_factor is not None:
            return tf.constant(1.0 / self.custom_norm_factor, ctx.float_dtype)
        data = ctx.target if ctx.target_node is not None else ctx.output
        return tf.cast(tf.reduce_sum(ctx.lens(data)), ctx.float_dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class LossNode:
    """A loss of a layer in a plan.

    :param name: as reported: the path of the layer
    :param target: the node with the reference, or None
    :param owner: the layer that it is on
    :param seq_tags: the input of the names of the sequences, for a loss with ``needs_seq_tags``
    :param found: what `Loss.check` returned
    """

    name: str
    loss: Loss
    target: Optional[Node]
    owner: Node
    scale: float = 1.0
    seq_tags: Optional[Node] = None
    found: object = None


def sparse_hint(ctx: LossPlanContext) -> str:
    """Return a hint on the declaration of a data key that is a target without labels, for an error; "" for a layer."""
    target, key = ctx.target, ctx.target_node.extern_key if ctx.target_node is not None else None
    if target is None or key is None or target.sparse:
        return ""
    size = target.feature_dim.size if target.feature_dim is not None else None
    read = {node.extern_key: node.output for node in ctx.node.all_deps() if node.extern_key is not None}
    labels = sorted(other for other, data in read.items() if data.sparse)
    if labels and key not in read:
        text = " The network reads %r, which has labels, to predict %r, which has features: swap source and target."
        return text % (labels[0], key)
    if key in read:
        return " The network reads %r itself: name the data key with the labels as target." % key
    return " If these are labels, write extern_data[%r] = {'dim': %s, 'sparse': True}." % (
        key,
        size or "NUMBER_OF_LABELS",
    )


def frame_order(data: Data) -> list[int]:
    """Return the axes with batch first, then time (if any), then the others, feature last."""
    order: list[int] = []
    if data.batch_axis is not None:
        order.append(data.batch_axis)
    time = frame_axis(data)
    if time is not None:
        order.append(time)
    order += [i for i in range(data.rank) if i not in order and i != data.feature_axis]
    if data.feature_axis is not None:
        order.append(data.feature_axis)
    return order


def batch_major(x: Any, data: Data) -> Any:
    """Return the tensor and the template in the order of `frame_order`."""
    order = frame_order(data)
    return transpose(x, order), data.permuted(order)


def frame_axis(data: Data) -> Optional[int]:
    """Return the axis that a frame-wise loss runs over: time, unless it is a feature axis."""
    axis = data.time_axis
    return None if axis is None or axis == data.feature_axis else axis
