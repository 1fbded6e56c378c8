"""`random`: random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional, Union

from returnn_tf.config.options import LayerOrNumber, LayerRefs, OptionalLayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.option_types import Shape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.variable import VariableLayer
from returnn_tf.layers.random.state import ALGORITHMS, check_seed, constant_state, initial_state
from returnn_tf.layers.shared.random_shape import check_scalar, random_dims, scalar, sizes, with_steps
from returnn_tf.ops import philox
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_FLOATS = ("float16", "float32", "float64")
_INTS = ("int32", "int64")
#: The parameter with the state of the generator.
_STATE = "state_var"


@register_layer("random")
class RandomLayer(Layer):
    """Random numbers from the generator Philox, in the order of `tf.random.Generator`.

    uniform: in [minval, maxval), [-bound, bound), or, by mean and stddev, mean plus or minus sqrt(3) stddev; whole
    numbers for an int dtype. normal: by mean and stddev. truncated_normal: the same, without what is more than two
    stddev from the mean.

    The state of the generator is a parameter of the layer, which is advanced each time the layer is computed, and part
    of checkpoints. With ``static`` it is a constant: the numbers are the same every time. With ``explicit_state`` it is
    the value of a layer: the same as long as that is the same; with ``auto_update_state`` that must be a `variable`,
    which is advanced.
    In a loop, each step has numbers of its own, unless the state is constant.
    Parameters: ``state_var`` int64 [3], not trained; none with ``static`` or ``explicit_state``.
    Lengths: those of the dims in ``shape``.

    Example::

        network = {
            "feature": {"class": "random", "shape": (), "distribution": "uniform", "dtype": "int32", "maxval": 4,
                "static": True, "seed": 1},
            "output": {"class": "gather", "position": "feature", "axis": "F", "from": "data"}}
    """

    needs_sources = False
    has_memory = True  # in the step of a loop: the state of the generator
    computes_all_steps = True

    shape: Shape = option(help="dims, or sizes of new static axes")
    distribution: str = option(
        help="uniform, normal or truncated_normal", choices=("uniform", "normal", "truncated_normal")
    )
    mean: Optional[LayerOrNumber] = option(None, help="number or scalar layer (default 0)", refs=True)
    stddev: Optional[LayerOrNumber] = option(None, help="number or scalar layer (default 1)", refs=True)
    bound: Optional[LayerOrNumber] = option(None, help="uniform: number or scalar layer", refs=True)
    minval: Optional[LayerOrNumber] = option(None, help="uniform: number or scalar layer (default 0)", refs=True)
    maxval: Optional[LayerOrNumber] = option(None, help="uniform: number or scalar layer, excluded", refs=True)
    dtype: Optional[str] = option(
        None, choices=(None, *_FLOATS, *_INTS), help="dtype of the numbers; default: that of floats in the network"
    )
    sparse_dim: Optional[Dim] = option(None, help="the numbers are indices of these labels")
    feature_dim: Optional[Dim] = option(None, help="which dim of the shape is the feature dim; default: the last one")
    seed: Union[None, int, list[int]] = option(
        None, check=check_seed, help="number or list of up to three; default: derived from the seed of the network"
    )
    algorithm: Optional[str] = option(
        None, choices=ALGORITHMS, help="the generator", inert="philox is the only one, and the default"
    )
    explicit_state: OptionalLayerRef = option(None, help="layer with the state, int64 [3]", refs=True)
    auto_update_state: Optional[bool] = option(None, help="advance the variable which explicit_state names")
    static: Optional[bool] = option(None, help="give the same numbers every time")
    shape_deps: LayerRefs = option((), help="layers with the dynamic dims of the shape", refs=True)
    stop_grad: bool = option(False, help="let no gradient through to layers in mean, stddev and bounds")

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Return whether each step of a loop has numbers of its own."""
        if options.get("explicit_state") is not None:
            return bool(options.get("auto_update_state"))
        return not options.get("static")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the dims of the shape; in a loop, where numbers differ by step, the steps in front."""
        dtype = self.dtype or ctx.float_dtype
        self._check_distribution(ctx, dtype)
        self._check_state(ctx)
        dims = random_dims(ctx, self.shape, last_is_feature=False)
        feature = None
        if self.sparse_dim is not None and dtype not in _INTS:
            raise ctx.error("sparse_dim: labels must be int32 or int64, not %s." % dtype)
        if self.sparse_dim is None and dims and dims[-1].size is not None and not dims[-1].is_batch:
            feature = len(dims) - 1
        data = Data.from_dims(dims, dtype=dtype, sparse_dim=self.sparse_dim, feature_axis=feature)
        if data.time_axis == feature:
            data = data.replace(time_axis=None)
        if self.feature_dim is not None:
            if self.sparse_dim is not None:
                raise ctx.error("feature_dim and sparse_dim exclude each other: labels have no features.")
            if self.feature_dim not in dims:
                raise ctx.error("feature_dim %s is not in shape [%s]." % (self.feature_dim, ", ".join(map(str, dims))))
            data = data.replace(feature_axis=dims.index(self.feature_dim))
        return with_steps(ctx, data) if self._changes else data

    @property
    def _changes(self) -> bool:
        """Return whether the state of the generator is advanced."""
        return bool(self.auto_update_state) if self.explicit_state is not None else not self.static

    def _check_distribution(self, ctx: PlanContext, dtype: str) -> None:
        given = [name for name in ("mean", "stddev", "bound", "minval", "maxval") if getattr(self, name) is not None]
        for name in given:
            check_scalar(ctx, name, getattr(self, name))
        bounds = [name for name in given if name in ("bound", "minval", "maxval")]
        if self.distribution != "uniform":
            if bounds:
                raise ctx.error("%s is for distribution 'uniform'. Give mean and stddev." % " and ".join(bounds))
            if dtype not in _FLOATS:
                raise ctx.error("distribution %r has no %s numbers. Use 'uniform'." % (self.distribution, dtype))
            return
        if not given:
            raise ctx.error("distribution 'uniform' needs maxval (and minval), bound, or mean and stddev.")
        if (bounds and len(bounds) < len(given)) or ("bound" in bounds and len(bounds) > 1):
            raise ctx.error("%s exclude each other. Give minval and maxval, bound, or mean and stddev." % _and(given))
        if self.minval is not None and self.maxval is None:
            raise ctx.error("maxval is missing: minval alone defines no range.")
        if dtype in _INTS:
            self._check_ints(ctx, dtype)

    def _check_ints(self, ctx: PlanContext, dtype: str) -> None:
        if self.maxval is None:
            raise ctx.error("%s numbers need maxval (and minval)." % dtype)
        low, high = self.minval or 0, self.maxval
        for name, value in (("minval", low), ("maxval", high)):
            if isinstance(value, float) and not value.is_integer():
                raise ctx.error("%s is %s, but the numbers are %s." % (name, value, dtype))
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low >= high:
            raise ctx.error("there is no number from minval %s to maxval %s, which is excluded." % (low, high))

    def _check_state(self, ctx: PlanContext) -> None:
        state = self.explicit_state
        if state is None:
            if self.auto_update_state is not None:
                raise ctx.error("auto_update_state is for explicit_state, which is not given.")
            if not self.static:
                ctx.param(_STATE, (philox.STATE_SIZE,), initial_state(self.seed), dtype="int64", trainable=False)
            return
        if self.seed is not None or self.static is not None:
            raise ctx.error("seed and static have no effect with explicit_state. Remove them, or explicit_state.")
        data = state.output
        if not data.unknown and (data.dtype != "int64" or data.static_shape != (philox.STATE_SIZE,)):
            raise ctx.error(
                "explicit_state %r must be int64 [%d], e.g. by random_state_init, not %s."
                % (state.path, philox.STATE_SIZE, data)
            )
        if self.auto_update_state and not isinstance(state.layer, VariableLayer):
            raise ctx.error(
                "auto_update_state needs a variable in explicit_state, but %r is of class %r. Use a layer 'variable' "
                "with init_by_layer." % (state.path, state.layer.class_name)
            )

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the numbers, and advance the state if it is a variable."""
        shape = sizes(ctx)
        values = self._draw(ctx, self._next_state(ctx, tf.reduce_prod(tf.cast(shape, tf.int64))), shape)
        return tf.stop_gradient(values) if self.stop_grad else values

    def _next_state(self, ctx: EmitContext, count: Any) -> Any:
        """Return the state for ``count`` numbers, and advance it if it is a variable."""
        if self.explicit_state is not None and not self.auto_update_state:
            return ctx.value(self.explicit_state)
        if self.explicit_state is None and self.static:
            return constant_state(ctx, self.seed)
        variable = self._variable(ctx)
        state = variable.read_value()
        with tf.control_dependencies([state]):
            variable.assign(philox.advanced(state, count))
        return philox.with_other_key(state, ctx.lowering.process_offset)

    def _variable(self, ctx: EmitContext) -> Any:
        if self.explicit_state is None:
            return ctx.variable(_STATE)
        layer: Any = self.explicit_state.layer
        return ctx.lowering.variables[self.explicit_state.params[layer.plan.name].name]

    def _draw(self, ctx: EmitContext, state: Any, shape: Any) -> Any:
        def number(value: Any, default: float = 0.0) -> Any:
            return scalar(ctx, default if value is None else value, ctx.output.dtype)

        if self.distribution != "uniform":
            draw = philox.normal if self.distribution == "normal" else philox.truncated_normal
            return draw(state, shape, number(self.mean), number(self.stddev, 1.0), ctx.output.dtype)
        if self.bound is not None:
            high = number(self.bound)
            low = -high
        elif self.maxval is not None:
            low, high = number(self.minval), number(self.maxval)
        else:
            width = number(self.stddev, 1.0) * math.sqrt(3.0)
            low, high = number(self.mean) - width, number(self.mean) + width
        return philox.uniform(state, shape, low, high, ctx.output.dtype)


def _and(names: list[str]) -> str:
    return " and ".join(names)
