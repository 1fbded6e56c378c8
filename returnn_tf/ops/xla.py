"""Graphs for XLA (``jit_compile``): which ops they may have, and where what it compiles is kept between runs."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Optional

from returnn_tf.config.errors import OptionError
from returnn_tf.native.portable import graph_ops
from returnn_tf.native.toolchain import cpu_features
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.trust import is_ours

ENVIRONMENT = "RETURNN_TF_XLA_CACHE"
_FLAGS = "TF_XLA_FLAGS"
_FOLDER_FLAG = "--tf_xla_persistent_cache_directory="


def in_ops_for_xla() -> bool:
    """Return whether the graph is for XLA, where sizes of arrays must follow from the shapes of the feed."""
    return graph_ops().only_xla


def xla_limit(steps: Any) -> Optional[Any]:
    """Return ``maximum_iterations`` for this number of steps: XLA needs it, elsewhere it costs time."""
    return steps if in_ops_for_xla() else None


def keep_compiled() -> str:
    """Let XLA keep what it compiles, and return the folder; TensorFlow reads this with its devices.

    ``$RETURNN_TF_XLA_CACHE``, or a folder in the user's cache. A folder that ``$TF_XLA_FLAGS`` names stays. There is
    one folder per kind of CPU and release of TensorFlow, as the compiled code fits no other.
    """
    given = [flag for flag in os.environ.get(_FLAGS, "").split() if flag.startswith(_FOLDER_FLAG)]
    if given:
        return given[-1][len(_FOLDER_FLAG) :]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    base = os.environ.get(ENVIRONMENT) or os.path.join(home, "returnn_tf", "xla")
    kind = hashlib.sha256(("%s %s" % (tf.__version__, cpu_features())).encode()).hexdigest()[:16]
    folder = os.path.join(base, kind)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if not is_ours(folder):  # it is loaded as code
        text = "jit_compile: the folder %s belongs to another user, or others may write to it: fix its permissions"
        raise OptionError((text + ", or set %s to another folder") % (folder, ENVIRONMENT))
    os.environ[_FLAGS] = ("%s %s%s" % (os.environ.get(_FLAGS, ""), _FOLDER_FLAG, folder)).strip()
    return folder
