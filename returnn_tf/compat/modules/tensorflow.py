"""TensorFlow as the code of configs sees it: version 2, with names that it dropped from ``tf.compat.v1``."""

from __future__ import annotations

import re
import types
from typing import Any, Optional

from returnn_tf.compat.helpers.tf1_names import SUBMODULES, of_either_version, where
from returnn_tf.compat.imports.stand_ins import REPLACED
from returnn_tf.compat.modules.layers.host import HOST
from returnn_tf.ops.activations import get_activation
from returnn_tf.util.lazy_tf import tf


class _Graph:
    """The current graph; parameters of the network are among its tensors, e.g. "embedding/W:0"."""

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()

    def get_tensor_by_name(self, name: str) -> Any:
        """Return a tensor by its name, or the value of a parameter."""
        host = HOST.get()
        found = None if host is None else host.param_of_network(re.sub("(/read)?:0$", "", name))
        return self._graph.get_tensor_by_name(name) if found is None else tf.convert_to_tensor(found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


def _dense(
    inputs: Any,
    units: int,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    name: Optional[str] = None,
    trainable: bool = True,
    **others: Any,
) -> Any:
    """Compute ``activation(inputs * kernel + bias)`` over the last axis, with variables of the current scope.

    :param name: scope of the variables, by default "dense", "dense_1" and so on
    """
    given = sorted(key for key, value in others.items() if value is not None)
    if given:
        raise TypeError("tf.layers.dense: the arguments %s are not supported" % ", ".join(given))
    with tf.compat.v1.variable_scope(name, default_name="dense"):
        size = int(inputs.shape[-1])
        get = tf.compat.v1.get_variable
        kernel = get("kernel", [size, units], inputs.dtype, kernel_initializer, trainable=trainable)
        y = tf.tensordot(inputs, kernel, [[-1], [0]])
        if use_bias:
            zeros = tf.compat.v1.zeros_initializer() if bias_initializer is None else bias_initializer
            y += get("bias", [units], inputs.dtype, zeros, trainable=trainable)
    return get_activation(activation)(y) if activation is not None else y


class _Layers(types.ModuleType):
    """``tf.layers``, of which there is only `dense`."""

    dense = staticmethod(_dense)


class _WithOldNames(types.ModuleType):
    """TensorFlow 2 with the names of version 1 added, also in modules such as ``tf.nn``. Imported on first use."""

    where = staticmethod(where)
    get_default_graph = staticmethod(_Graph)
    layers = _Layers("tensorflow.layers")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            return getattr(tf, name)
        value = of_either_version(tf, tf.compat.v1, name)
        if name in SUBMODULES:
            value = _Submodule(name, value)
        setattr(self, name, value)
        return value


class _Submodule(types.ModuleType):
    """A module inside of TensorFlow 2 with the names of that of version 1 added."""

    def __init__(self, name: str, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            return getattr(self._module, name)
        return of_either_version(self._module, getattr(tf.compat.v1, self._name), name, self._name + ".")


REPLACED.add(_WithOldNames("tensorflow"), "tensorflow", owner=_WithOldNames)
