"""TensorFlow as the code of configs sees it: version 2, with names that it dropped from ``tf.compat.v1``."""

from __future__ import annotations

import types
from typing import Any

from returnn_tf.config.compat_modules import REPLACED
from returnn_tf.ops.tf1_names import where, with_old_keywords
from returnn_tf.util.lazy_tf import tf


class _WithOldNames(types.ModuleType):
    """A module of TensorFlow 2 with the names of version 1 added. Imported on first use."""

    where = staticmethod(where)

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(tf, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            value = getattr(tf.compat.v1, name)
        value = with_old_keywords(name, value)
        setattr(self, name, value)
        return value


REPLACED.add(_WithOldNames("tensorflow"), "tensorflow", owner=_WithOldNames)
