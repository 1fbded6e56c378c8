"""Loads native ops on first use; says once why one cannot be used."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Callable, Dict, Optional

from returnn_tf.native.build import build
from returnn_tf.native.cache import note_tested, was_tested
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import OPS
from returnn_tf.util.lazy_tf import tf

log = logging.getLogger(__name__)

SWITCH = "RETURNN_TF_NATIVE"

SelfTest = Callable[[Any], None]
"""Gets the module of the ops; raises `NativeOpError` if they compute something else than they should."""

_lock = threading.Lock()
_loaded: Dict[str, Optional[Any]] = {}


def native_op(name: str, self_test: SelfTest) -> Optional[Any]:
    """The TensorFlow ops of a native op, compiled if they have to be.

    :param name: key in `sources.OPS`
    :param self_test: run until it has passed once for the compiled file
    :return: a module with the ops as functions; None if they cannot be used here. The first time, a warning says why.
    """
    with _lock:
        if name not in _loaded:
            _loaded[name] = _load_or_warn(name, self_test)
        return _loaded[name]


def _load_or_warn(name: str, self_test: SelfTest) -> Optional[Any]:
    # All ops are for CPU so far: with a GPU the plain form stays on the device where its arrays are.
    if os.environ.get(SWITCH, "1") == "0" or tf.config.list_physical_devices("GPU"):
        return None
    try:
        return load(name, self_test)
    except NativeOpError as exc:
        log.warning("The native op %s cannot be used, its slower form in plain TensorFlow takes over: %s.", name, exc)
        return None


def load(name: str, self_test: SelfTest) -> Any:
    """As `native_op`, but what goes wrong is raised.

    :raises NativeOpError: the op cannot be compiled, loaded, or computes something wrong
    """
    path, _ = build(OPS[name])
    try:
        ops = tf.load_op_library(path)
    except (tf.errors.OpError, OSError) as exc:
        raise NativeOpError("%s cannot be loaded: %s" % (path, str(exc).splitlines()[0])) from exc
    # Not only where this process compiled it: one whose test failed, or was killed before it, left its file there.
    if not was_tested(path):
        with tf.init_scope():  # the first use is while a graph is traced
            self_test(ops)
        note_tested(path)
    return ops
