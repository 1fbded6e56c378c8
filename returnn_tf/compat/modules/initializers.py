"""``from TFUtil import get_initializer``: initial values of variables by their names in configs."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.ops.initializers import get_initializer as _by_name
from returnn_tf.util.lazy_tf import tf


class NamedInitializer:
    """An initialiser for ``tf.get_variable``, named as in the options of layers.

    :param spec: a name, a number, an expression or a dict
    :param seed: of the values, if they are drawn outside of a layer
    """

    def __init__(self, spec: Any, seed: Optional[int] = None) -> None:
        #: function (shape, numpy Generator) -> array
        self.values = _by_name(spec)
        self._seed = seed

    def __call__(self, shape: Any, dtype: Any = "float32", partition_info: Any = None) -> Any:
        """Return a tensor with the initial values."""
        del partition_info
        sizes = tuple(int(size) for size in shape)
        return tf.cast(tf.constant(self.values(sizes, np.random.default_rng(self._seed))), dtype)


def get_initializer(
    s: Any, seed: Optional[int] = None, eval_local_ns: Optional[dict[str, Any]] = None, dtype: Any = "float32"
) -> NamedInitializer:
    """Return the initialiser of a name such as "glorot_uniform".

    :param eval_local_ns: not needed
    :param dtype: not needed: the variable has its own
    """
    del eval_local_ns, dtype
    return NamedInitializer(s, seed)
