"""`custom_gradient` as configs import it: ops with a gradient of one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.util.custom_gradient import custom_gradient as with_gradient
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class OpView:
    """The inputs and outputs of an op, as the function of its gradient sees them."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]


class CustomGradient:
    """Makes functions of tensors that have another gradient than TensorFlow's."""

    def register(
        self,
        input_types: Sequence[Any],
        op: Callable[..., Any],
        grad_op: Callable[..., Any],
        name: Optional[str] = None,
    ) -> Callable[..., Any]:
        """Return a function like ``op`` whose gradient is ``grad_op``.

        :param input_types: their number is that of the arguments
        :param grad_op: function of the op, with ``inputs`` and ``outputs``, and the gradients of the outputs; returns
            the gradients of the inputs
        """
        del name
        count = len(input_types)

        @with_gradient
        def run(*args: Any) -> tuple[Any, Callable[..., Any]]:
            value = op(*args)
            outputs = value if isinstance(value, (list, tuple)) else [value]

            def grad(*grads: Any) -> Any:
                return grad_op(OpView(args, list(outputs)), *grads)

            return value, grad

        def call(*args: Any) -> Any:
            if len(args) != count:
                raise TypeError("this function was registered for %d tensors, got %d" % (count, len(args)))
            return run(*[tf.convert_to_tensor(x, dtype) for x, dtype in zip(args, input_types)])

        return call

    def generic_loss_and_error_signal(self, loss: Any, x: Any, grad_x: Any) -> Any:
        """Return the loss, with this gradient with respect to ``x`` for a gradient of 1 of its sum."""
        loss, grad_x = tf.stop_gradient(loss), tf.stop_gradient(grad_x)

        @with_gradient
        def run(x: Any) -> tuple[Any, Callable[..., Any]]:
            def grad(d_loss: Any) -> Any:
                rank = grad_x.shape.rank - d_loss.shape.rank
                for _ in range(rank):
                    d_loss = tf.expand_dims(d_loss, -1)
                return d_loss * grad_x

            return tf.identity(loss), grad

        return run(x)


custom_gradient = CustomGradient()
