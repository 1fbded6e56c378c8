"""`twod_lstm`: an LSTM over the grid of target and source frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.ops.cells.base import project
from returnn_tf.ops.dense.mdlstm import GATES
from returnn_tf.ops.dense.twod_lstm import POOLINGS, TwoDLstmWeights, pooled_grid, pooled_row, row
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_STATES = ("h", "c")


@dataclasses.dataclass(frozen=True, eq=False)
class TwoDLstmPlan(LayerPlan):
    """The plan of `TwoDLstmLayer`.

    :param source_axes: order of the axes of the source sequence: frames, batch, features
    :param steps: the dim of the rows; None: a step of a loop
    :param target_axes: order of the axes of the target: rows (unless it has none), batch, features
    :param row: the layout of a row
    """

    source_axes: Sequence[int]
    steps: Optional[Dim]
    target_axes: Sequence[int]
    row: Data


@register_layer("twod_lstm")
class TwoDLstmLayer(Planned[TwoDLstmPlan]):
    """A two-dimensional LSTM (Bahar et al. 2018, cell of Leifert et al. 2016).

    The formulas are in `returnn_tf.ops.dense.twod_lstm`.

    Its two sources are the source sequence (such as ``base:encoder``) and the target (such as the embedding of the
    previous label). Cell (i, j) sees target frame i and source frame j, and the cells (i - 1, j) and (i, j - 1). The
    output of target frame i is row i pooled over the valid source frames; 0 if there are none.

    In the step of a loop it computes one row, and keeps it as the state for the next step. Where the target is known,
    as in training, it computes the whole grid at once, one anti-diagonal after the other: source + target - 1 steps
    instead of source * target. On CPU that is the native op of `mdlstm`, where it can be compiled.

    Parameters, below ``<layer>/rec/``: ``W`` [source dim + target dim, 5 n] (rows: source first), ``V_h`` [n, 5 n]
    from the previous source frame, ``V_v`` [n, 5 n] from the previous target frame, ``b`` [5 n]. Order of the gates:
    input, forget, lambda, output, cell input. (No reference case was at hand for names and order.)
    Lengths: those of the target.

    Example::

        network = {
            "encoder": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
            "loop": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 10, "unit": {
                "output": {"class": "choice", "target": "classes", "beam_size": 2, "from": "p", "initial_output": 0},
                "end": {"class": "compare", "from": "output", "value": 0},
                "embed": {"class": "linear", "activation": None, "n_out": 2, "from": "prev:output"},
                "s": {"class": "twod_lstm", "n_out": 3, "pooling": "max",
                      "from": ["base:encoder", "embed"]},
                "p": {"class": "softmax", "from": "s", "target": "classes", "loss": "ce"}}},
            "output": {"class": "copy", "from": "loop"}}
    """

    has_memory = True
    inner_scope = "rec"
    computes_all_steps = True
    pooling: str = option("last", choices=POOLINGS, help="how a row becomes one vector: over its valid source frames")
    size_target: Optional[str] = option(
        None, help="data key with the number of rows", inert="the number of rows is that of the target source"
    )
    unit_opts: Optional[dict[str, Any]] = option(None, help="options of the cell; it has none")
    forward_weights_init: Init = option(None, help="initialiser of W (default glorot_uniform)")
    recurrent_weights_init: Init = option(None, help="initialiser of V_h and V_v (default glorot_uniform)")
    bias_init: Init = option(None, help="initialiser of the bias (default 0)")

    def template(self, ctx: PlanContext) -> TwoDLstmPlan:
        """Infer the output: [target, batch, n], in a step [batch, n]."""
        if len(self.sources) != 2:
            raise OptionError(
                "needs two sources, the source sequence and the target, e.g. 'from': ['base:encoder', 'target_embed'], "
                "got %d." % len(self.sources)
            )
        if self.unit_opts:
            raise OptionError("unit_opts: the cell has no options, got %s. Remove it." % sorted(self.unit_opts))
        source, target = (node.output for node in self.sources)
        frames = source.time_dim
        if frames is None:
            raise OptionError("the source sequence %r has no time axis, it is %s." % (self.source.path, source))
        source_axes = _axes(ctx, self.source, frames)
        steps = None if ctx.in_step and target.time_dim is None else self._target_dim(ctx, target)
        target_axes = _axes(ctx, self.sources[1], steps if steps in target.dims else None)
        out, batch = ctx.out_feature(), source.dims[source_axes[1]]
        self._declare_params(ctx, ctx.need_static(out, "n_out"))
        output = Data((batch, out), ctx.float_dtype, feature_axis=1)
        row = output.with_axis(0, frames).replace(time_axis=0)
        if steps is not None:
            output = output.with_axis(0, steps)
            return TwoDLstmPlan(
                output.replace(time_axis=None if steps.is_loop else 0),
                source_axes=source_axes,
                steps=steps,
                target_axes=target_axes,
                row=row,
            )
        for key in _STATES:
            ctx.loop_state(key, row, lambda emit: tf.zeros(tf.stack(emit.shape(row)), row.dtype))
        return TwoDLstmPlan(output, source_axes=source_axes, steps=steps, target_axes=target_axes, row=row)

    def _target_dim(self, ctx: PlanContext, target: Data) -> Dim:
        if ctx.loop_dim is not None and (ctx.loop_dim in target.dims or target.time_dim is None):
            return ctx.loop_dim
        if target.time_dim is None:
            raise OptionError(
                "the target %r has no time axis, it is %s. Outside of a loop the target is a sequence too."
                % (self.sources[1].path, target)
            )
        return target.time_dim

    def _prefix(self) -> str:
        """Return the prefix of the names of the parameters; a name_scope stands for "<layer>/rec"."""
        return "rec/" if self.name_scope is None else ""

    def _declare_params(self, ctx: PlanContext, n: int) -> None:
        sizes = [ctx.need_static(ctx.need_feature(s.output, "source %r" % s.path), "it") for s in self.sources]
        forward, recurrent = (
            "glorot_uniform" if init is None else init
            for init in (self.forward_weights_init, self.recurrent_weights_init)
        )
        ctx.param(self._prefix() + "W", (sum(sizes), GATES * n), forward)
        ctx.param(self._prefix() + "V_h", (n, GATES * n), recurrent)
        ctx.param(self._prefix() + "V_v", (n, GATES * n), recurrent)
        ctx.param(self._prefix() + "b", (GATES * n,), 0.0 if self.bias_init is None else self.bias_init)

    def channel_axes(self) -> Mapping[str, int]:
        """Return all weights but the biases."""
        return {name: 1 for name in self.node.params if not name.endswith("b")}

    def multiplies_rounded(self, name: str) -> bool:
        """Return False: the recurrences are of floats."""
        return False

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the projections of both sources, then the grid or a row of it."""
        z_source, z_target = self._projected(ctx)
        weights = TwoDLstmWeights(ctx.param(self._prefix() + "V_h"), ctx.param(self._prefix() + "V_v"))
        lens = self._source_lens(ctx, tf.shape(z_source)[1])
        if self.plan.steps is not None:
            y = pooled_grid(
                z_source, z_target, lens, weights, self.pooling, train=ctx.train, product_dtype=ctx.product_dtype
            )
            return tf.ensure_shape(y, ctx.output.static_shape)
        h, c = row(z_source, z_target, ctx.loop_state("h"), ctx.loop_state("c"), weights)
        for key, value in zip(_STATES, (h, c)):
            ctx.set_loop_state(key, tf.ensure_shape(value, self.plan.row.static_shape))
        return pooled_row(h, lens, self.pooling)

    def _projected(self, ctx: EmitContext) -> tuple[Any, Any]:
        """Return the projections ([source, batch, 5 n], [target, batch, 5 n] or in a step [batch, 5 n])."""
        weights = ctx.param(self._prefix() + "W")
        rows = self.source.output.dim
        source = transpose(ctx.source(0), self.plan.source_axes)
        target = transpose(ctx.source(1), self.plan.target_axes)
        if self.plan.steps is not None and len(self.plan.target_axes) == 2:  # the same in all steps
            target = tf.repeat(target[None], ctx.size(self.plan.steps), axis=0)
        bias, low = ctx.param(self._prefix() + "b"), ctx.product_dtype
        of_source = project(source, weights[:rows], product_dtype=low)
        return of_source, project(target, weights[rows:], bias, product_dtype=low)

    def _source_lens(self, ctx: EmitContext, batch: Any) -> Any:
        assert self.plan.row.time_dim is not None
        return tf.broadcast_to(ctx.lens(self.plan.row.time_dim), [batch])


def _axes(ctx: PlanContext, node: Node, frames: Optional[Dim]) -> list[int]:
    """Return the order frames, batch, feature of the axes of a source; without frames if it has none."""
    data = node.output
    ctx.need_feature(data, "source %r" % node.path)
    axes = [] if frames is None else [data.dims.index(frames)]
    axes += [axis for axis in (data.batch_axis, data.feature_axis) if axis is not None]
    if len(axes) != data.rank or data.batch_axis is None:
        raise OptionError(
            "source %r is %s, but it must have the axes batch, %sfeature, and no others."
            % (node.path, data, "" if frames is None else "%s, " % frames)
        )
    return axes
