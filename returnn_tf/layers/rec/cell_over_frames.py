"""A recurrent cell over all frames of its source."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.errors import OptionError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import HIDDEN_STATE
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.planned_cell import plan_cell
from returnn_tf.layers.shared.loop_axis import with_frames, with_steps
from returnn_tf.ops.cells import run_cell
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


class CellOverFrames:
    """Runs the cell of a layer over frames: those of a sequence, or all steps of a loop at once.

    :param layer: a `RecLayer` with a unit name
    :param data: its input
    :param steps: whether the frames are the steps of a loop
    """

    def __init__(self, ctx: PlanContext, layer: Any, data: Data, *, steps: bool = False) -> None:
        if steps:
            data, axis = with_steps(ctx, data), None
        else:
            axis = data.time_axis if layer.axis is None else ctx.axis(data, layer.axis)
        self._layer = layer
        self._frames = data
        self._perm, output = self._layout(ctx, data, axis)
        out = ctx.out_feature()
        output = output.with_axis(output.rank, out, feature=True)
        # For all steps of a loop at once, the iterated axis is not marked as time, like in a single step.
        self.output = output.replace(time_axis=None if output.dims[0].is_loop else 0)
        self.cell = plan_cell(ctx, layer, data, out, self.output.without_axes([0]))

    @property
    def is_fused(self) -> bool:
        """Return whether the frames are the steps of a loop."""
        return self.output.dims[0].is_loop

    def _layout(self, ctx: PlanContext, data: Data, axis: Optional[int]) -> tuple[list[int], Data]:
        """Return (source axes in the cell's order: iterated, batch, others, feature; the template without feature).

        :param axis: to iterate over, None: the steps of the loop
        """
        feature = data.feature_axis
        if data.sparse_dim is None:
            ctx.need_feature(data)
        if axis is None:
            assert ctx.loop_dim is not None
            axis = data.dims.index(ctx.loop_dim)
        if axis in (feature, data.batch_axis):
            raise OptionError(
                "cannot iterate over the %s axis of %s." % ("feature" if axis == feature else "batch", data)
            )
        if data.sparse_dim is not None:
            feature = None
        perm = [axis] + [i for i in (data.batch_axis,) if i is not None]
        perm += [i for i in range(data.rank) if i not in perm and i != feature]
        output = data.replace(dtype=ctx.float_dtype, sparse_dim=None, vocab=None)
        if feature is None:
            return perm, output.permuted(perm)
        return perm + [feature], output.permuted(perm + [feature]).without_axes([len(perm)])

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the input projection of all frames at once, then the loop over frames."""
        data, layer, cell = self._frames, self._layer, self.cell.cell
        x = transpose(with_frames(ctx, layer.emit_input(ctx), layer.input, data), self._perm)
        shape = [ctx.size(data.dims[axis]) for axis in self._perm]
        has_feature = data.sparse_dim is None
        batch_shape = shape[1 : len(shape) - 1 if has_feature else len(shape)]
        merge = len(batch_shape) != 1
        if merge:
            x = tf.reshape(x, tf.stack([shape[0], -1] + (shape[-1:] if has_feature else [])))
        if layer.direction == -1 and ctx.continues:
            raise OptionError(
                "Layer %r (class 'rec') runs backwards, from the end of whole sequences, so it can't go on from block "
                "to block of frames. Use direction 1." % ctx.node.path
            )
        params, initial = self.cell.params(ctx), self._initial_state(ctx, merge)
        y, state = run_cell(
            cell,
            params,
            x,
            self._lengths(ctx),
            initial_state=initial,
            direction=layer.direction or 1,
            seed=ctx.seed("cell") if ctx.train else None,
        )
        if merge:
            y = tf.reshape(y, tf.stack([shape[0], *batch_shape, cell.n_out]))
            state = self.cell.laid_out(ctx, state)
        if layer.back_prop is False:
            y, state = tf.stop_gradient(y), tuple(tf.stop_gradient(part) for part in state)
        ctx.set_aux(ctx.node, HIDDEN_STATE, state)
        self.cell.keep(ctx, state)
        if self._frames.dims[self._perm[0]].is_dynamic:
            self.cell.state_after(ctx, state)
        return y

    def before_loop(self, ctx: EmitContext) -> None:
        """Do nothing: it does not run step by step."""

    def _lengths(self, ctx: EmitContext) -> Optional[Any]:
        """Return the lengths, int [merged batch]; None if the iterated axis has one length for all."""
        dims = [self._frames.dims[axis] for axis in self._perm]
        if not dims[0].is_dynamic:
            return None
        lengths = ctx.lens(dims[0])
        if lengths.shape.rank == 0:
            return None
        others = dims[2:] if self._layer.input.sparse_dim is not None else dims[2:-1]
        repeats: Any = 1
        for dim in others:
            repeats = repeats * ctx.size(dim)
        return tf.repeat(lengths, repeats) if others else lengths

    def _initial_state(self, ctx: EmitContext, merge: bool) -> Optional[tuple[Any, ...]]:
        is_stream = self._frames.dims[self._perm[0]].is_dynamic
        state = self.cell.state_before(ctx) if is_stream else self.cell.given_state(ctx)
        return state if state is None or not merge else self.cell.flat(state)
