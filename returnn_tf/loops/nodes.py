"""Layers that connect a step network with the outside: slices, earlier values, accumulated values. Not for configs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Optional

from returnn_tf.config.errors import LoopError
from returnn_tf.graph.aux_values import OnExit
from returnn_tf.graph.block_end import frame_before
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.loops.plan import InitialOutput
from returnn_tf.ops.frames.shape import move_axis, to_layout
from returnn_tf.ops.frames.windows import axis_slice
from returnn_tf.tensor import Beam, Data, Dim, DimKind, batch_dim
from returnn_tf.util.lazy_tf import tf


class EnterLayer(Layer):
    """A sequence from outside, for layers that are computed for all steps at once: its time axis is the loop axis.

    :param axis: the axis of the source that the loop runs over
    :param loop_dim: the dim of that axis inside
    :param declared: the dim that the config declares the axis to be, if it has another one
    """

    class_name = "enter"
    is_connector = True

    def __init__(self, axis: int, loop_dim: Dim, declared: Optional[Dim] = None) -> None:
        super().__init__()
        self._axis, self._loop_dim, self._declared = axis, loop_dim, declared

    @property
    def _loop(self) -> str:
        return self.node.path.rpartition("/")[0]

    def template(self, ctx: Any) -> Data:
        """Infer the output: the loop axis is not marked as time inside."""
        data = self.source.output
        time = data.time_axis
        return data.with_dim(self._axis, self._loop_dim).replace(time_axis=None if time == self._axis else time)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op, or cut the frames to the steps of the loop if these have other lengths."""
        x, dim = ctx.source(), self.source.output.dims[self._axis]
        if dim.as_kind(DimKind.LOOP) is self._loop_dim or not ctx.has_lens(self._loop_dim):
            return x
        if self._declared is not None:
            x = ctx.with_same_lens(x, dim, self._declared, "The loop names it by its option axis.")
        size, steps = ctx.size(dim), ctx.size(self._loop_dim)
        text = "Layer %r: %r has fewer frames than the loop has steps. Longest sequence and steps:"
        text %= (self._loop, self.source.path)
        with tf.control_dependencies([tf.debugging.Assert(size >= steps, [text, size, steps])]):
            return tf.gather(x, tf.range(steps), axis=self._axis)


class LoopLengthLayer(Layer):
    """The number of steps of a loop that only has a limit: it is the same for all sequences.

    :param dim: of the steps, which this layer defines
    :param steps: function of the `EmitContext` that returns the number
    """

    class_name = "length"
    is_connector = True

    def __init__(self, dim: Dim, steps: Any) -> None:
        super().__init__()
        self._dim, self._steps = dim, steps

    def template(self, ctx: Any) -> Data:
        """Infer the output: int32, scalar."""
        return Data((), "int32")

    def emit(self, ctx: EmitContext) -> Any:
        """Define the lengths of the dim."""
        steps = self._steps(ctx)
        ctx.define_lens(self._dim, steps, steps)
        return steps


class ExitLayer(Layer):
    """A value of all steps, seen from outside: the loop axis comes first and is the time axis.

    :param time_dim: the dim of the loop axis outside
    """

    class_name = "exit"
    is_connector = True

    def __init__(self, loop_dim: Dim, time_dim: Dim) -> None:
        super().__init__()
        self._loop_dim, self._time_dim = loop_dim, time_dim

    def template(self, ctx: Any) -> Data:
        """Infer the output: unchanged if the value is the same in all steps."""
        data = self.source.output
        return self.outside(data)

    def outside(self, data: Data) -> Data:
        """Return the template of a value of all steps as it is outside."""
        if not data.axes_of(self._loop_dim):
            return data
        return data.permuted(self.order_outside(data)).with_dim(0, self._time_dim).replace(time_axis=0)

    def ignores_padding(self) -> bool:
        """Return True: frames stay what they are."""
        return True

    def order_outside(self, data: Data) -> list[int]:
        """Return the axes of a value of all steps in their order outside."""
        steps = data.axes_of(self._loop_dim)
        return steps + [axis for axis in range(data.rank) if axis not in steps]

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a transpose, also of the values before an activation."""
        x = ctx.source()
        axes = self.source.output.axes_of(self._loop_dim)
        if not axes:
            return x
        rank, axis = self.source.output.rank, axes[0]
        for aux, value in ctx.lowering.values.aux.get(self.source, {}).items():
            if aux.on_exit is OnExit.MOVE:
                ctx.set_aux(self.node, aux, aux.each(lambda x: move_axis(x, rank, axis, 0), value))
        return move_axis(x, rank, axis, 0)


class StepSliceLayer(Layer):
    """The current step of a value that is known for all steps. The loop sets the tensor."""

    class_name = "slice of the step"
    is_connector = True

    def __init__(self, loop_dim: Dim) -> None:
        super().__init__()
        self.loop_dim = loop_dim

    def template(self, ctx: Any) -> Data:
        """Infer the output without the loop axis."""
        data = self.source.output
        return data.without_axes(data.axes_of(self.loop_dim))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit nothing; the loop provides the value."""
        return ctx.lowering.loop.inputs[ctx.node]


