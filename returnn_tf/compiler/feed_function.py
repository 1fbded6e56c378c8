"""`FeedFunction`: a function of a feed, traced once for each set of feed names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Callable, ClassVar, Optional

from returnn_tf.compiler.feed import FeedFormat
from returnn_tf.compiler.for_xla import ForXla
from returnn_tf.compiler.optimized_once import OptimizedOnce
from returnn_tf.native.at_once import with_ops_at_once
from returnn_tf.native.portable import portable_ops
from returnn_tf.util.lazy_tf import tf, without_collections


class FeedFunction:
    """A traced function of a feed: one graph for all batch sizes and lengths.

    Feeds may differ in their names, as lengths may be omitted where another key has the same axis: there is one graph
    per set of names.

    :param feed_format: names, shapes and dtypes
    :param emit: (tensors by feed name, further tensors) -> any structure of tensors; called while tracing
    :param specs: the `tf.TensorSpec`s of the further tensors
    :param before_trace: called before each tracing, which may take long
    :param before_run: called with the tensors before each run; may raise an error
    :param jit_compile: let XLA compile the graph, once for each shape of the tensors
    :param optimized_once: whether TensorFlow's optimizer is to pass over a graph for CPUs once, see `OptimizedOnce`
    :param traces_again: whether a graph may be traced more than once, see `with_ops_at_once`; not where ranks number
        what they do while they trace
    """

    #: The number of graphs made in this process: a step in which the number grows does not tell the speed of others.
    graphs_made: ClassVar[int] = 0

    def __init__(
        self,
        feed_format: FeedFormat,
        emit: Callable[..., Any],
        *,
        specs: Sequence[Any] = (),
        before_trace: Optional[Callable[[], None]] = None,
        before_run: Optional[Callable[[Mapping[str, Any]], None]] = None,
        jit_compile: bool = False,
        optimized_once: bool = False,
        traces_again: bool = True,
    ) -> None:
        self.feed_format = feed_format
        self._emit = emit
        self._specs = list(specs)
        self._before_trace, self._before_run = before_trace, before_run
        self._jit_compile, self._traces_again = jit_compile, traces_again
        self._optimized_once = optimized_once
        self._graphs: dict[frozenset[str], Any] = {}

    def __call__(self, feed: Mapping[str, Any], *further: Any) -> Any:
        """Return the result of the graph, as tensors.

        :param feed: feed name -> array or tensor
        :param further: tensors
        :raises ConfigError: the feed lacks a name or has the wrong shape
        """
        tensors = self.tensors(feed)
        return self.graph(tensors)(tensors, *further)

    def tensors(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the required entries of a feed as tensors; may run in another thread.

        :raises ConfigError: the feed lacks a name or has the wrong shape
        """
        return self.feed_format.convert(feed)

    def graph(self, tensors: Mapping[str, Any]) -> Any:
        """Return the concrete function for feeds with these names, traced at the first request.

        :param tensors: see `tensors`
        """
        if self._before_run is not None:
            self._before_run(tensors)
        return self._graph(frozenset(tensors))

    def trace(self) -> Any:
        """Return the concrete function for feeds with all names."""
        return self._graph(frozenset(self.feed_format.signature))

    def _graph(self, names: frozenset[str]) -> Any:
        if names not in self._graphs:
            FeedFunction.graphs_made += 1
            if self._before_trace is not None:
                self._before_trace()
            with without_collections():
                traced = partial(self._traced, names)
                self._graphs[names] = with_ops_at_once(traced) if self._traces_again else traced()
        return self._graphs[names]

    def _traced(self, names: frozenset[str]) -> Any:
        signature = {name: spec for name, spec in self.feed_format.signature.items() if name in names}
        options = {"input_signature": [signature, *self._specs], "autograph": False}

        def emit(*args: Any) -> Any:
            with _made_default_once():
                return self._emit(*args)

        if not self._jit_compile:
            function = tf.function(emit, **options).get_concrete_function()
            once = self._optimized_once and not tf.config.get_visible_devices("GPU")
            return OptimizedOnce(function) if once else function
        with portable_ops(for_xla=True):
            return ForXla(tf.function(emit, jit_compile=True, **options).get_concrete_function())

    @property
    def graphs(self) -> list[Any]:
        """Return all graphs traced so far."""
        return list(self._graphs.values())


@contextlib.contextmanager
def _made_default_once() -> Iterator[None]:
    """Emit ops without that each of them makes the graph the default one, which it is; this takes a tenth of the time.

    TensorFlow's Python function of an op enters `as_default` of its graph, which saves and restores all that a graph
    could take from another one.
    """
    graph = tf.compat.v1.get_default_graph()
    as_default, nothing = graph.as_default, contextlib.nullcontext(graph)

    def made_default() -> Any:
        is_default = tf.compat.v1.get_default_graph() is graph and not tf.executing_eagerly()
        return nothing if is_default else as_default()

    graph.as_default = made_default
    try:
        yield
    finally:
        del graph.as_default
