"""Operations on the gradient of one parameter, in the order in which the updater applies them. Pure functions."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.engine.update.options import UpdateOptions
from returnn_tf.native.dispatch import form
from returnn_tf.native.fused.update import LEAST_SIZE, native_global_norm
from returnn_tf.native.fused.update_trials import norm_ops_for
from returnn_tf.util.lazy_tf import tf


@dataclass
class Gradients:
    """The gradients of a step, all by parameter name."""

    raw: dict[str, Any]  # dense gradients of this step, in the order in which the backward pass computes them
    norm: Any  # float32 scalar: L2 norm of them all
    constraints: dict[str, Any]  # gradients of the constraints, only if they are decoupled


@dataclass
class MetaGradients:
    """Results of the losses on gradients in a step."""

    grads: dict[str, Any]  # parameter name -> gradient of the scaled sum
    values: dict[str, Any]  # loss name -> value
    counts: dict[str, Any]  # loss name -> number of gradient entries


def dense(grad: Any) -> Any:
    """Return the gradient as a dense tensor; repeated rows of ``IndexedSlices`` are summed."""
    return tf.convert_to_tensor(grad)


def global_norm(grads: Sequence[Any]) -> Any:
    """Return the L2 norm over all entries of all gradients, float32 scalar; NaN and Inf propagate."""
    if not grads:
        return tf.constant(0.0)
    squares = [tf.nn.l2_loss(grad if grad.dtype.size >= 4 else tf.cast(grad, "float32")) for grad in grads]
    return tf.sqrt(2.0 * tf.add_n([tf.cast(square, "float32") for square in squares]))


def _ops_for(grads: Sequence[Any]) -> Optional[Any]:
    size = sum(grad.shape.num_elements() or 0 for grad in grads)
    fits = grads and size >= LEAST_SIZE and all(grad.dtype == tf.float32 for grad in grads)
    return norm_ops_for(size) if fits else None


@form(native_global_norm, where=_ops_for)
def fused_global_norm(grads: Sequence[Any]) -> Any:
    """Return `global_norm`, by one op if a native one can; it has no gradient."""
    return global_norm(grads)


def process(grad: Any, options: UpdateOptions, *, name: str, norm: Any, clip: Optional[Any], seed: Any) -> Any:
    """Apply noise, clipping and filters to one gradient.

    :param grad: dense gradient, after accumulation
    :param options: of this parameter
    :param name: of the parameter; each has its own noise
    :param norm: scalar, L2 norm of the raw gradients of all parameters
    :param clip: factor of ``gradient_clip_global_norm``, see `clip_factor`; None: it is not set
    :param seed: int32 [2], changes each step
    """
    if options.gradient_noise:
        own_seed = tf.bitwise.bitwise_xor(seed, tf.constant(zlib.crc32(name.encode("utf8")) & 0x7FFFFFFF, seed.dtype))
        grad += options.gradient_noise * tf.random.stateless_truncated_normal(grad.shape, own_seed, dtype=grad.dtype)
    if options.gradient_clip:
        grad = tf.clip_by_value(grad, -options.gradient_clip, options.gradient_clip)
    if options.gradient_clip_norm:
        grad = tf.clip_by_norm(grad, options.gradient_clip_norm)
    if options.gradient_clip_avg_norm:
        mean = tf.norm(grad) / tf.cast(tf.size(grad), grad.dtype)
        grad = grad * clip_factor(mean, options.gradient_clip_avg_norm, grad.dtype)
    if clip is not None:
        grad = grad * clip
    if options.gradient_nan_inf_filter:
        grad = tf.where(tf.math.is_finite(grad), grad, tf.zeros_like(grad))
    if options.grad_norm_to_clip_to_zero:
        # "not <=" is true for NaN as well
        grad = tf.where(norm <= options.grad_norm_to_clip_to_zero, grad, tf.zeros_like(grad))
    return grad


def clip_factor(norm: Any, limit: float, dtype: Any) -> Any:
    """Return what a gradient is scaled by: ``limit / norm`` if the norm is above the limit, else 1; NaN if not finite.

    :param norm: scalar
    :param dtype: of the gradient
    """
    norm = tf.cast(norm, dtype)
    factor = tf.cast(limit, dtype) / tf.maximum(norm, tf.cast(limit, dtype))
    return tf.where(tf.math.is_finite(norm), factor, tf.cast(float("nan"), dtype))
