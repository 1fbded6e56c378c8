"""Native cross entropy of a softmax over many labels, with its gradient, frame by frame."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def softmax_ops(dtype: tf.DType) -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason).

    :param dtype: float32
    """
    return native_op("softmax", self_test) if dtype == tf.float32 else None


def native_softmax_ce(ops: Any, z: tf.Tensor, bias: tf.Tensor, target: tf.Tensor, **options: Any) -> Any:
    """Return values and errors [frames], and the gradient of the values by the logits [frames, labels].

    The gradient overwrites ``z`` where nothing else uses it.

    :param ops: what `softmax_ops` returned
    :param z: [frames, labels], logits without the bias
    :param bias: [labels]
    :param target: int32 [frames], labels; others are an error, on a GPU NaN
    :param options: ``on``, ``off``, ``entropy``, ``focal``, ``with_gradient``: see ``native_ops/softmax/softmax.h``
    """
    return ops.rtf_softmax_ce(z=z, bias=bias, target=target, **options)


@register_op(
    "softmax",
    kernels=("softmax/softmax_cpu.cc",),
    bindings=("softmax/softmax_op.cc",),
    cuda=("softmax/softmax_cuda.cu",),
)
def self_test(ops: Any) -> None:
    """Compare with numpy: labels alone, and with smoothing and focal factor.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    frames, labels = 7, 167
    target = rng.randint(0, labels, frames).astype("int32")
    one_hot = np.eye(labels)[target]
    for smoothing, focal in ((0.0, 0.0), (0.1, 0.0), (0.1, 2.0)):
        off = smoothing / (labels - 1)
        options = {"on": 1.0 - smoothing, "off": off, "entropy": 2.0 * smoothing, "focal": focal}

        def op(z: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor]:
            @custom_gradient
            def run(z: tf.Tensor, bias: tf.Tensor) -> Any:
                found = native_softmax_ce(ops, z, bias, target, with_gradient=True, **options)  # noqa: B023
                values, gradient = found.values, found.gradient

                def backward(grad: tf.Tensor) -> Any:
                    dz = gradient * grad[:, None]
                    return dz, tf.reduce_sum(dz, axis=0)

                return values, backward

            return (run(z, bias),)

        def formula(z: NDArray[Any], bias: NDArray[Any]) -> tuple[NDArray[Any]]:
            logits = z + bias
            log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            wanted = one_hot * (options["on"] - off) + off  # noqa: B023
            c = -(wanted * log_p).sum(axis=-1) - options["entropy"]  # noqa: B023
            return (c * (1 - np.exp((one_hot * log_p).sum(axis=-1))) ** focal,)  # noqa: B023

        compare("softmax", op, formula, [rng.normal(0, 2, (frames, labels)), rng.normal(0, 1, labels)])
