"""`random`, `rand_int` and `random_state_init`: random numbers, and the state of their generator."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from returnn_tf.config.options import LayerOrNumber, LayerRefs, OptionalLayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.option_types import Shape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.variable import VariableLayer
from returnn_tf.ops import philox
from returnn_tf.ops.initializers import Initializer
from returnn_tf.ops.philox import STATE_SIZE, random_state, state_of_seed
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf

ALGORITHMS = (None, "philox")
Seed = Union[None, int, list[int]]


def check_seed(seed: Any) -> Optional[str]:
    """Check that a seed is None, a number or a list of one to three numbers."""
    if isinstance(seed, (list, tuple)) and not 0 < len(seed) <= STATE_SIZE:
        return "must be a number or a list of one to three numbers"
    return None


def initial_state(seed: Seed) -> Initializer:
    """Return the initialiser of a parameter that holds the state for a seed; without a seed it is drawn."""
    return lambda shape, rng: random_state(rng) if seed is None else state_of_seed(seed)


def constant_state(ctx: EmitContext, seed: Seed) -> Any:
    """Return the state for a seed, int64 [3]; without a seed it follows from that of the network and the layer."""
    if seed is None:
        rng = np.random.default_rng([ctx.lowering.options.seed, zlib.crc32(ctx.node.path.encode("utf8"))])
        return tf.constant(random_state(rng))
    return tf.constant(state_of_seed(seed))


@register_layer("random_state_init")
class RandomStateInitLayer(Layer):
    """The state of a random number generator for a seed: int64 [3], the counter (two words) and the key of Philox.

    For `explicit_state` of `random`, or `init_by_layer` of a `variable`, which then can be advanced.
    Lengths: none.

    Example::

        network = {
            "state": {"class": "random_state_init", "seed": 42},
            "feature": {"class": "random", "shape": (), "distribution": "uniform", "dtype": "int32", "maxval": 4,
                "explicit_state": "state"},
            "output": {"class": "gather", "position": "feature", "axis": "F", "from": "data"}}
    """

    needs_sources = False
    algorithm: Optional[str] = option(
        None, choices=ALGORITHMS, help="the generator", inert="philox is the only one, and the default"
    )
    seed: Union[None, int, list[int]] = option(
        None, check=check_seed, help="number or list of up to three; default: derived from the seed of the network"
    )

    @property
    def initializer(self) -> Initializer:
        """Return the initial value of a variable with this state."""
        return initial_state(self.seed)

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: a vector."""
        if self.sources:
            raise ctx.error("takes no sources: 'from' must be [].")
        dim = Dim(DimKind.FEATURE, STATE_SIZE, "%s:state" % self.node.path, auto=True)
        if self.n_out not in (None, STATE_SIZE):
            raise ctx.error("the state has %d numbers, so n_out can't be %s." % (STATE_SIZE, self.n_out))
        return Data((ctx.bind(self.out_dim, dim),), "int64", feature_axis=0)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a constant."""
        return constant_state(ctx, self.seed)


_FLOATS = ("float16", "float32", "float64")
_INTS = ("int32", "int64")
#: The parameter with the state of the generator.
_STATE = "random_generator/StateVar"


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
    In a loop, each step draws new numbers, unless the state is constant.
    Parameters: ``random_generator/StateVar`` int64 [3], not trained; none with ``static`` or ``explicit_state``.
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
    changes_variables = True

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
        """Return whether each step of a loop draws new numbers."""
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
        return philox.with_other_key(state, ctx.lowering.options.process_offset)

    def _variable(self, ctx: EmitContext) -> Any:
        if self.explicit_state is None:
            return ctx.variable(_STATE)
        layer = self.explicit_state.layer
        assert isinstance(layer, VariableLayer)
        return EmitContext(self.explicit_state, ctx.lowering).variable(layer.plan.name)

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


@register_layer("rand_int")
class RandIntLayer(Layer):
    """Whole numbers from ``minval`` to below ``maxval``, all equally probable; others in each step of the training.

    In a loop, each step draws new numbers.
    Parameters: none. Lengths: those of the dims in ``shape``.

    Example::

        network = {
            "feature": {"class": "rand_int", "shape": (), "minval": 1, "maxval": 2, "seed": 1},
            "output": {"class": "gather", "position": "feature", "axis": "F", "from": "data"}}
    """

    needs_sources = False
    has_memory = True  # in the step of a loop: the step decides about the numbers
    computes_all_steps = True

    shape: Shape = option(help="dims, or sizes of new axes, of which the last is the feature axis")
    maxval: LayerOrNumber = option(help="number or scalar layer, excluded", refs=True)
    minval: LayerOrNumber = option(0, help="number or scalar layer", refs=True)
    dtype: str = option("int32", choices=("int32", "int64"), help="dtype of the numbers")
    sparse_dim: Optional[Dim] = option(None, help="the numbers are indices of these labels")
    seed: Optional[int] = option(None, help="for other numbers")

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Return True: each step of a loop draws new numbers."""
        return True

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the dims of the shape; in a loop, the steps in front."""
        for name in ("minval", "maxval"):
            value = getattr(self, name)
            check_scalar(ctx, name, value)
            if isinstance(value, float) and not value.is_integer():
                raise ctx.error("%s is %s, but the numbers are %s." % (name, value, self.dtype))
        numbers = isinstance(self.minval, (int, float)) and isinstance(self.maxval, (int, float))
        if numbers and self.minval >= self.maxval:
            raise ctx.error(
                "there is no number from minval %s to maxval %s, which is excluded." % (self.minval, self.maxval)
            )
        dims = random_dims(ctx, self.shape, last_is_feature=self.sparse_dim is None)
        return with_steps(ctx, Data.from_dims(dims, dtype=self.dtype, sparse_dim=self.sparse_dim))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the numbers."""
        name = "" if self.seed is None else "seed %d" % self.seed
        low, high = (scalar(ctx, value, self.dtype) for value in (self.minval, self.maxval))
        return tf.random.stateless_uniform(sizes(ctx), ctx.seed(name), low, high, self.dtype)


