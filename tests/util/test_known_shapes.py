"""Shapes that a graph knows: right for all sizes, made once, also in gradients and loops; plain ops in eager mode."""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.util.known_shapes import as_rows, known_shape, known_shape_with, known_size, reshape, with_frames_of
from returnn_tf.util.lazy_tf import tf

DEPTH, WIDTH = 3, 5


def layers(x: Any, count: int = 4) -> Any:
    """Multiply frames [batch, time, DEPTH] by matrices, as dense layers do."""
    for i in range(count):
        depth, width = (DEPTH, WIDTH) if i % 2 == 0 else (WIDTH, DEPTH)
        y = tf.matmul(as_rows(x, depth), tf.fill([depth, width], 0.1 + i))
        x = tf.tanh(with_frames_of(x, y, depth, width))
    return x


def with_gradient(x: Any) -> tuple[Any, Any]:
    y = layers(x)
    return y, tf.gradients(y, [x])[0] if not tf.executing_eagerly() else None


def traced(function: Any, batch: Optional[int] = None) -> Any:
    spec = tf.TensorSpec([batch, None, DEPTH], "float32")
    return tf.function(function, input_signature=[spec], autograph=False).get_concrete_function()


@pytest.mark.parametrize("batch", [None, 2, 0])
def test_results_and_gradients(batch: Optional[int]) -> None:
    graph = traced(with_gradient, batch)
    for shape in [(2, 4, DEPTH), (2, 1, DEPTH), (0, 2, DEPTH)]:
        if batch not in (None, shape[0]):
            continue
        x = tf.constant(np.random.RandomState(1).normal(0, 0.1, shape), tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            expected = layers(x)
        for got, wanted in zip(graph(x), (expected, tape.gradient(expected, x))):
            np.testing.assert_array_equal(got, wanted)


def test_more_layers_need_no_more_shapes() -> None:
    def types(count: int, batch: Optional[int] = None) -> Counter[str]:
        graph = traced(lambda x: tf.gradients(layers(x, count), [x])[0], batch).graph
        return Counter(op.type for op in graph.get_operations())

    few, many = types(2), types(6)
    assert many["Reshape"] == 3 * few["Reshape"]
    assert (few["Shape"], few["AddV2"]) == (2, 1)  # of x, and of the ones that `tf.gradients` begins with
    assert (many["Shape"], many["AddV2"]) == (2, 1)
    assert types(6, batch=2)["AddV2"] == 0


def test_sizes() -> None:
    def emit(x: Any) -> Any:
        y = reshape(x, tf.stack([tf.shape(x)[1], tf.shape(x)[0], DEPTH]))
        assert known_size(tf.nn.relu(y), 0) is known_size(y, 0)
        assert known_shape(tf.nn.softplus(y)) is not known_shape(y)
        assert known_shape_with(y, DEPTH, DEPTH) is known_shape(tf.identity(y))
        return known_size(y, 0), known_shape(y), known_shape_with(y, DEPTH, 7)

    size, shape, other = traced(emit)(tf.zeros([2, 4, DEPTH]))
    assert size == 4 and shape.numpy().tolist() == [4, 2, DEPTH] and other.numpy().tolist() == [4, 2, 7]


@pytest.mark.parametrize("gradient_graph", [False, True])
def test_within_loops(gradient_graph: bool) -> None:
    """Each body is a graph of its own, and its gradient another one."""

    def emit(x: Any) -> Any:
        known_shape(x)
        y = tf.while_loop(
            lambda i, _: i < 3, lambda i, z: (i + 1, layers(z)), [0, x], shape_invariants=[tf.TensorShape([]), x.shape]
        )[1]
        return tf.gradients(y, [x])[0] if gradient_graph else y

    def plain(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers(layers(layers(x)))
        return tape.gradient(y, x) if gradient_graph else y

    x = tf.constant(np.random.RandomState(1).normal(0, 0.1, (2, 4, DEPTH)), tf.float32)
    np.testing.assert_allclose(traced(emit)(x), plain(x), rtol=1e-6)
