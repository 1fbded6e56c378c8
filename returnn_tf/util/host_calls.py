"""Calls of Python functions within a graph, with access to the errors behind those of TensorFlow."""

from __future__ import annotations

import itertools
import re
import threading
from typing import Any, Callable, Optional

from returnn_tf.util.lazy_tf import tf

_MARK = re.compile(r"host call (\d+) failed")
_MOST_KEPT = 16
_numbers = itertools.count(1)
_failures: dict[int, Exception] = {}
_lock = threading.Lock()


class HostCallError(Exception):
    """The form in which TensorFlow sees an error in a called function."""


def host_call(function: Callable[..., Any], inputs: Any, dtypes: Any) -> Any:
    """Return the results of a Python function that is called in each run of the graph; it must not be left out.

    :param function: gets arrays, returns arrays of ``dtypes``
    """

    def call(*arrays: Any) -> Any:
        try:
            return function(*arrays)
        except Exception as exc:
            raise HostCallError("host call %d failed: %s" % (_keep(exc), " ".join(str(exc).split()))) from exc

    return tf.numpy_function(call, inputs, dtypes, stateful=True)


def _keep(exc: Exception) -> int:
    with _lock:
        number = next(_numbers)
        _failures[number] = exc
        for old in sorted(_failures)[:-_MOST_KEPT]:
            del _failures[old]
        return number


def failed_host_call(exc: BaseException) -> Optional[Exception]:
    """Return the error of a called function behind an error of TensorFlow, or None."""
    found = _MARK.search(str(exc))
    return _failures.get(int(found.group(1))) if found else None
