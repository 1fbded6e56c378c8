"""Loops, and the values that they write in each step, for all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.config.errors import LoopError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.ops.frames.stacked import first_entries, padded_entries, stacked
from returnn_tf.ops.xla import xla_limit
from returnn_tf.tensor import Data, Dim, batch_dim
from returnn_tf.util.lazy_tf import tf


def run_loop(go_on: Callable[..., Any], body: Callable[..., Any], start: Sequence[Any], limit: Any) -> Any:
    """Run `tf.while_loop`.

    :param limit: the maximum number of steps, which ``go_on`` must respect as well
    """
    # The limit speeds up the backward pass. The converter to ONNX takes a constant one for int64, also in the body.
    limit = xla_limit(limit) if in_portable_ops() else limit
    return tf.while_loop(go_on, body, tuple(start), maximum_iterations=limit)


#: A loop that ends by itself may have a limit far beyond its steps, such as 2**31 - 1. Above this one its arrays grow
#: with the steps, since TensorFlow ends the process where it can't allocate all entries at once.
_MOST_RESERVED = 10_000


class StackedResult:
    """A value that a loop writes in each step, in one array that is stacked at its end.

    :param dtype: of an entry
    :param sizes: of an entry: ints or int32 scalars; None where it is not known before the loop
    :param limit: the maximum number of steps
    :param is_full: whether there are always that many steps
    """

    def __init__(self, dtype: tf.DType, sizes: list[Any], limit: Any, *, is_full: bool) -> None:
        self._sizes, self._is_full = sizes, is_full
        #: To be written in each step at the index of the step.
        self.array = _array(dtype, [_static(size) for size in sizes], limit, is_full=is_full)

    def all_steps(self, array: Any, count: Any) -> Any:
        """Return the written values.

        :param array: `array` at the end of the loop
        :param count: the number of steps, int32 scalar
        :return: [steps, ...]
        """
        known = [-1 if size is None else size if _static(size) is None else _static(size) for size in self._sizes]
        if self._is_full or in_portable_ops():
            values = stacked(array, known)
            # Other formats can't gather. There, the array has just the entries that were written.
            return values if self._is_full else values[:count]
        return first_entries(array, count, known)


class StackedFrames:
    """A value with an axis of another size in each step, in one array whose entries are padded at the end of the loop.

    This axis comes first in the entries.

    :param node: the layer
    :param dim: the axis
    :param sizes: of the value, see `sizes_before`
    :param limit: the maximum number of steps
    :param is_full: whether there are always that many steps
    """

    def __init__(self, node: Node, dim: Dim, sizes: list[Any], limit: Any, *, is_full: bool) -> None:
        self._rank, self._axis = node.output.rank, node.output.dims.index(dim)
        self.dim = dim
        self._sizes = [size for axis, size in enumerate(sizes) if axis != self._axis]
        #: To be written in each step at the index of the step.
        shape = [None, *(_static(size) for size in self._sizes)]
        self.array = _array(node.output.dtype, shape, limit, is_full=is_full)

    def all_steps(self, array: Any, sizes: Any) -> Any:
        """Return the written values.

        :param array: `array` at the end of the loop
        :param sizes: of the axis in each step, int32 [steps]
        :return: [steps, ...]
        """
        shape = [-1 if size is None else size for size in self._sizes]
        return move_axis(padded_entries(array, sizes, shape), self._rank + 1, 1, self._axis + 1)


def _array(dtype: tf.DType, shape: Sequence[Optional[int]], limit: Any, *, is_full: bool) -> tf.TensorArray:
    """Return an array for a value of each step.

    :param shape: of a value
    """
    # Growing costs time in the backward pass, and XLA and ONNX have no arrays that grow.
    grows = not is_full and not in_portable_ops() and (_static(limit) or 0) > _MOST_RESERVED
    return tf.TensorArray(dtype, size=_MOST_RESERVED if grows else limit, dynamic_size=grows, element_shape=shape)


def dims_of_step(ctx: EmitContext, nodes: Sequence[Node]) -> dict[Node, Dim]:
    """Return the axis of each layer whose lengths the step itself defines, such as those of a slice.

    :param ctx: of the loop
    :param nodes: in the step, whose values leave the loop
    :raises LoopError: a layer has more than one
    """
    result: dict[Node, Dim] = {}
    for node in nodes:
        dims = [d for d in node.output.dims if d.is_dynamic() and not d.is_batch and not _is_outer(ctx, d)]
        if len(dims) > 1:
            raise LoopError(
                "layer %r leaves the loop as %s: the lengths of both %s and %s differ by step, but of a value for all "
                "steps only one axis can have such lengths. Merge or reduce one of them in the loop."
                % (node.path, node.output, dims[0], dims[1])
            )
        result.update((node, dim) for dim in dims)
    return result


def batch_of_step(ctx: EmitContext, data: Data) -> Optional[Dim]:
    """Return the batch dim of a value if the step itself defines it, e.g. by merging frames into it, else None.

    :param ctx: of the loop
    """
    dim = None if data.batch_axis is None else data.dims[data.batch_axis]
    known = dim is batch_dim or any(dim is known for dep in ctx.node.deps for known in dep.output.dims)
    return None if known else dim


def check_follows_hypotheses(ctx: EmitContext, node: Node, data: Data) -> None:
    """Check that a value of the step of a search has one entry for each hypothesis.

    :param ctx: of the loop
    :raises LoopError: frames, or another axis, were merged into its batch axis
    """
    if batch_of_step(ctx, data) is not None:
        raise LoopError(
            "Layer %r is %s: another axis is merged into its batch axis, so the value can't follow the hypotheses of "
            "the search. In the loop, split it again, e.g. by split_batch_time or unflatten_batch, before it is used "
            "after a choice, by 'prev:', or outside of the loop." % (node.path, data)
        )


def _is_outer(ctx: EmitContext, dim: Dim) -> bool:
    return ctx.has_lens(dim) or ctx.lowering.dims.is_by_frame(dim)


def sizes_before(ctx: EmitContext, data: Data, beam: int) -> list[Any]:
    """Return the sizes of the value of a step, None where they are not known before the loop.

    :param ctx: of the loop
    :param beam: hypotheses per sequence
    """
    lowering, sizes = ctx.lowering, list[Any](data.static_shape)
    for axis, dim in enumerate(data.dims):
        if dim.is_batch and dim.expr is None and dim not in lowering.dims.sizes and not batch_of_step(ctx, data):
            sizes[axis] = lowering.dims.batch_size * beam
        elif sizes[axis] is None and not dim.is_batch:
            sizes[axis] = lowering.dims.sizes.get(dim)
    return sizes


def _static(size: Any) -> Optional[int]:
    """Return a size as an int if it is known while tracing."""
    if size is None or isinstance(size, int):
        return size
    value = tf.get_static_value(size)
    return None if value is None else int(value)
