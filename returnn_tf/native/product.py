"""Products of large matrices on the CPU's tile unit or by its vectors, with gradients: of floats, or rounded ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.dispatch import form
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import c_library, native_op
from returnn_tf.native.sources import register_op
from returnn_tf.native.toolchain import cpu_features
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.known_shapes import as_rows, with_frames_of
from returnn_tf.util.lazy_tf import tf


class _Form(NamedTuple):
    """The instructions that the op uses where it is faster than TensorFlow.

    :param least_size: numbers of a matrix that was measured to be faster with 2000 frames
    :param function: of the library: whether it was compiled with it, and may use it
    :param lacking: why it does not, if it does not
    """

    least_size: int
    function: str
    lacking: str


_TILES = _Form(100_000, "rtf_product_by_tiles", "the compiler or Linux does not support the tile unit")
_VECTORS = _Form(2**16, "rtf_product_by_fma", "the compiler does not support AVX2")
_PAIRS = _Form(2**16, "rtf_product_by_pairs", "the compiler does not support AVX512_BF16")


@cache
def _forms(product_dtype: Optional[str] = None) -> tuple[_Form, ...]:
    """Return the forms that are faster than TensorFlow's products on this CPU, the fastest first.

    With AVX-512, TensorFlow takes kernels for float32 that reach the peak; those for AVX2 take up to twice as long for
    gradients. Those for bfloat16 reach it, too, but need copies of their operands and results in that type.

    :param product_dtype: see `Semantics`
    """
    found = set(cpu_features().split())
    if product_dtype not in (None, "bfloat16"):
        return ()
    used = {
        _TILES: {"amx_bf16", "amx_tile"} <= found,
        _PAIRS: product_dtype is not None and "avx512_bf16" in found,
        _VECTORS: product_dtype is None and {"avx2", "fma"} <= found and "avx512f" not in found,
    }
    return tuple(form for form, is_used in used.items() if is_used)


def _in_library(product_dtype: Optional[str]) -> Optional[_Form]:
    """Return the fastest form that the compiler supported and Linux lets this process use."""
    return next((form for form in _forms(product_dtype) if _library_has(form)), None)


def product_ops(
    dtype: tf.DType, product_dtype: Optional[str] = None, dims: Optional[Sequence[Optional[int]]] = None
) -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason) or TensorFlow's are as fast.

    :param dtype: of the operands: float32
    :param product_dtype: see `Semantics`
    :param dims: of the product, in any order; the matrix has static dims, the number of frames has not; None: large
    """

    def is_used(form: _Form) -> bool:
        return dims is None or _is_large(dims, form)

    if dtype != tf.float32 or not any(is_used(form) for form in _forms(product_dtype)):
        return None
    ops = native_op("product", self_test)
    form = _in_library(product_dtype) if ops is not None else None
    return ops if form is not None and is_used(form) else None


def rounds(recurrence: str, dtype: tf.DType, product_dtype: Optional[str]) -> bool:
    """Return whether a native recurrence is to round the factors of its products, see `native_matmul`.

    :param recurrence: name of the native op, which is loaded
    :param dtype: of the operands
    :param product_dtype: see `Semantics`
    """
    if product_dtype is None or product_ops(dtype, product_dtype) is None:
        return False
    return bool(getattr(c_library(recurrence), "rtf_%s_rounds" % recurrence)())


def _is_large(dims: Sequence[Optional[int]], form: _Form) -> bool:
    """Return whether the matrix is of a size that was measured to be faster than TensorFlow's."""
    known = sorted(dim for dim in dims if dim is not None)[:2]
    return len(known) == 2 and known[0] >= 64 and known[0] * known[1] >= form.least_size


def reason_not_used(product_dtype: Optional[str] = None) -> str:
    """Return the reason why large products are TensorFlow's on this machine, or "" if they are this op's.

    The choice follows from the CPU alone, not from timings, so that a run that is resumed computes the same bits.
    ``bench/products.py`` measures whether it is right.

    :param product_dtype: see `Semantics`
    """
    forms = _forms(product_dtype)
    if not forms:
        return "this CPU has neither a tile unit nor " + (
            "AVX512_BF16" if product_dtype is not None else "AVX2 without AVX-512"
        )
    return "" if _in_library(product_dtype) else "; ".join(form.lacking for form in forms)


@cache
def _library_has(form: _Form) -> bool:
    """Return whether the compiler supported it and Linux lets this process use it."""
    return bool(getattr(c_library("product"), form.function)())


def ops_for_frames(x: tf.Tensor, weights: tf.Tensor, product_dtype: Optional[str] = None) -> Optional[Any]:
    """Return the ops if they are faster for a product over the last axis.

    :param x: [..., frames, in]; of a lower rank it has too few rows
    :param weights: [in, out] or [out, in]
    :param product_dtype: see `Semantics`
    """
    has_frames = x.shape.rank is not None and x.shape.rank >= 3
    return product_ops(x.dtype, product_dtype, [None, *weights.shape]) if has_frames else None


