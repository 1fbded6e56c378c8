"""The base of losses that compare output and target frame by frame."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.errors import TargetError
from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext, frame_axis, frame_order
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class Frames:
    """Output and target of one layer, axis by axis in the same order: batch, time, others, feature.

    :param order: axes of the layer output in that order
    :param data: template of the output in that order
    :param target: tensor; a dense one has the feature axis last, and zeros in padded frames
    :param sparse: whether the target holds labels
    :param mask: bool, broadcasts against the frames; None if all of them count
    """

    order: list[int]
    data: Data
    target: Any
    sparse: bool
    mask: Optional[Any]

    def arrange(self, x: Any, *, clean: bool = True) -> Any:
        """Bring a tensor to the layout of the layer output, in the order of the frames.

        :param clean: padded frames are set to 0, so that nothing in them gets into a gradient
        """
        x = transpose(x, self.order)
        if clean and self.mask is not None:
            x = tf.where(self.mask[..., None] if self.data.feature_axis is not None else self.mask, x, tf.zeros_like(x))
        return x

    def zero_padded(self, values: Any) -> Any:
        """Zero padded frames, [frames]."""
        return values if self.mask is None else tf.where(self.mask, values, tf.zeros_like(values))


@dataclasses.dataclass(eq=False, repr=False)
class FramewiseLoss(Loss):
    """A loss with one value per frame, summed over all frames that are not padded.

    The default error is the number of frames in which the greatest output is not the label (or the greatest target).
    """

    ignores_padding = True

    def check(self, ctx: LossPlanContext) -> object:
        """Check that target and output have the same axes, and that the output has features for labels."""
        assert ctx.target is not None
        output, target = ctx.output, ctx.target
        if output.sparse or not output.dtype.startswith("float"):
            raise ctx.error(
                "the loss %r needs dense float output, but it is %s. Put the loss on the layer with the scores."
                % (self.class_name, output)
            )
        if output.feature_axis is None:
            raise ctx.error(
                "the loss %r compares feature vectors, but the output %s has no feature axis. "
                "Mark one by a reinterpret_data layer, or use the loss 'as_is'." % (self.class_name, output)
            )
        if output.dim is not None and target.dim is not None and output.dim != target.dim:
            what = "labels" if target.sparse else "features"
            raise ctx.error(
                "the %s has %d outputs but the target %r has %d %s. Omit n_out, and it follows from the target."
                % (ctx.node.layer.class_name, output.dim, ctx.target_name, target.dim, what)
            )
        if not target.sparse and target.feature_axis is None:
            raise ctx.error(
                "the target %r neither is sparse (labels) nor has a feature axis: %s. Declare it with "
                "'sparse': True, or with a feature axis." % (ctx.target_name, target)
            )
        pair_axes(output, target, ctx.target_name)
        return None

    def frame_values(self, ctx: LossContext, frames: Frames) -> Any:
        """Compute the value of every frame, [frames]; padded ones may be arbitrary."""
        raise AssertionError("%s has no frame_values()" % type(self).__name__)

    def frame_errors(self, ctx: LossContext, frames: Frames) -> Optional[Any]:
        """Return 1.0 where the largest output is not at the target, [frames]."""
        best = tf.argmax(transpose(ctx.output_value, frames.order), axis=-1, output_type=tf.int32)
        if frames.sparse:
            wanted = tf.cast(frames.target, tf.int32)
        else:
            wanted = tf.argmax(frames.target, axis=-1, output_type=tf.int32)
        return tf.cast(tf.not_equal(best, wanted), ctx.float_dtype)

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the frames."""
        frames = self.frames(ctx)
        return tf.reduce_sum(frames.zero_padded(self.frame_values(ctx, frames)))

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the frames."""
        frames = self.frames(ctx)
        errors = self.frame_errors(ctx, frames)
        return None if errors is None else tf.reduce_sum(frames.zero_padded(errors))

    def unreduced_template(self, output: Data, float_dtype: str) -> Data:
        """Return the template of the output without its feature axis."""
        assert output.feature_axis is not None
        return output.without_axes([output.feature_axis]).replace(dtype=float_dtype, sparse_dim=None, vocab=None)

    def unreduced(self, ctx: LossContext, *, error: bool = False) -> Any:
        """Return the value of every frame; padded ones are arbitrary."""
        frames = self.frames(ctx)
        values = self.frame_errors(ctx, frames) if error else self.frame_values(ctx, frames)
        axes = [axis for axis in frames.order if axis != ctx.output.feature_axis]
        return transpose(values, sorted(range(len(axes)), key=axes.__getitem__))

    def frames(self, ctx: LossContext) -> Frames:
        """Align output and target; shared by value and error."""
        if "frames" not in ctx.cache:
            ctx.cache["frames"] = self._frames(ctx)
        frames: Frames = ctx.cache["frames"]
        return frames

    def _frames(self, ctx: LossContext) -> Frames:
        order = frame_order(ctx.output)
        data = ctx.output.permuted(order)
        outer = data if data.feature_axis is None else data.without_axes([data.feature_axis])
        target_order = pair_axes(ctx.output, ctx.target, "")
        target = transpose(ctx.target_value, target_order)
        for axis, target_axis in enumerate(target_order[: outer.rank]):
            target = _fit_frames(ctx, target, axis, outer, ctx.target.dims[target_axis])
        mask = ctx.masks(outer, outer.dynamic_axes)
        if mask is not None and not ctx.target.sparse:
            target = tf.where(mask[..., None], target, tf.zeros_like(target))
        return Frames(order, data, target, ctx.target.sparse, mask)


def _fit_frames(ctx: LossContext, target: Any, axis: int, outer: Data, dim: Any) -> Any:
    """Check the lengths if the dims differ, and cut or pad the target to the array size of the output."""
    wanted = outer.dims[axis]
    if wanted is dim or not (wanted.is_dynamic() or dim.is_dynamic()):
        return target
    lens, target_lens = tf.reshape(ctx.of_layer.lens(wanted), [-1]), tf.reshape(ctx.of_layer.lens(dim), [-1])
    deps = ctx.require(
        tf.equal(lens, target_lens),
        "the output axis %s and the axis %s of the target differ in their lengths. Both must have the same number of "
        "frames. %s If a label spans several frames, the loss is ctc, not ce."
        % (wanted, dim, _who_differs(wanted, dim)),
        frames_of_the_output=lens + 0 * target_lens,
        frames_of_the_target=target_lens + 0 * lens,
    )
    size = ctx.of_layer.size(wanted)
    with tf.control_dependencies(deps):
        begin = [slice(None)] * axis + [slice(0, size)]
        target = target[tuple(begin)]
    missing = size - tf.shape(target)[axis]
    return tf.pad(target, [[0, missing if i == axis else 0] for i in range(target.shape.rank)])


def _who_differs(output: Dim, target: Dim) -> str:
    """Return a hint for an axis of the output and one of the target whose lengths differ."""
    if output.expr is None and target.expr is None:
        return "They differ in the data: compare both by returnn-tf data dump."
    what = "the output" if output.expr is not None else "the target"
    text = (
        "Layers before %s change its lengths (%s): keep them, by padding 'same' without strides, or change both alike."
    )
    return text % (what, output if output.expr is not None else target)


def pair_axes(output: Data, target: Data, target_name: str) -> list[int]:
    """Return the axes of the target in the order of `frame_order` of the output; dense targets have features last.

    :raises ConfigError: if they have different axes
    """
    order = frame_order(output)
    outer = output.permuted(order)
    if outer.feature_axis is not None:
        outer = outer.without_axes([outer.feature_axis])
    inner = [i for i in range(target.rank) if target.sparse or i != target.feature_axis]
    frame = target.replace(dims=tuple(target.dims[i] for i in inner), feature_axis=None, time_axis=None)
    axis_of = {
        into: axis for axis, into in zip(inner, match_axes(frame, outer.replace(feature_axis=None))) if into is not None
    }
    rest = [axis for axis in inner if axis not in axis_of.values()]
    time = frame_axis(target)
    if time in rest:
        rest.insert(0, rest.pop(rest.index(time)))
    for into, dim in enumerate(outer.dims):
        if into not in axis_of and rest and (dim.size is None or target.dims[rest[0]].size in (None, dim.size)):
            axis_of[into] = rest.pop(0)
    if rest or len(axis_of) != outer.rank:
        raise TargetError(
            "the output %s and the target %r %s do not have the same axes besides the features: %s. Reduce or expand "
            "one of them, so that there is one target per frame of the output."
            % (output, target_name, target, _difference(outer, axis_of, target, rest))
        )
    result = [axis_of[into] for into in range(outer.rank)]
    if not target.sparse and target.feature_axis is not None:
        result.append(target.feature_axis)
    return result


def _difference(outer: Data, axis_of: Any, target: Data, rest: list[int]) -> str:
    only_output = [str(dim) for into, dim in enumerate(outer.dims) if into not in axis_of]
    only_target = [str(target.dims[axis]) for axis in rest]
    parts = []
    if only_output:
        parts.append("only the output has %s" % ", ".join(only_output))
    if only_target:
        parts.append("only the target has %s" % ", ".join(only_target))
    return " and ".join(parts)
