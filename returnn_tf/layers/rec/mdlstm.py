"""`mdlstm`: a multi-dimensional LSTM over images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

from returnn_tf.config.errors import OptionError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes, Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.spatial import SpatialAxes, spatial_axes
from returnn_tf.ops.cells.base import project
from returnn_tf.ops.dense.mdlstm import GATES, Flips, run_mdlstm
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf

#: Where a direction starts -> whether it runs from the last row, and from the last column.
CORNERS: dict[str, Flips] = {
    "upper_left": (False, False),
    "lower_right": (True, True),
    "upper_right": (False, True),
    "lower_left": (True, False),
}

COMBINE: dict[str, Callable[[Sequence[Any]], Any]] = {
    "mean": lambda parts: tf.add_n(parts) / float(len(parts)) if len(parts) > 1 else parts[0],
    "sum": lambda parts: tf.add_n(parts) if len(parts) > 1 else parts[0],
    "concat": lambda parts: tf.concat(parts, axis=-1) if len(parts) > 1 else parts[0],
}
"""By the option ``combine``."""


@dataclasses.dataclass(frozen=True, eq=False)
class MDLstmPlan(LayerPlan):
    """The plan of `MDLstmLayer`.

    :param corners: where the directions begin
    :param axes: where rows and columns are
    """

    corners: Sequence[str]
    axes: SpatialAxes


@register_layer("mdlstm")
class MDLstmLayer(ConcatInputLayer, Planned[MDLstmPlan]):
    """A multi-dimensional LSTM over images (Graves & Schmidhuber 2009; formulas in `returnn_tf.ops.dense.mdlstm`).

    Every pixel sees its two neighbours towards the corner where the direction starts, and through them all pixels
    between; from all four corners it sees the whole image. Each direction has its own parameters, and each image is
    processed within its own height and width. By default the cell is the stable one of Leifert et al. 2016; directions
    are averaged as by Voigtlaender et al. 2016.

    Parameters, for each corner below ``<layer>/<corner>/``: ``W`` [in, 5 n] for the pixel, ``V_h`` [n, 5 n] for the
    neighbour in the row, ``V_v`` [n, 5 n] for the one in the column, ``b`` [5 n]. Order of the gates: input, forget,
    lambda (or the forget gate of the column), output, cell input. n is n_out, with "concat" n_out / directions.
    The output is [batch, rows, columns, n_out] and 0 in the padding. Lengths: unchanged.

    Example::

        extern_data = {"data": {"shape": (None, None, 3)}, "classes": {"dim": 3, "sparse": True}}
        network = {
            "lines": {"class": "mdlstm", "n_out": 4, "directions": 4, "from": "data"},
            "output": {"class": "reduce", "mode": "mean", "axis": "spatial", "from": "lines"}}
    """

    directions: Union[int, list[str]] = option(
        4, help="corners where directions start: upper_left, lower_right, upper_right, lower_left; n: the first n"
    )
    combine: str = option("mean", help="how to combine the directions: mean, sum or concat")
    stable: bool = option(True, help="use the stable cell; False: two forget gates, one per neighbour")
    in_spatial_dims: Optional[Axes] = option(
        None, help="axis of the rows, and axis within a row (default: both spatial axes)"
    )
    forward_weights_init: Init = option(None, help="initialiser of W (default glorot_uniform)")
    recurrent_weights_init: Init = option(None, help="initialiser of V_h and V_v (default glorot_uniform)")
    bias_init: Init = option(None, help="initialiser of the bias (default 0)")

    def template(self, ctx: PlanContext) -> MDLstmPlan:
        """Infer the output: [batch, rows, columns, n_out]."""
        corners = self._checked_corners(ctx)
        if self.combine not in COMBINE:
            raise OptionError("unknown combine %r. %s" % (self.combine, did_you_mean(self.combine, COMBINE)))
        data = self.input_template(ctx)
        n_in = ctx.need_static(ctx.need_feature(data), "the feature axis")
        axes = spatial_axes(ctx, data, self.in_spatial_dims, 2, "an image")
        if len(axes.lead) != 1 or data.batch_axis is None:
            raise OptionError(
                "the source is %s, but it must have the axes batch, rows, columns, feature, and no others." % data
            )
        out = ctx.out_feature()
        n_out, count = ctx.need_static(out, "n_out"), len(corners)
        if self.combine == "concat" and n_out % count:
            raise OptionError("n_out %d is not divisible by the %d directions." % (n_out, count))
        self._declare_params(ctx, corners, n_in, n_out // count if self.combine == "concat" else n_out)
        return MDLstmPlan(axes.template(axes.dims, out), corners, axes)

    def _checked_corners(self, ctx: PlanContext) -> list[str]:
        names = list(CORNERS)
        if isinstance(self.directions, int):
            if not 1 <= self.directions <= len(names):
                raise OptionError("directions must be 1 to %d, got %d." % (len(names), self.directions))
            return names[: self.directions]
        for name in self.directions:
            if name not in CORNERS:
                raise OptionError("directions: unknown corner %r. %s" % (name, did_you_mean(str(name), CORNERS)))
        if not self.directions or len(set(self.directions)) != len(self.directions):
            raise OptionError("directions must be different corners, at least one, got %r." % (self.directions,))
        return list(self.directions)

    def _declare_params(self, ctx: PlanContext, corners: Sequence[str], n_in: int, n: int) -> None:
        forward, recurrent = (
            "glorot_uniform" if init is None else init
            for init in (self.forward_weights_init, self.recurrent_weights_init)
        )
        for corner in corners:
            ctx.param(corner + "/W", (n_in, GATES * n), forward)
            ctx.param(corner + "/V_h", (n, GATES * n), recurrent)
            ctx.param(corner + "/V_v", (n, GATES * n), recurrent)
            ctx.param(corner + "/b", (GATES * n,), 0.0 if self.bias_init is None else self.bias_init)

    def channel_axes(self) -> Mapping[str, int]:
        """Return all weights but the biases."""
        return {name: 1 for name in self.node.params if not name.endswith("b")}

    def multiplies_rounded(self, name: str) -> bool:
        """Return False: the recurrences are of floats."""
        return False

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the projections, then the recurrences of all directions."""
        x = transpose(self.emit_input(ctx), self.plan.axes.order)
        rows, columns = (tf.broadcast_to(ctx.lens(dim), [tf.shape(x)[0]]) for dim in self.plan.axes.dims)
        z, left, up = [], [], []
        for corner in self.plan.corners:
            weights, bias = ctx.param(corner + "/W"), ctx.param(corner + "/b")
            z.append(project(x, weights, bias, product_dtype=ctx.product_dtype))
            left.append(ctx.param(corner + "/V_h"))
            up.append(ctx.param(corner + "/V_v"))
        flips = [CORNERS[name] for name in self.plan.corners]
        parts = run_mdlstm(
            z, left, up, rows, columns, flips, stable=self.stable, train=ctx.train, product_dtype=ctx.product_dtype
        )
        return tf.ensure_shape(COMBINE[self.combine](parts), ctx.output.static_shape)
