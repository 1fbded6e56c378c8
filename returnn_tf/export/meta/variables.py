"""The variables of a meta graph, which a decoder initialises, restores, reads and writes by their names."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.compiler.initial_values import InitialValues
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import ExportError
from returnn_tf.config.settings.training import DEFAULT_SEED
from returnn_tf.export.meta import names
from returnn_tf.export.meta.names import named
from returnn_tf.export.meta.session_graph import for_variables
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.rounded_variable import RoundedSpec, RoundedVariable, stored_parts
from returnn_tf.ops.initial_values import Constant
from returnn_tf.util.lazy_tf import tf

_MAX_EMBEDDED = 1024


def small_initial_values(plan: Plan, config: Config) -> dict[str, NDArray[Any]]:
    """Return the initial values of small parameters, to be embedded in the graph; call it outside of any graph."""
    values = InitialValues(plan, config, DEFAULT_SEED)
    return {name: values.array(spec) for name, spec in plan.params.items() if spec.size <= _MAX_EMBEDDED}


class Variables:
    """The parameters and the global step, made in the current graph.

    A graph holds no large arrays: large parameters begin with numbers of the scale of Glorot and Bengio, and get their
    values from a checkpoint. The device of a parameter is one of the machine that trains, hence not in the graph.

    :param embedded: see `small_initial_values`
    """

    def __init__(self, plan: Plan, embedded: Mapping[str, NDArray[Any]]) -> None:
        self.params: dict[str, Any] = {}
        for name, spec in plan.params.items():
            rounded = plan.rounded.get(name)
            if rounded is not None:
                self.params[name] = _rounded_variable(rounded)
                continue
            self.params[name] = variable(
                name,
                lambda spec=spec: _initial_value(spec, embedded.get(spec.name)),
                spec.shape,
                spec.dtype,
                trainable=spec.trainable,
            )
        self.global_step = variable(names.GLOBAL_STEP, lambda: tf.zeros([], tf.int64), (), "int64")
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.GLOBAL_STEP, self.global_step)

    @property
    def restored(self) -> dict[str, Any]:
        """Return the variables to restore from a checkpoint, by the names there."""
        return {**self.stored, names.GLOBAL_STEP: self.global_step}

    @property
    def stored(self) -> dict[str, Any]:
        """Return the variables of the parameters, by the names in a checkpoint: all of a parameter that is rounded."""
        return stored_parts(self.params)


def _rounded_variable(spec: RoundedSpec) -> RoundedVariable:
    """Make the variables of a parameter that is rounded; it is 0 until they are restored."""
    return RoundedVariable(
        spec,
        [variable(name, partial(tf.zeros, shape), shape, dtype) for name, (shape, dtype) in spec.parts.items()],
    )


def variable(name: str, initial: Any, shape: tuple[Optional[int], ...], dtype: str, *, trainable: bool = False) -> Any:
    """Make a variable ``<name>`` with ops ``<name>/Assign``, ``<name>/Read/ReadVariableOp`` and ``<name>/read``.

    A program may set it by feeding the initial value and running the initialiser, in any size that ``shape`` leaves
    open.

    :param initial: function that returns the initial value, which depends on nothing that is fed
    :param shape: None where the size changes
    """
    op_name = names.op_name(name)

    def value() -> Any:
        return tf.compat.v1.placeholder_with_default(tf.cast(initial(), dtype), shape, name="value")

    with for_variables():
        made = tf.Variable(value, trainable=trainable, name=op_name, dtype=dtype, shape=tf.TensorShape(shape))
    if made.op.name != op_name:
        raise ExportError(
            "The parameter %r would be called %r in a graph, as its name is taken. Rename its layer."
            % (name, made.op.name)
        )
    named(made.read_value(), op_name + "/read")
    return made


def _initial_value(spec: ParamSpec, embedded: Optional[NDArray[Any]]) -> Any:
    if embedded is not None and embedded.size and (embedded == embedded.flat[0]).all():
        return tf.fill(spec.shape, tf.constant(embedded.flat[0], spec.dtype))
    if embedded is not None:
        return tf.constant(embedded, spec.dtype)
    if isinstance(spec.init, Constant) and math.prod(getattr(spec.init.value, "shape", ())) == 1:
        return tf.fill(spec.shape, tf.cast(spec.init.value, spec.dtype))
    dtype = tf.as_dtype(spec.dtype)
    if not dtype.is_floating:
        return tf.zeros(spec.shape, dtype)
    limit = math.sqrt(6.0 / max(spec.shape[0] + spec.shape[-1], 1))
    seed = [zlib.crc32(spec.name.encode("utf8")) & 0x7FFFFFFF, 0]
    return tf.cast(tf.random.stateless_uniform(spec.shape, seed, -limit, limit), dtype)