class PrevLayer(Layer):
    """The value of a layer in the previous step. The loop carries it.

    :param of: name of the layer
    """

    class_name = "prev"
    is_connector = True

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of = of

    def emit(self, ctx: EmitContext) -> Any:
        """Emit nothing; the loop provides the value."""
        return ctx.lowering.loop.inputs[ctx.node]


class ShiftLayer(Layer):
    """The previous step's value of a value known for all steps: shifted by one, with the initial output in front.

    :param initial: the value of ``prev:`` in the first step
    :param frame: template of one step, which may have more axes than the source
    """

    class_name = "prev"
    is_connector = True

    def __init__(self, loop_dim: Dim, initial: InitialOutput, frame: Data) -> None:
        super().__init__()
        self._loop_dim, self._initial, self._frame = loop_dim, initial, frame

    def template(self, ctx: Any) -> Data:
        """Return the template of the source; a value equal in all steps still differs in the first one."""
        data = self.source.output
        if self._frame.rank > data.without_axes(data.axes_of(self._loop_dim)).rank:
            data = self._frame
        return data if self._loop_dim in data.dims else data.with_axis(0, self._loop_dim)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit concatenation with the initial value, the last step dropped."""
        data: Data = self.node.output
        x = ctx.source()
        if self._loop_dim not in self.source.output.dims:
            x = tf.repeat(x[None], ctx.size(self._loop_dim), axis=0)
        axis = data.dims.index(self._loop_dim)
        size = ctx.size(self._loop_dim)
        if data.rank > x.shape.rank:
            steps = self.source.output
            steps = steps if self._loop_dim in steps.dims else steps.with_axis(0, self._loop_dim)
            x = to_layout(x, steps, data)
            shape = [tf.shape(x)[axis] if i == axis else size for i, size in enumerate(ctx.shape(data))]
            x = tf.broadcast_to(x, tf.stack(shape))
        x = self._with_checked_steps(x, axis, size)
        first = self._initial.emit(ctx, data.without_axes([axis]))
        first = tf.expand_dims(frame_before(ctx, data, axis, first, x), axis)
        first = axis_slice(first, axis, 0, tf.minimum(size, 1))  # none if there are no steps
        rest = axis_slice(x, axis, 0, tf.maximum(size - 1, 0))
        return tf.concat([first, rest], axis=axis)

    def _with_checked_steps(self, x: Any, axis: int, size: Any) -> Any:
        """Return the values of the source; a target with different lengths may have too few."""
        followed = self.source.layer.followed_dims
        if all(dim.as_kind(DimKind.LOOP) is self._loop_dim for dim in followed):
            return x
        steps = tf.shape(x)[axis]
        text = (
            "Layer %r: the target has fewer labels than the loop has steps: the lengths of the target and of the "
            "source of the loop must be the same. Longest target and steps:" % self.source.path
        )
        with tf.control_dependencies([tf.debugging.Assert(steps >= size - 1, [text, steps, size])]):
            return tf.identity(x)


class StepIndexLayer(Layer):
    """``:i``, the step index from 0. In a loop the loop sets it, elsewhere it is a range over the loop axis."""

    class_name = "step index"
    is_connector = True

    def __init__(self, loop_dim: Optional[Dim]) -> None:
        super().__init__()
        self._loop_dim = loop_dim

    def template(self, ctx: Any) -> Data:
        """Infer the output: int32, scalar in a step."""
        return Data(() if self._loop_dim is None else (self._loop_dim,), "int32")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a scalar, or [steps]."""
        if self._loop_dim is not None and ctx.continues:
            raise LoopError("%r counts the steps of a call, not those of all blocks of frames." % self.node.path)
        return ctx.lowering.loop.index if self._loop_dim is None else tf.range(ctx.size(self._loop_dim))


class AccumLayer(Layer):
    """The values of a layer of the loop in all steps, loop axis first.

    :param of: the node in the loop
    """

    class_name = "of all steps"
    is_connector = True
    of: Node

    def __init__(self, of: Node, loop_dim: Dim, beam: Optional[Beam]) -> None:
        super().__init__()
        self.of, self._loop_dim, self._beam = of, loop_dim, beam

    def template(self, ctx: Any) -> Data:
        """Infer the output: an additional axis in front. Lengths that the step defines differ by step."""
        data = self.of.output.with_axis(0, self._loop_dim)
        outside = {dim for dep in self.source.deps for dim in dep.output.dims}
        for dim in self.of.output.dims:
            if dim.is_dynamic() and not _follows_from(dim, outside):
                ctx.set_lengths_over(dim, [self._loop_dim, batch_dim])
        return data.replace(beam=(self._beam or data.beam) if data.batch_axis is not None else None)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit what the loop collected."""
        return ctx.lowering.values.sub_outputs[self.source, self.of.path]


def _follows_from(dim: Dim, known: Collection[Dim]) -> bool:
    """Return whether the lengths of a dim follow from those of known ones."""
    if dim in known or not dim.is_dynamic():
        return True
    return dim.expr is not None and all(_follows_from(operand, known) for operand in dim.expr.args)


def loop_dim_for(time_dim: Dim) -> Dim:
    """Return the loop axis that a time axis becomes inside."""
    return time_dim.as_kind(DimKind.LOOP, "steps")