def random_dims(ctx: PlanContext, shape: Sequence[Any], *, last_is_feature: bool) -> list[Dim]:
    """Return the dims of a shape, whose sizes are then available while the layer is emitted.

    :param shape: dims, and sizes of new static axes
    :param last_is_feature: whether a size at the end is of feature kind
    """
    dims = []
    for i, entry in enumerate(shape):
        if not isinstance(entry, Dim):
            if entry < 0:
                raise ctx.error("shape must hold dims and sizes of at least 0, got %d." % entry)
            kind = DimKind.FEATURE if last_is_feature and i == len(shape) - 1 else DimKind.SPATIAL
            entry = Dim(kind, entry, "%s:static%d" % (ctx.node.path, i), auto=True)
        if entry in dims:
            raise ctx.error("shape has the dim %s twice." % entry)
        ctx.depend_on_dim(entry)
        dims.append(entry)
    return dims


def with_steps(ctx: PlanContext, data: Data) -> Data:
    """Return the template with the steps of a loop in front, for numbers that are drawn for all steps at once."""
    if ctx.loop_dim is None or ctx.in_step or ctx.loop_dim in data.dims:
        return data
    return data.with_axis(0, ctx.loop_dim)


def sizes(ctx: EmitContext) -> Any:
    """Return the shape of the output as a tensor, int32 [rank]."""
    data = ctx.output
    return tf.stack([tf.cast(size, tf.int32) for size in ctx.shape(data)]) if data.rank else tf.zeros([0], tf.int32)


def check_scalar(ctx: PlanContext, name: str, node: Optional[Any]) -> None:
    """Check that the value of an option is a number, or a layer with a single number.

    :raises ConfigError: a layer with axes, or with labels or texts
    """
    if not isinstance(node, Node):
        return
    data = node.output
    if data.unknown:
        return
    if data.rank or data.dtype in ("bool", "string"):
        raise ctx.error(
            "%s is the layer %r with the output %s, but it must be a number or a layer with a single number. Reduce it "
            "first, and scale the random numbers by combine or eval if each frame has a value of its own."
            % (name, node.path, data)
        )


def scalar(ctx: EmitContext, value: Any, dtype: str) -> Any:
    """Return the value of an option, a number or a layer, as a scalar tensor."""
    return tf.cast(ctx.value(value), dtype) if isinstance(value, Node) else tf.constant(np.asarray(value, dtype))
