"""`combine` and `compare`: elementwise functions of several sources, broadcast to a common layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.config import did_you_mean
from returnn_tf.config.errors import TargetError
from returnn_tf.config.options import option
from returnn_tf.graph.aux_values import OUTPUT_LOSS, PRE_ACTIVATION, PreActivation
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Activation, Code, Number, OutType, OutTypeOptions
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.eval_code import compile_code, run_code, true_labels_of_code
from returnn_tf.layers.shared.out_type import apply_out_type, out_type_of_function, whole_out_type
from returnn_tf.ops.activations import check_activation, get_activation, is_named
from returnn_tf.ops.after_product import add, continued_product
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import common_layout, match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class ElementwisePlan(LayerPlan):
    """The plan of `ElementwiseLayer`.

    :param layout: the axes of all sources together, in their order in the output
    """

    layout: Data


class ElementwiseLayer(Planned[ElementwisePlan]):
    """Sources broadcast to the layout of the source with most axes."""

    computes_entries = True

    def common(self, ctx: PlanContext, allow_broadcast_all: Any) -> Data:
        """Return the layout of the result; axes that no single source covers need a flag since behavior version 4."""
        named = isinstance(self.out_type, dict) and any(key in self.out_type for key in ("shape", "dims", "dim_tags"))
        allow = allow_broadcast_all
        if allow is None:
            allow = ctx.behavior_version < 4 or self.out_shape is not None or named
        # Where axes may be added, dims of users are no others of the same size, and since version 11 axes of size 1 are
        # no others either. Elsewhere that would only be an error, and out_type says itself what the axes are.
        strict = bool(allow) and not named
        ones = not strict or ctx.behavior_version < 11
        datas = [node.output for node in self.sources]
        return common_layout(datas, allow_broadcast_all=bool(allow), strict=strict, ones=ones)

    def without_sources(self, ctx: PlanContext, out_type: Any) -> ElementwisePlan:
        """Plan code that needs no sources: out_type says all of its output."""
        data = whole_out_type(ctx, out_type)
        return ElementwisePlan(data, data)

    def with_out_type(self, ctx: PlanContext, data: Data, layout: Data, out_type: Any) -> ElementwisePlan:
        """Change the template by the option ``out_type``; the sources get its order of axes.

        :param layout: the axes of all sources together
        """
        data = apply_out_type(ctx, data, out_type)
        is_order = data.rank == layout.rank and None not in match_axes(layout, data)
        return ElementwisePlan(data, data if is_order else layout)

    def check_dtypes(self, ctx: PlanContext) -> str:
        """Return the dtype of all sources.

        :raises ConfigError: they have several
        """
        dtypes = {node.output.dtype: node.path for node in self.sources if not node.output.unknown}
        if len(dtypes) > 1:
            found = " and ".join("%s (%r)" % (dtype, path) for dtype, path in dtypes.items())
            raise ctx.error("the sources have different dtypes, %s. Cast one by a layer of class 'cast'." % found)
        return next(iter(dtypes), ctx.float_dtype)

    def values(self, ctx: EmitContext) -> list[Any]:
        """Return all sources in the common layout, size 1 where they lack an axis."""
        return [ctx.broadcast(node, self.plan.layout) for node in self.sources]


@register_layer("combine")
class CombineLayer(ElementwiseLayer):
    """``y = f(x0 o x1 o ...)`` from left to right, with the operation o given by ``kind``.

    The kinds are add, sub, mul, truediv, floordiv, mod, pow (or their signs ``+ - * / // % **``), maximum, minimum,
    logical_and, logical_or, squared_difference, logaddexp, average, eval, the comparisons of `compare`, and other
    functions of two tensors in ``tf.math``, such as atan2, xlogy or divide_no_nan.

    Parameters: with_bias: ``b`` [dim]. Sources with fewer axes are broadcast.
    Lengths: those of the source with most axes.

    Example::

        network = {
            "a": {"class": "linear", "activation": "sigmoid", "n_out": 4, "from": "data"},
            "output": {"class": "combine", "kind": "mul", "from": ["data", "a"]}}
    """

    keeps_features = True
    kind: str = option(help="the operation, e.g. 'add'; 'eval' for code given by the option eval")
    activation: Activation = option(None, help="name of the activation function f, or None")
    with_bias: bool = option(False, help="whether to add b before the activation")
    eval: Optional[Code] = option(None, help="with kind 'eval': code or function, as in the layer eval")
    eval_locals: Optional[dict[str, Any]] = option(None, help="names for the code")
    eval_for_output_loss: bool = option(False, help="apply the code to the output_loss of the sources as well")
    out_type: OutType = option(None, help="output properties that differ from the sources", group=OutTypeOptions)
    allow_broadcast_all_sources: Optional[bool] = option(None, help="allow that no source has all axes")

    def template(self, ctx: PlanContext) -> ElementwisePlan:
        """Infer the output: the common layout, changed by out_type."""
        check_activation(self.activation)
        if self.kind != "eval" and self.kind not in KINDS:
            raise ctx.error("unknown kind %r. %s" % (self.kind, did_you_mean(self.kind, [*KINDS, "eval"])))
        if self.kind != "eval":
            self._log_inert(ctx)
        out_type: Any = self.out_type
        if callable(out_type):
            out_type = out_type_of_function(ctx, out_type, self.eval_locals)
        if self.kind == "eval":
            if self.eval is None:
                raise ctx.error("kind 'eval' needs the option 'eval', e.g. 'eval': 'source(0) + source(1)'.")
            compile_code(ctx, self.eval, self.eval_locals)
        elif not self.sources:
            raise ctx.error("needs sources: add 'from', e.g. 'from': ['a', 'b'].")
        found = self._template(ctx, out_type)
        data = found.output
        if self.kind != "eval" and found.layout is not data:
            raise ctx.error("out_type gives %s, but the sources have the axes %s." % (data, found.layout))
        if self.n_out is not None and data.dim != self.n_out:
            raise ctx.error("n_out is %d, but the sources give %s. Omit n_out." % (self.n_out, data))
        if self.with_bias:
            ctx.param("b", (ctx.need_feature(data),), 0.0)
        return found

    def _template(self, ctx: PlanContext, out_type: Any) -> ElementwisePlan:
        if not self.sources:
            return self.without_sources(ctx, out_type)
        data = layout = self.common(ctx, self.allow_broadcast_all_sources)
        if self.kind != "eval":
            data = data.replace(dtype=self._result_dtype(ctx))
        if isinstance(out_type, Data):
            return ElementwisePlan(out_type, layout)
        data = data.replace(sparse_dim=None) if data.dtype == "bool" else data
        return self.with_out_type(ctx, data.replace(vocab=None), layout, out_type)

    def _log_inert(self, ctx: PlanContext) -> None:
        """Log which options are only for the kind 'eval'; a function in out_type gets eval_locals in any case."""
        reason = "it is for kind 'eval', not %r" % self.kind
        if self.eval is not None:
            ctx.log_inert("eval", reason)
        if self.eval_locals and not callable(self.out_type):
            ctx.log_inert("eval_locals", reason)

    def _result_dtype(self, ctx: PlanContext) -> str:
        dtype = self.check_dtypes(ctx)
        if not takes_any(self.kind) and (dtype == "bool") != is_logical(self.kind):
            raise ctx.error("kind %r cannot be of %s. Cast the sources." % (self.kind, dtype))
        if dtype.startswith(("int", "uint")) and not takes_ints(self.kind):
            raise ctx.error("kind %r is not defined for %s. Cast the sources to float32." % (self.kind, dtype))
        if not is_associative(self.kind) and len(self.sources) != 2:
            raise ctx.error("kind %r needs two sources, got %d." % (self.kind, len(self.sources)))
        return result_dtype(self.kind, dtype)

    def works_by_frame(self) -> bool:
        """Return whether the function is a known one, of sources with the same axes."""
        changed = self.out_type is not None or self.eval_for_output_loss
        return self.kind != "eval" and is_named(self.activation) and not changed

    def differentiates_by(self) -> Sequence[Node]:
        """Return the sources: code may compute derivatives by them."""
        return self.sources if self.kind == "eval" else ()

    def true_labels(self, labels: Node) -> Optional[frozenset[int]]:
        """Return the labels of some (logical_or) or of all (logical_and) sources, or for which the code is true."""
        if self.kind == "eval":
            return true_labels_of_code(self, labels)
        found = [source.layer.true_labels(labels) for source in self.sources]
        known = [each for each in found if each is not None]
        if self.kind == "logical_or" and known:
            return frozenset().union(*known)
        if self.kind == "logical_and" and len(known) == len(found):
            return frozenset.intersection(*known)
        return None

    def emit(self, ctx: EmitContext) -> Any:
        """Emit reduction from left to right, bias, activation."""
        if self.kind == "eval":
            y = run_code(ctx, self.eval, self.eval_locals, self.plan.layout)
        else:
            values = self.values(ctx)
            y = self._sum(ctx, values) if self._is_plain_sum() else self._reduced(values)
        if self.with_bias:
            data = ctx.output
            assert data.feature_axis is not None
            y += tf.reshape(ctx.param("b"), [-1 if i == data.feature_axis else 1 for i in range(data.rank)])
        if self.eval_for_output_loss:
            self._combine_output_loss(ctx)
        if self.activation is not None:
            ctx.set_aux(self.node, PRE_ACTIVATION, PreActivation(y, self.activation))
            y = get_activation(self.activation)(y)
        return y

    def _reduced(self, values: Sequence[Any]) -> Any:
        """Return the values combined from left to right."""
        y = reduce(binary(self.kind), values)
        return y / tf.cast(len(values), y.dtype) if self.kind == "average" else y

    def _is_plain_sum(self) -> bool:
        """Return whether this adds two sources of the same shape, as residual connections do."""
        if len(self.sources) != 2 or self.kind not in ("add", "+"):
            return False
        dims = self.plan.layout.dims
        return all(
            len(node.output.dims) == len(dims) and all(map(_of_same_size, node.output.dims, dims))
            for node in self.sources
        )

    def _sum(self, ctx: EmitContext, values: Sequence[Any]) -> Any:
        """Emit the sum, together with a product or a bias, activation or dropout before it."""
        if ctx.train:
            return add(*values)
        for i in (1, 0) if values[0] is not values[1] and values[0].dtype == values[1].dtype else ():
            if ctx.lowering.options.readers.get(self.sources[i]) == 1:
                y = continued_product(values[i], residual=values[1 - i])
                if y is not None:
                    return y
        return self._reduced(values)

    def _combine_output_loss(self, ctx: EmitContext) -> None:
        losses = [ctx.aux(node, OUTPUT_LOSS) for node in self.sources]
        if any(loss is None for loss in losses):
            missing = [n.path for n, loss in zip(self.sources, losses) if loss is None]
            raise TargetError(
                "Layer %r (class %r): eval_for_output_loss: no loss comes with the sources: %s. Remove the option, or "
                "take sources such as 'fast_bw' layers." % (self.node.path, self.class_name, ", ".join(missing))
            )
        if self.kind == "eval":
            value = run_code(ctx, self.eval, self.eval_locals, self.plan.layout, replace=losses)
        else:
            value = self._reduced(losses)
        ctx.set_aux(self.node, OUTPUT_LOSS, value)

    def gradient_reads_sources(self) -> bool:
        """Return whether the result is anything but a sum."""
        return self.kind not in _SUMS

    def gradient_reads_output(self) -> bool:
        """Return whether there is an activation."""
        return self.activation is not None


@register_layer("compare")
class CompareLayer(ElementwiseLayer):
    """Elementwise comparison, a bool per entry.

    Lengths: those of the source with most axes.

    Example::

        network = {"output": {"class": "compare", "kind": "greater", "value": 0.5, "from": "data"}}
    """

    takes_complex = False
    kind: str = option("equal", help="equal, not_equal, less, less_equal, greater or greater_equal")
    value: Optional[Number] = option(None, help="number to compare with, as the last operand")
    allow_broadcast_all_sources: Optional[bool] = option(None, help="allow that no source has all axes")

    def template(self, ctx: PlanContext) -> ElementwisePlan:
        """Infer the output: the common layout, bool."""
        if self.kind not in COMPARISONS:
            raise ctx.error("unknown kind %r. %s" % (self.kind, did_you_mean(self.kind, COMPARISONS)))
        if len(self.sources) + (self.value is not None) < 2:
            raise ctx.error("needs two operands: two sources, or one source and the option 'value'.")
        data = self.common(ctx, self.allow_broadcast_all_sources)
        dtype = self.check_dtypes(ctx)
        if self.value is not None and (dtype == "bool") != isinstance(self.value, bool):
            raise ctx.error("value is %r, but the source is %s." % (self.value, dtype))
        if dtype.startswith(("int", "uint")) and isinstance(self.value, float) and not self.value.is_integer():
            raise ctx.error("value is %r, but the source is %s. Cast the source to float32." % (self.value, dtype))
        return ElementwisePlan(data.replace(dtype="bool", sparse_dim=None, vocab=None), data)

    def remark(self) -> str:
        """Warn about a label outside the range of the source, e.g. a wrong index of the blank or of the end."""
        labels = self.sources[0].output.sparse_dim if len(self.sources) == 1 else None
        if labels is None or labels.size is None or self.kind not in ("equal", "not_equal") or self.value is None:
            return ""
        if 0 <= self.value < labels.size:
            return ""
        text = "value is %s, but the labels of %r are 0 to %d, so the result is %s everywhere."
        return text % (self.value, self.sources[0].path, labels.size - 1, self.kind == "not_equal")

    def true_labels(self, labels: Node) -> Optional[frozenset[int]]:
        """Return the labels that compare true with constants."""
        size = labels.output.dim
        constants = [node.layer.initializer for node in self.sources if node is not labels]
        constants += [] if self.value is None else [self.value]
        if labels not in self.sources or size is None or any(x is None or np.size(x) != 1 for x in constants):
            return None
        operands = [np.arange(size) if node is labels else node.layer.initializer for node in self.sources]
        operands += [] if self.value is None else [self.value]
        compare = getattr(np, self.kind)  # numpy has the same names
        results = [compare(a, b) for a, b in zip(operands, operands[1:])]
        true = np.broadcast_to(np.squeeze(reduce(np.logical_and, results)), size)
        return frozenset(np.flatnonzero(true).tolist())

    def emit(self, ctx: EmitContext) -> Any:
        """Compare neighbours; with more than two operands all pairs must compare true."""
        values = self.values(ctx)
        if self.value is not None:
            values.append(tf.cast(self.value, values[0].dtype))
        results = [COMPARISONS[self.kind](a, b) for a, b in zip(values, values[1:])]
        return reduce(tf.logical_and, results)


Binary = Callable[[Any, Any], Any]

#: Comparisons by name: their result is bool.
COMPARISONS: Mapping[str, Binary] = {
    "equal": lambda a, b: tf.equal(a, b),
    "not_equal": lambda a, b: tf.not_equal(a, b),
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}

_OWN: dict[str, Binary] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: tf.math.floormod(a, b),
    "pow": lambda a, b: a**b,
    "maximum": lambda a, b: tf.maximum(a, b),
    "minimum": lambda a, b: tf.minimum(a, b),
    "logical_and": lambda a, b: tf.logical_and(a, b),
    "logical_or": lambda a, b: tf.logical_or(a, b),
    "squared_difference": lambda a, b: tf.math.squared_difference(a, b),
    "logaddexp": lambda a, b: tf.maximum(a, b) + tf.math.log1p(tf.exp(-tf.abs(a - b))),
    "average": lambda a, b: a + b,
    "div": lambda a, b: a // b if a.dtype.is_integer else a / b,
}
#: Kinds whose gradients need no values.
_SUMS = frozenset(("add", "sub", "average", "+", "-"))
_SIGNS = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow"}
#: Functions of two tensors in ``tf.math``, ``tf`` or ``tf.compat.v1``.
_OF_TF = (
    "subtract", "multiply", "divide", "realdiv", "truncatediv", "floor_div", "divide_no_nan", "div_no_nan",
    "multiply_no_nan", "floormod", "truncatemod", "atan2", "xdivy", "xlogy", "xlog1py", "igamma", "igammac", "zeta",
    "polygamma", "nextafter", "complex", "logical_xor",
)  # fmt: skip

#: Of floats only: TensorFlow refuses integers, or gives floats for them.
_OF_FLOATS = frozenset((
    "truediv", "/", "divide", "realdiv", "average", "logaddexp", "divide_no_nan", "div_no_nan", "multiply_no_nan",
    "atan2", "xdivy", "xlogy", "xlog1py", "igamma", "igammac", "zeta", "polygamma", "nextafter", "complex",
))  # fmt: skip

#: What these names mean where they are the kind of a `combine` layer.
KINDS = (*_OWN, *_SIGNS, *COMPARISONS, *_OF_TF)


def is_logical(kind: str) -> bool:
    """Return whether an operation needs bool operands."""
    return kind.startswith("logical_")


def takes_any(kind: str) -> bool:
    """Return whether an operation takes bool operands as well as numbers."""
    return kind in ("equal", "not_equal")


def takes_ints(kind: str) -> bool:
    """Return whether the result of integers is of integers."""
    return kind not in _OF_FLOATS


def result_dtype(kind: str, dtype: str) -> str:
    """Return the dtype of the result for operands of a dtype."""
    if kind in COMPARISONS:
        return "bool"
    if kind == "complex":
        return "complex128" if dtype == "float64" else "complex64"
    return dtype


def is_associative(kind: str) -> bool:
    """Return whether the result can be an operand again, so that there may be more than two."""
    return result_dtype(kind, "float32") == "float32"


def binary(kind: str) -> Binary:
    """Return the operation."""
    kind = _SIGNS.get(kind, kind)
    found = _OWN.get(kind) or COMPARISONS.get(kind)
    if found is not None:
        return found
    homes = (tf.math, tf, tf.compat.v1)
    function: Binary = next(getattr(home, kind) for home in homes if hasattr(home, kind))
    return function


def _of_same_size(a: Dim, b: Dim) -> bool:
    return a == b or (a.size is not None and a.size == b.size)
