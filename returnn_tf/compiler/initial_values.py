"""Initial values of parameters, also of those that begin with the value of a layer."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import DimError
from returnn_tf.config.user_code import using_config
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.lowering import Lowering, LoweringOptions, ParamValues
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.params.of_layer import ValueOfLayer
from returnn_tf.graph.rounded_variable import RoundedVariable
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.util.lazy_tf import tf


class InitialValues(dict[str, Any]):
    """The initial values of the parameters of a plan, as variables that are made when they are first asked for.

    :param config: of the network, for functions defined in it
    :param seed: of all random values; each depends only on its name, its initialiser and the seed
    """

    def __init__(self, plan: Plan, config: Config, seed: int) -> None:
        super().__init__()
        self._plan, self._config, self._seed = plan, config, seed

    def __missing__(self, name: str) -> Any:
        with tf.init_scope():
            self[name] = tf.Variable(self.array(self._plan.params[name]), trainable=False)
        return self[name]

    def variable(self, spec: ParamSpec) -> Any:
        """Return a new variable, or a `RoundedVariable`, with the initial value of a parameter.

        :raises ConfigError: there is not enough memory for it
        """
        try:
            rounded = self._plan.rounded.get(spec.name)
            if rounded is not None:
                return RoundedVariable.of_value(rounded, self.array(spec))
            with tf.device(spec.device):
                return tf.Variable(self.array(spec), trainable=spec.trainable, name=_variable_name(spec.name))
        except (MemoryError, tf.errors.ResourceExhaustedError) as exc:
            raise DimError(
                "Layer %r: not enough memory for the parameter %r of shape %s. All parameters together have %d numbers."
                % (spec.layer_path, spec.name, spec.shape, sum(s.size for s in self._plan.params.values()))
            ) from exc

    def array(self, spec: ParamSpec) -> NDArray[Any]:
        """Return the initial value of a parameter."""
        if isinstance(spec.init, ValueOfLayer):
            return self._of_layer(spec.init).astype(spec.dtype)
        rng = np.random.default_rng([self._seed, zlib.crc32(spec.name.encode("utf8"))])
        return np.asarray(spec.init(spec.shape, rng)).astype(spec.dtype).reshape(spec.shape)

    def _of_layer(self, init: ValueOfLayer) -> NDArray[Any]:
        """Compute a layer; it reads the initial values of other parameters."""
        needed = set(init.nodes())

        def emit() -> Any:
            plan = self._plan
            options = LoweringOptions(False, plan.search, plan.semantics, seed=self._seed, with_losses=False)
            lowering = Lowering(options, ParamValues(self), step=tf.constant(0, tf.int64))
            for node in plan.nodes:
                if node in needed:
                    emit_node(lowering, node)
            value = to_layout(lowering.values.outputs[init.node], init.node.output, init.into, list(init.mapping))
            return tf.broadcast_to(value, init.into.static_shape)

        with using_config(self._config):
            array: NDArray[Any] = tf.function(emit, autograph=False)().numpy()
        return array


def _variable_name(name: str) -> str:
    """Return a name that TensorFlow accepts for a variable; ours is the key in `Network.params`."""
    return re.sub("[^A-Za-z0-9_./-]", "_", name).lstrip("_./-") or "var"
