"""``from returnn.tf.compat import v1 as tf`` and ``import returnn.tf.compat as tf_compat``."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.util.lazy_tf import tf

register_compat(__name__, "returnn.tf.compat", "TFCompat")


def __getattr__(name: str) -> Any:
    if name == "v1":
        return tf.compat.v1
    if name == "v2":
        return tf
    raise AttributeError("module 'returnn.tf.compat' has no attribute %r" % name)
