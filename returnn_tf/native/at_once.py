"""Compiles all native ops that a graph needs at once, instead of each one when tracing comes to it.

A graph that needs ops which are not in the cache is traced without them, while they are compiled. When all are there,
it is traced again, with them: the graph that runs is the one that a full cache gives.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Callable, Optional, TypeVar

from returnn_tf.logging.log import log
from returnn_tf.logging.text import counted
from returnn_tf.native.build import build, find
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import OPS

Graph = TypeVar("Graph")

#: Threads that wait for compilers, whose number `processes.run_all` limits, or for other processes that compile.
_THREADS = ThreadPoolExecutor(32, thread_name_prefix="native-op")

_compiled: dict[str, Future[tuple[str, bool]]] = {}
_wanted: contextvars.ContextVar[Optional[dict[str, Future[tuple[str, bool]]]]] = contextvars.ContextVar(
    "wanted_native_ops", default=None
)


def with_ops_at_once(trace: Callable[[], Graph]) -> Graph:
    """Trace a graph, with all native ops that it needs.

    :param trace: called again when the ops are compiled that it has asked for, until it asks for no more of them:
        without an op, a graph may not come to the place that needs another one
    """
    while True:
        wanted: dict[str, Future[tuple[str, bool]]] = {}
        token = _wanted.set(wanted)
        try:
            graph = trace()
        finally:
            _wanted.reset(token)
        if not wanted:
            return graph
        _wait_for(wanted)


def is_postponed(name: str) -> bool:
    """Return whether the graph that is traced here has to do without an op, until that is compiled."""
    wanted = _wanted.get()
    if wanted is None:
        return False
    if name not in wanted:
        try:
            if name in _compiled or find(OPS[name]) is not None:
                return False
        except NativeOpError:  # `built` raises it again
            return False
        wanted[name] = _compiled[name] = _THREADS.submit(build, OPS[name])
    return True


def is_awaited(name: str) -> bool:
    """Return whether the graph that is traced here does without an op, and is traced again when that is compiled."""
    return name in (_wanted.get() or ())


def built(name: str) -> str:
    """Return the path of the library of an op, which this call compiles if nothing has.

    :raises NativeOpError: see `build`
    """
    compiled = _compiled.pop(name, None)
    path, _ = build(OPS[name]) if compiled is None else compiled.result()
    return path


def _wait_for(wanted: Mapping[str, Future[tuple[str, bool]]]) -> None:
    """Wait until ops are compiled, some of which another thread may have loaded meanwhile; show the progress.

    :param wanted: by name
    """
    start = time.perf_counter()
    waiting = list(wanted.values())
    if not all(one.done() for one in waiting):
        log.write(3, "Waiting for the compilation of native ops, once on this machine: %s" % ", ".join(sorted(wanted)))
    bar = log.progress("compile native ops")
    try:
        for done, _ in enumerate(as_completed(waiting), start=1):
            bar.update(done, done / len(waiting))
    finally:
        bar.close()
    failed = sum(one.exception() is not None for one in waiting)
    text = "%s compiled%s after waiting for %.1f s: the graph is traced again"
    compiled = counted(len(waiting) - failed, "native op")
    log.write(3, text % (compiled, ", %d failed" % failed if failed else "", time.perf_counter() - start))
