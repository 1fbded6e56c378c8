"""User code in networks: the names an ``eval`` string or function can use, and how it runs.

A string sees ``source``, ``self``, ``np``, and the names of `returnn_tf.graph.user_views`, such as ``tf``. Configs are
trusted like any program that the user runs.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, Optional

import numpy as np

from returnn_tf.config.errors import CodeError, nearest_name
from returnn_tf.graph.dim_lengths import DimLengths
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.lowering import Lowering, LoweringOptions, NodeValues
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.semantics import Semantics
from returnn_tf.graph.user_views import user_views
from returnn_tf.ops.frames.shape import moved_axis_perm, to_layout, transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

#: The names that every string sees, besides those of `user_views`.
_NAMES = ("np", "numpy", "source", "self")


def compile_code(ctx: PlanContext, code: Any, code_locals: Optional[Mapping[str, Any]] = None) -> None:
    """Check that the code is a function or a string that parses, so that typos are found while planning."""
    if callable(code):
        return
    if not isinstance(code, str):
        raise CodeError("eval must be a string or a function, got %r." % (code,))
    try:
        tree = ast.parse(code.strip(), mode="eval")
    except SyntaxError as exc:
        marker = " " * max((exc.offset or 1) - 1, 0) + "^"
        raise CodeError(
            "the eval code does not parse: %s\n    %s\n    %s" % (exc.msg, exc.text or code, marker)
        ) from None
    check_names(ctx, tree, (*_NAMES, *user_views().names), code_locals)
    check_sources(ctx, tree)


@functools.cache
def _compiled(code: str) -> CodeType:
    return compile(code.strip(), "<eval>", "eval")


def run_code(
    ctx: EmitContext,
    code: Any,
    code_locals: Optional[dict[str, Any]],
    layout: Data,
    replace: Optional[Sequence[Any]] = None,
) -> Any:
    """Return the value of the code.

    :param layout: the common layout of the sources
    :param replace: values to use instead of those of the sources
    :raises ConfigError: the code does not use all sources, or its value is no tensor
    """
    source = SourceFunction(ctx, layout, replace)
    views = user_views()
    this = views.layer(ctx, ctx.node)
    if callable(code):
        value = code(source=source, self=this, **(code_locals or {}))
    else:
        names: dict[str, Any] = {
            **views.values(ctx.seed),
            "np": np,
            "numpy": np,
            "source": source,
            "self": this,
            **(code_locals or {}),
        }
        value = eval(_compiled(code), names)  # the user's own code, see the module docstring
    value = _tensor(ctx, views.tensor_of(value))
    if ctx.train or not views.asked_mode(this):  # in other modes the code may need less
        source.check_all_used()
    return value


def true_labels_of_code(layer: Layer, labels: Node) -> Optional[frozenset[int]]:
    """Return the labels for which a layer with user code is true, see `Layer.true_labels`.

    The code runs once for all labels. If that fails it needs something else, e.g. the index of the step.
    """
    size = labels.output.dim
    if size is None or any(source is not labels for source in layer.sources):
        return None
    lowering = Lowering(
        LoweringOptions(train=False, search=True, semantics=Semantics()),
        values=NodeValues({labels: tf.range(size)}),
        dims=DimLengths(batch_size=size),
    )
    try:
        true = np.asarray(layer.emit(EmitContext(layer.node, lowering)))
    except Exception:  # TensorFlow and user code may raise anything
        return None
    return frozenset(np.flatnonzero(true).tolist()) if true.dtype == bool and true.shape == (size,) else None


def _tensor(ctx: EmitContext, value: Any) -> Any:
    """Return the value as a tensor.

    :raises ConfigError: it is none, and can't be converted
    """
    if not isinstance(value, (tf.Variable, int, float, bool, np.ndarray, np.generic)) and not tf.is_tensor(value):
        hint = " Does the function lack a return statement?" if value is None else ""
        raise CodeError(
            "Layer %r (class %r): the eval code must give a tensor, but it gave %s.%s"
            % (ctx.node.path, ctx.node.layer.class_name, type(value).__name__, hint)
        )
    return tf.convert_to_tensor(value)


class SourceFunction:
    """``source`` in user code.

    :param layout: the common layout of the sources
    :param replace: values to use instead of those of the sources
    """

    def __init__(self, ctx: EmitContext, layout: Data, replace: Optional[Sequence[Any]]) -> None:
        self._ctx = ctx
        self._nodes = ctx.node.sources
        self._layout = layout
        self._replace = replace
        self._used: set[int] = set()

    def __call__(
        self,
        i: int,
        auto_convert: bool = True,
        enforce_batch_major: bool = False,
        as_data: bool = False,
        as_layer: bool = False,
    ) -> Any:
        """Return the i-th source.

        :param auto_convert: broadcast to the common layout; else unchanged
        :param enforce_batch_major: with the batch axis first
        :param as_data: a view with axes and lengths instead of the tensor
        :param as_layer: a view of the layer instead of the tensor
        """
        if not 0 <= i < len(self._nodes):
            raise ValueError("source(%d): the layer has only %d sources" % (i, len(self._nodes)))
        self._used.add(i)
        node, replace = self._nodes[i], self._replace
        if as_layer:
            return user_views().layer(self._ctx, node)
        value = self._ctx.value(node) if replace is None else replace[i]
        if as_data:
            return user_views().data(self._ctx, node, value, enforce_batch_major)
        if enforce_batch_major and node.output.batch_axis:
            return transpose(value, moved_axis_perm(node.output.rank, node.output.batch_axis, 0))
        if not auto_convert or enforce_batch_major or replace is not None:
            return value
        return to_layout(value, node.output, self._layout)

    def check_all_used(self) -> None:
        """Check that the code asked for every source.

        :raises ConfigError: names those that it did not use
        """
        unused = [i for i in range(len(self._nodes)) if i not in self._used]
        if unused:
            node = self._ctx.node
            raise CodeError(
                "Layer %r (class %r): the eval code does not use %s. Remove what it does not need from 'from'."
                % (
                    node.path,
                    node.layer.class_name,
                    ", ".join("source(%d), i.e. %r" % (i, self._nodes[i].path) for i in unused),
                )
            )


def check_names(ctx: PlanContext, tree: ast.AST, known: Sequence[str], more: Optional[Mapping[str, Any]]) -> None:
    """Check that the code uses known names only.

    :param known: the names that every such code sees
    :param more: the option eval_locals
    :raises ConfigError: with the nearest known name
    """
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(known) | set(more or {})
    for node in names:
        if node.id not in bound and not hasattr(builtins, node.id):
            near = nearest_name(node.id, sorted(bound))
            hint = "" if near is None else "Did you mean %r? " % near
            raise CodeError(
                "the eval code uses the unknown name %r. %sGive names of your own by eval_locals." % (node.id, hint)
            )


def check_sources(ctx: PlanContext, tree: ast.AST) -> None:
    """Check that all ``source(i)`` exist, and that each source is used, where the code has numbers for them.

    :raises ConfigError: names the sources
    """
    sources: list[Node] = ctx.node.sources
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _is_source(n.func)]
    used = [index for index in map(_index, calls) if index is not None]
    for index in used:
        if not isinstance(index, int) or not 0 <= index < len(sources):
            there = "are %d sources" % len(sources) if len(sources) != 1 else "is only source(0)"
            raise CodeError("the eval code has source(%r), but there %s." % (index, there))
    if len(used) != sum(_is_source(node) for node in ast.walk(tree)):
        return  # sources may be found otherwise
    unused = [i for i in range(len(sources)) if i not in used]
    if unused:
        raise CodeError(
            "the eval code does not use %s. Remove what it does not need from 'from'."
            % ", ".join("source(%d), i.e. %r" % (i, sources[i].path) for i in unused)
        )


def _index(call: ast.Call) -> Any:
    """Return the number of the source if it is a literal, else None."""
    node = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "i"), None)
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _is_source(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "source"
