"""A graph for sessions in which ops mean what they mean in a `tf.function`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from returnn_tf.util.lazy_tf import tf


@functools.cache
def _graph_class() -> Any:
    """Return the class; TensorFlow is not loaded with this module."""

    class SessionGraph(tf.Graph):  # type: ignore[misc]
        """A graph that can act like that of a function while ops are emitted.

        TensorFlow asks a graph whether it is that of a function. In others ``a == b`` does not compare the values of
        tensors but is False, and tensors computed outside are refused.
        """

        def __init__(self) -> None:
            super().__init__()
            self.acts_as_function = False
            #: TensorFlow looks for the outermost graph that is not that of a function.
            self.outer_graph = tf.Graph()

        @property
        def building_function(self) -> bool:
            """Return whether the graph acts like that of a function."""
            return self.acts_as_function

        def capture(self, tensor: Any, name: Any = None, shape: Any = None) -> Any:
            """Return a tensor as one of this graph: a constant if it was computed outside."""
            del shape
            if isinstance(tensor, tf.__internal__.EagerTensor):
                with tf.control_dependencies(None):
                    return tf.constant(tensor.numpy(), tensor.dtype, name=name)
            return tensor

    return SessionGraph


def session_graph() -> Any:
    """Return a new graph."""
    return _graph_class()()


@contextlib.contextmanager
def like_a_function(graph: Any) -> Iterator[None]:
    """Make this the graph in which ops are made, as in a `tf.function`."""
    with _acting(graph, True):
        yield


@contextlib.contextmanager
def for_variables() -> Iterator[None]:
    """Let variables that are made in the context belong to the graph, as in sessions."""
    with _acting(tf.compat.v1.get_default_graph(), False):
        yield


@contextlib.contextmanager
def _acting(graph: Any, as_function: bool) -> Iterator[None]:
    before = getattr(graph, "acts_as_function", False)
    graph.acts_as_function = as_function
    try:
        with graph.as_default():  # again: TensorFlow asks the graph when it becomes the default
            yield
    finally:
        graph.acts_as_function = before
