"""Products in the steps of a loop with a tensor that all steps share, whose gradient is computed after the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.ops.product import Matrix, product
from returnn_tf.tensor import Data
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


class OverSteps:
    """A product ``f(x, shared)``, linear in both, of an x of each step and a tensor from outside the loop.

    TensorFlow computes the gradient of such a tensor in each step, and adds it to the sum of the steps before, so that
    arrays of its size pass through the memory several times in each step. Here a step keeps x and the gradient of its
    result, and the gradient of the tensor is computed from those of all steps.

    :param function: of x and the tensor; if x has an axis of steps before its others, so does the result
    :param shared: float tensor
    :param steps: how many there are, int32 scalar
    :param argument: sizes of x in a step
    :param result: sizes of the result in a step
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        shared: Any,
        *,
        steps: Any,
        argument: Sequence[Any],
        result: Sequence[Any],
    ) -> None:
        self._function, self._shared = function, shared
        self._sizes = [tf.stack(list(sizes)) for sizes in (argument, result)]
        self._shapes = [tf.TensorShape([_static(size) for size in sizes]) for sizes in (argument, result)]

        @custom_gradient
        def lists(shared: Any) -> tuple[Any, Callable[[Any, Any], Any]]:
            def gradient(*kept: Any) -> Any:
                x, dy = map(self._stacked, kept, self._sizes, self._shapes)
                again = tf.identity(shared)
                return tf.gradients(function(x, again), again, dy)[0]

            return tuple(self._empty(sizes, steps) for sizes in self._sizes), gradient

        # Nothing is ever written to these: their gradients are lists of what the steps keep.
        self._lists = lists(shared)

    def product(self, x: Any, step: Any) -> Any:
        """Compute the product in a step, in which this is called once.

        :param step: its index, int32 scalar
        """

        @custom_gradient
        def noted(x: Any, shared: Any, *_: Any) -> tuple[Any, Callable[[Any], Any]]:
            def gradient(dy: Any) -> Any:
                again = tf.identity(x)
                dx = tf.gradients(self._function(again, shared), again, dy)[0]  # a function of the tensor, too
                return dx, None, x, dy

            return self._function(x, shared), gradient

        return noted(x, self._shared, *(self._entry(*given, step) for given in zip(self._lists, self._sizes)))

    def _empty(self, sizes: Any, steps: Any) -> Any:
        return tf.raw_ops.TensorListReserve(element_shape=sizes, num_elements=steps, element_dtype=self._shared.dtype)

    def _entry(self, values: Any, sizes: Any, step: Any) -> Any:
        return tf.raw_ops.TensorListGetItem(
            input_handle=values, index=step, element_shape=sizes, element_dtype=self._shared.dtype
        )

    def _stacked(self, values: Any, sizes: Any, shape: Any) -> Any:
        x = tf.raw_ops.TensorListStack(input_handle=values, element_shape=sizes, element_dtype=self._shared.dtype)
        return tf.ensure_shape(x, [None, *shape])


def _static(size: Any) -> Optional[int]:
    return size if isinstance(size, int) else None


#: Of a layer of a loop: its product with what all steps share.
OVER_STEPS: Aux[OverSteps] = Aux("product in each step")


class StepMatrix(NamedTuple):
    """A matrix in a step, as `times`, `project` and `Matrix` take it."""

    over_steps: OverSteps
    step: Any

    def product(self, x: Any) -> Any:
        """Compute ``x W``.

        :param x: [batch, depth]
        """
        return self.over_steps.product(x, self.step)


def known_sizes(ctx: EmitContext, data: Data) -> Optional[list[Any]]:
    """Return the sizes of a value of a step if gradients of what the steps share are computed after them; else None.

    :param ctx: that of a layer before the loop
    :param data: the template of the value; None, if a size is known only in the step
    """
    dims = ctx.lowering.dims
    if ctx.lowering.loop.steps is None or ctx.product_dtype is not None:
        return None
    for dim in data.dims:
        if dim.expr is not None or dim in dims.sizes if dim.is_batch else not ctx.has_lens(dim):
            return None
    return ctx.shape(data)


def rows_over_steps(ctx: EmitContext, result: Data, w: Any, *, transposed: bool = False) -> Optional[OverSteps]:
    """Prepare products of rows [batch, depth] with a matrix before a loop; None if its gradient remains in the steps.

    :param result: the template of the result in a step
    :param w: [depth, width], or [width, depth] if ``transposed``; anything else gives None
    """
    sizes = known_sizes(ctx, result)
    if sizes is None or not tf.is_tensor(w) or w.shape.rank != 2 or len(sizes) != 2 or result.batch_axis != 0:
        return None
    depth, width = reversed(w.shape) if transposed else w.shape

    def function(x: Any, w: Any) -> Any:
        return product(x, Matrix(w, transposed), train=True, product_dtype=None)

    steps = ctx.lowering.loop.steps
    return OverSteps(function, w, steps=steps, argument=[sizes[0], depth], result=[sizes[0], width])