def product_of_frames(
    ops: Any, x: tf.Tensor, weights: tf.Tensor, *, transposed: bool, rounded: bool = False
) -> tf.Tensor:
    """Compute ``x W`` over the last axis.

    :param ops: what `ops_for_frames` returned
    :param x: [..., frames, in]
    :param weights: [in, out], or [out, in] if ``transposed``
    :param rounded: see `native_matmul`
    """
    rows = as_rows(x, x.shape[-1]) if x.shape[-1] else tf.reshape(x, [-1, tf.shape(x)[-1]])
    y = native_matmul(ops, rows, weights, None, transpose_a=False, transpose_b=transposed, rounded=rounded)
    depth, width = reversed(weights.shape) if transposed else weights.shape
    return with_frames_of(x, y, depth, width)


def large_ops(
    a: tf.Tensor,
    b: tf.Tensor,
    *_: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    product_dtype: Optional[str] = None,
) -> Optional[Any]:
    """Return the ops if they are faster for a product of two matrices, see `matmul`.

    :param product_dtype: see `Semantics`
    """
    depth, rows = a.shape if transpose_a else reversed(a.shape)
    return product_ops(a.dtype, product_dtype, [rows, depth, b.shape[0 if transpose_b else 1]])


def native_matmul(
    ops: Any,
    a: tf.Tensor,
    b: tf.Tensor,
    bias: Optional[tf.Tensor] = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    rounded: bool = False,
) -> tf.Tensor:
    """Compute `matmul` by the native op, as precisely as in float32, bit-identical for any number of threads.

    :param ops: what `product_ops` returned
    :param rounded: round the factors of this product, and of those in its gradient, to bfloat16; sums are float32
    """
    multiply, has_bias = partial(native_matmul, ops, bias=None, rounded=rounded), bias is not None

    @custom_gradient
    def run(a: tf.Tensor, b: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        y = ops.rtf_product(
            a=a, b=b, bias=bias, transpose_a=transpose_a, transpose_b=transpose_b, has_bias=has_bias, rounded=rounded
        )

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if transpose_a:
                da = multiply(b, dy, transpose_a=transpose_b, transpose_b=True)
            else:
                da = multiply(dy, b, transpose_a=False, transpose_b=not transpose_b)
            if transpose_b:
                db = multiply(dy, a, transpose_a=True, transpose_b=transpose_a)
            else:
                db = multiply(a, dy, transpose_a=not transpose_a, transpose_b=False)
            return da, db, tf.raw_ops.BiasAddGrad(out_backprop=dy) if has_bias else tf.zeros_like(bias)

        return y, gradient

    return run(a, b, bias if has_bias else tf.zeros([0], a.dtype))


@form(native_matmul, where=large_ops)
def matmul(
    a: tf.Tensor,
    b: tf.Tensor,
    bias: Optional[tf.Tensor] = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> tf.Tensor:
    """Compute ``a b + bias`` by the native op if it is faster: for many rows and a large enough matrix.

    The native op turns infinity into NaN, and is less precise for numbers below about 1e-33
    (``native_ops/common/tiles.h``).

    :param a: [rows, depth], or transposed
    :param b: [depth, columns], or transposed
    :param bias: [columns]
    :return: [rows, columns]
    """
    y = tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return y if bias is None else tf.nn.bias_add(y, bias)


@register_op(
    "product",
    kernels=("product/product_cpu.cc",),
    bindings=("product/product_op.cc",),
    twice_differentiable=True,
)
def self_test(ops: Any) -> None:
    """Compare with numpy, for every transposition of the factors.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    a, b, bias = (rng.normal(0, 1, shape) for shape in ((70, 90), (90, 50), (50,)))
    for transpose_a, transpose_b in ((False, False), (False, True), (True, False), (True, True)):
        order = {"transpose_a": transpose_a, "transpose_b": transpose_b}

        def op(a: tf.Tensor, b: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor]:
            return (native_matmul(ops, a, b, bias, **order),)  # noqa: B023

        def formula(a: NDArray[Any], b: NDArray[Any], bias: NDArray[Any]) -> tuple[NDArray[Any]]:
            return ((a.T if transpose_a else a) @ (b.T if transpose_b else b) + bias,)  # noqa: B023

        arrays = [a.T if transpose_a else a, b.T if transpose_b else b, bias]
        compare("product", op, formula, arrays)
        left, right = (tf.cast(tf.cast(tf.constant(x), tf.bfloat16), tf.float64).numpy() for x in arrays[:2])
        (expected,) = formula(left, right, bias)
        y = native_matmul(ops, *(tf.constant(x, tf.float32) for x in arrays), **order, rounded=True)
        if np.abs(y.numpy() - expected).max() > 1e-4:
            raise NativeOpError("the product of rounded factors that was compiled is wrong")
