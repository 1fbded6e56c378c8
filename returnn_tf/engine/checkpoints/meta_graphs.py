"""The file ``.meta`` beside each checkpoint: the graph of the network, as TensorFlow's older programs load it.

The graph is built once per network, in a thread beside training, after the first checkpoint is written. Those written
until then get it afterwards, later ones a link to it. Training does not depend on it: where it can't be built or
written, there is one warning.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Callable, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.engine.support.atomic_files import sync
from returnn_tf.logging.log import log
from returnn_tf.logging.text import bytes_text

SUFFIX = ".meta"
#: Function(training plan of a network, its config) -> the content of the file.
BuildGraph = Callable[[Plan, Config], bytes]
_POLL_SECONDS = 0.1


class _Cancelled(BaseException):
    """Raised in a thread whose graph is no longer wanted."""


class _Graph:
    """The graph of one network, and the checkpoints that wait for it."""

    def __init__(self, plan: Plan, config: Config) -> None:
        self.plan, self.config = plan, config
        self.waiting: list[str] = []
        self.content: Optional[bytes] = None
        self.written = ""  # a file with it
        self.thread: Optional[threading.Thread] = None


class MetaGraphs:
    """Writes the graphs beside the checkpoints of a model. Its methods may be called in any thread.

    :param build: makes the graph of a network; None: no files are written
    """

    def __init__(self, build: Optional[BuildGraph]) -> None:
        self._build = build
        self._graphs: list[_Graph] = []  # the last one is that of the current network
        self._failed = False
        #: held while a file is put beside a checkpoint; to be held while one is deleted
        self.lock = threading.RLock()

    @property
    def wanted(self) -> bool:
        """Return whether files are written."""
        return self._build is not None and not self._failed

    def expect(self, plan: Plan, config: Config, prefixes: Iterable[str]) -> None:
        """Record checkpoints of a network which lack the file. It is built with the next one, or by `finish`."""
        if self.wanted:
            with self.lock:
                self._of(plan, config).waiting += prefixes

    def add(self, plan: Plan, config: Config, prefix: str) -> None:
        """Put the graph of a network beside a checkpoint that is written, at once if the graph is built, else later."""
        if not self.wanted:
            return
        with self.lock:
            graph = self._of(plan, config)
            if graph.content is not None:
                self._publish(graph, prefix)
                return
            with contextlib.suppress(OSError):
                os.remove(prefix + SUFFIX)  # of another network, from an earlier run
            graph.waiting.append(prefix)
            self._start(graph)

    def finish(self) -> None:
        """Wait until all files are written."""
        for graph in self._graphs:
            self._start(graph)
            if graph.thread is not None:
                graph.thread.join()

    def cancel(self) -> None:
        """Stop building: the process is about to end; a later run writes what lacks."""
        self._failed = True
        for thread in [graph.thread for graph in self._graphs if graph.thread is not None]:
            while thread.is_alive():
                if thread.ident is not None:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(thread.ident), ctypes.py_object(_Cancelled)
                    )
                thread.join(_POLL_SECONDS)

    def _of(self, plan: Plan, config: Config) -> _Graph:
        """Return the graph of a network; the previous one is still built if checkpoints wait for it."""
        if not self._graphs or self._graphs[-1].plan is not plan:
            for before in self._graphs:
                self._start(before)
            self._graphs = [graph for graph in self._graphs if graph.waiting] + [_Graph(plan, config)]
        return self._graphs[-1]

    def _start(self, graph: _Graph) -> None:
        if graph.thread is None and graph.waiting and not self._failed:
            graph.thread = threading.Thread(target=self._run, args=(graph,), name="meta graph", daemon=True)
            graph.thread.start()

    def _run(self, graph: _Graph) -> None:
        assert self._build is not None
        begin = time.monotonic()
        try:
            content = self._build(graph.plan, graph.config)
            seconds = time.monotonic() - begin
            log.write(4, "Built the graph for the files .meta: %s in %.1f s" % (bytes_text(len(content)), seconds))
            with self.lock:
                graph.content = content
                for prefix in graph.waiting:
                    self._publish(graph, prefix)
                graph.waiting.clear()
        except _Cancelled:
            pass
        except Exception as exc:
            self._fail("%s: %s" % (type(exc).__name__, exc))
            log.write(5, traceback.format_exc().rstrip())

    def _publish(self, graph: _Graph, prefix: str) -> None:
        """Write the file; without its checkpoint, which may be deleted meanwhile, there is nothing to do."""
        if self._failed or not os.path.exists(prefix + ".index"):
            return
        assert graph.content is not None
        folder, name = os.path.split(os.path.abspath(prefix))
        temp = os.path.join(folder, ".%s%s.tmp-%i" % (name, SUFFIX, os.getpid()))
        try:
            _write(temp, graph.content, graph.written)
            os.replace(temp, prefix + SUFFIX)
            graph.written = prefix + SUFFIX
        except OSError as exc:
            self._fail("%s%s: %s" % (prefix, SUFFIX, exc.strerror or exc))
        finally:
            with contextlib.suppress(OSError):
                os.remove(temp)

    def _fail(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            log.warn(
                "The graph of the network can't be written beside the checkpoints, which other programs may look for "
                "there: %s. write_meta_graph = False disables it." % reason.splitlines()[0].rstrip(".")
            )


def lacking(found: Mapping[int, str]) -> dict[int, str]:
    """Return those of the checkpoints by epoch which have no such file."""
    return {epoch: prefix for epoch, prefix in found.items() if not os.path.exists(prefix + SUFFIX)}


def _write(path: str, content: bytes, same: str) -> None:
    """Write a file, as a link to one with the same content if that works."""
    with contextlib.suppress(OSError):
        os.remove(path)
    if same:
        try:
            os.link(same, path)
            return
        except OSError:  # it is deleted, or the file system has no links
            pass
    with open(path, "wb") as file:
        file.write(content)
    sync(path)
