"""The scratch graph in which a layer class of a config is planned, and the variables that its code creates there."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Optional

import numpy as np

from returnn_tf.compat.modules.initializers import NamedInitializer
from returnn_tf.config.errors import CodeError
from returnn_tf.graph.aux_values import PRE_ACTIVATION, PreActivation
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering, LoweringOptions
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


class ScratchGraph:
    """Values of layers that are only planned; to be used within ``graph.as_default()``."""

    def __init__(self, ctx: PlanContext) -> None:
        self.graph = tf.Graph()
        self._node = ctx.node
        with self.graph.as_default():
            step = tf.compat.v1.placeholder(tf.int64, [])
            # As in training, where such code has all its variables.
            self.lowering = Lowering(LoweringOptions(not ctx.search, ctx.search, ctx.semantics), step=step)
            self.lowering.dims.batch_size = _placeholder("int32", [])
            if ctx.in_step:
                self.lowering.loop.index = _placeholder("int32", [])
                if ctx.search:
                    scores, ended = _placeholder("float32", [None, None]), _placeholder("bool", [None])
                    self.lowering.search.hypotheses = types.SimpleNamespace(scores=scores, ended=ended)
        for node in ctx.node.deps:
            self.provide(node)

    def provide(self, node: Node) -> None:
        """Add placeholders for the output of a layer, its lengths, its parameters and the values before activation."""
        if node in self.lowering.values.outputs:
            return
        data = node.output
        with self.graph.as_default():
            self.lowering.values.outputs[node] = _placeholder(data.dtype, data.static_shape)
            for dim in data.dims:
                self._provide_dim(dim)
            for spec in node.params.values():
                if isinstance(spec, ParamSpec):
                    self.lowering.params.variables[spec.name] = _placeholder(spec.dtype, spec.shape)
            activation = node.layer.activation
            if activation is not None:
                before = PreActivation(_placeholder(data.dtype, data.static_shape), activation)
                self.lowering.values.set_aux(node, PRE_ACTIVATION, before)

    def state(self, key: str, data: Data) -> None:
        """Add a placeholder for a state of the layer itself."""
        with self.graph.as_default():
            self.lowering.loop.inputs[self._node, key] = _placeholder(data.dtype, data.static_shape)

    def _provide_dim(self, dim: Dim) -> None:
        if dim.size is not None:
            return
        for operand in dim.expr.args if dim.expr is not None else ():
            if isinstance(operand, Dim):
                self._provide_dim(operand)
        if dim.expr is None:
            if dim.is_batch:
                self.lowering.dims.sizes.setdefault(dim, self.lowering.dims.batch_size)
            else:
                self.lowering.dims.lens.setdefault(dim, _placeholder("int32", [None]))


def _placeholder(dtype: str, shape: Any) -> Any:
    return tf.compat.v1.placeholder(dtype, list(shape))


@dataclasses.dataclass(frozen=True)
class FoundVariable:
    """A variable that the code asked for.

    :param init: function (shape, numpy Generator) -> array, or a name
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    init: Any
    trainable: bool


class VariableRecorder:
    """Records the variables that code creates in a scratch graph."""

    def __init__(self) -> None:
        self.found: dict[str, FoundVariable] = {}

    def __call__(
        self,
        name: str,
        *,
        getter: Any,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = None,
        trainable: Optional[bool] = None,
        **others: Any,
    ) -> Any:
        """Return a variable of the scratch graph.

        :raises ConfigError: the shape depends on the data
        """
        del others
        dtype = tf.as_dtype(dtype or tf.float32).name
        array = _constant_of(initializer)
        if shape is None and array is not None:
            shape = array.shape
        try:
            sizes = tuple(int(size) for size in tf.TensorShape(shape).as_list())
        except (TypeError, ValueError):
            raise CodeError(
                "the shape of the variable %r is not known while the network is planned: %s. Use sizes that are "
                "numbers, such as self.input_data.dim." % (name, shape)
            ) from None
        init = _values_of(initializer, dtype) if array is None else _same(array)
        self.found[name] = FoundVariable(name, sizes, dtype, init, trainable is not False)
        zeros = tf.compat.v1.zeros_initializer()
        return getter(name, shape=sizes, dtype=dtype, initializer=zeros, trainable=False, use_resource=True)


def _constant_of(initializer: Any) -> Optional[Any]:
    """Return the array that a variable begins with, if it is given as such."""
    if isinstance(initializer, (int, float, list, tuple, np.ndarray, np.generic)):
        return np.asarray(initializer)
    if tf.is_tensor(initializer):
        value = tf.get_static_value(initializer)
        if value is None:
            raise CodeError("get_variable: the initial value %s is no constant. Give an initialiser." % initializer)
        return np.asarray(value)
    return None


def _same(array: Any) -> Any:
    return lambda shape, rng: np.broadcast_to(array, shape)


def _values_of(initializer: Any, dtype: str) -> Any:
    """Return an initialiser of TensorFlow as a function (shape, numpy Generator) -> array."""
    if initializer is None:
        return "glorot_uniform" if dtype.startswith(("float", "bfloat")) else 0.0
    if isinstance(initializer, NamedInitializer):
        return initializer.values
    made = initializer() if isinstance(initializer, type) else initializer

    def values(shape: Any, rng: Any) -> Any:
        seeded = made
        options = made.get_config() if hasattr(made, "get_config") else {}
        if "seed" in options and options["seed"] is None:  # the values depend on the seed of the network alone
            seeded = type(made).from_config({**options, "seed": int(rng.integers(2**31 - 1))})
        with tf.init_scope():
            return np.asarray(seeded(tuple(shape), dtype=tf.as_dtype(dtype)))

    return values
