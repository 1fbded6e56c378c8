"""Shapes of tensors as vectors of a graph, each computed once, and reshapes whose gradients use them.

TensorFlow computes a shape wherever one is needed; in deep networks such ops are a large part of a graph.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.util.custom_gradient import note_equivalent, register_once
from returnn_tf.util.lazy_tf import tf

#: Ops whose first result has the shape of their first input.
_KEEP_SHAPE = frozenset(("BiasAdd", "Identity", "Relu", "RtfActivate", "RtfNorm", "Sigmoid", "Tanh"))
_ATTRIBUTE = "_rtf_known_shapes"


@dataclasses.dataclass
class _Known:
    """The vectors of one graph.

    :param shapes: by the name of a tensor, or `_key`
    :param sizes: entries of vectors, by (name of a vector, axis)
    :param resized: vectors with another last size, by (name of the vector, this size)
    :param constants: static sizes
    """

    shapes: dict[Any, Any] = dataclasses.field(default_factory=dict)
    sizes: dict[tuple[str, int], Any] = dataclasses.field(default_factory=dict)
    resized: dict[tuple[str, int], Any] = dataclasses.field(default_factory=dict)
    constants: dict[tuple[int, ...], Any] = dataclasses.field(default_factory=dict)


def known_shape(x: Any) -> Any:
    """Return the shape of a tensor, int32 [rank]; in the graph at hand the vector that it was reshaped by, if any."""
    known = _known_with(x)
    if known is None:
        return tf.shape(x)
    while x.name not in known.shapes and x.op.type in _KEEP_SHAPE and x.name.endswith(":0"):
        x = x.op.inputs[0]
    key = _key(x)
    if key not in known.shapes:
        known.shapes[key] = tf.shape(x)
    return known.shapes[key]


def _key(x: Any) -> Any:
    """Return what is the same for tensors that are known to have the same shape."""
    inputs, kind = x.op.inputs, x.op.type
    if kind == "RtfPack":
        return kind, x.op.get_attr("least_share"), inputs[1].name, known_shape(inputs[0]).name
    if kind == "RtfUnpack":
        return kind, inputs[1].name, inputs[2].name, x.shape[-1]
    return x.name


def known_size(x: Any, axis: int) -> Any:
    """Return an entry of `known_shape`, int32 scalar."""
    shape, known = known_shape(x), _known_with(x)
    if known is None:
        return shape[axis]
    if (shape.name, axis) not in known.sizes:
        known.sizes[shape.name, axis] = shape[axis]
    return known.sizes[shape.name, axis]


def known_shape_with(x: Any, depth: int, width: int) -> Any:
    """Return the shape of a tensor with another last size.

    :param x: [..., depth]
    :param width: the size instead of ``depth``
    """
    shape, known = known_shape(x), _known_with(x)
    if width == depth:
        return shape
    difference = [*(0 for _ in range(x.shape.rank - 1)), width - depth]
    if known is None:
        return shape + difference
    if (shape.name, width) not in known.resized:
        resized = shape + difference
        known.resized[shape.name, width], known.resized[resized.name, depth] = resized, shape
    return known.resized[shape.name, width]


def reshape(x: Any, shape: Any) -> Any:
    """Return the tensor in another shape.

    :param shape: int32 vector without -1
    """
    y, known = _reshaped(x, shape), _known_with(x)
    if known is not None:
        known.shapes[y.name] = shape
    return y


def as_rows(x: Any, width: int) -> Any:
    """Return a tensor [..., width] as matrix."""
    return _reshaped(x, _constant(x, (-1, width)))


def with_frames_of(x: Any, rows: Any, depth: int, width: int) -> Any:
    """Return rows with the axes of the frames that they were computed from.

    :param x: [..., depth]
    :param rows: [frames, width]
    :return: [..., width]
    """
    sizes = _sizes(x.shape[:-1].concatenate(width))
    y = reshape(rows, known_shape_with(x, depth, width)) if sizes is None else _reshaped(rows, _constant(x, sizes))
    y.set_shape(x.shape[:-1].concatenate(width))
    return y


def _sizes(shape: Any) -> Optional[tuple[int, ...]]:
    """Return static sizes with -1 for what is not static; None if a reshape can't tell by them."""
    sizes = shape.as_list()
    return None if sizes.count(None) > 1 or 0 in sizes else tuple(-1 if size is None else size for size in sizes)


def _constant(x: Any, sizes: tuple[int, ...]) -> Any:
    """Return sizes as a constant, of the graph at hand if that is the one of a tensor."""
    known = _known_with(x)
    if known is None:
        return sizes
    if sizes not in known.constants:
        known.constants[sizes] = tf.constant(sizes)
    return known.constants[sizes]


def _reshaped(x: Any, shape: Any) -> Any:
    if _known_with(x) is None:
        return tf.reshape(x, shape)
    register_once(RtfReshape=_gradient)
    note_equivalent("RtfReshape")
    with x.graph.gradient_override_map({"Reshape": "RtfReshape"}):
        return tf.raw_ops.Reshape(tensor=x, shape=shape)  # `tf.reshape` infers the static shape a second time


def _gradient(op: Any, dy: Any) -> list[Any]:
    x = op.inputs[0]
    sizes = _sizes(x.shape)
    dx = _reshaped(dy, known_shape(x) if sizes is None else _constant(x, sizes))
    dx.set_shape(x.shape)
    return [dx, None]


def _known_with(x: Any) -> Optional[_Known]:
    """Return the vectors of the graph at hand, or None if a tensor is not of it, or there is none."""
    if tf.executing_eagerly() or getattr(x, "graph", None) is not tf.compat.v1.get_default_graph():
        return None
    known = getattr(x.graph, _ATTRIBUTE, None)
    if known is None:
        known = _Known()
        setattr(x.graph, _ATTRIBUTE, known)  # so that they live as long as the graph does
    return known
