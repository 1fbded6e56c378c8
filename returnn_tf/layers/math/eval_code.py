"""User code in networks: the names an ``eval`` string or function can use, and how it runs.

A string sees ``source``, ``self``, ``tf`` with the TensorFlow 1 names that are still in use, ``np``, and a few helpers.
Configs are trusted like any program that the user runs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import CodeType
from typing import Any, Callable, Optional

import numpy

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.views import DataView, LayerView
from returnn_tf.ops.activations import clipped_exp, clipped_log
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.ops.tf1_names import Tf1Names
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def compile_code(ctx: PlanContext, code: Any) -> None:
    """Check that the code is a function or a string that parses, so that typos are found while planning."""
    if callable(code):
        return
    if not isinstance(code, str):
        raise ctx.error("eval must be a string or a function, got %r." % (code,))
    try:
        _compiled(code)
    except SyntaxError as exc:
        marker = " " * max((exc.offset or 1) - 1, 0) + "^"
        raise ctx.error(
            "the eval code does not parse: %s\n    %s\n    %s" % (exc.msg, exc.text or code, marker)
        ) from None


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
    """
    source = _source_function(ctx, layout, replace)
    this = LayerView(ctx, ctx.node)
    if callable(code):
        value = code(source=source, self=this, **(code_locals or {}))
    else:
        names: dict[str, Any] = {
            "tf": Tf1Names(tf, ctx.seed),
            "np": numpy,
            "numpy": numpy,
            "safe_log": clipped_log,
            "safe_exp": clipped_exp,
            "where_bc": tf.where,
            "sequence_mask": tf.sequence_mask,
            "source": source,
            "self": this,
            **(code_locals or {}),
        }
        value = eval(_compiled(code), names)  # the user's own code, see the module docstring
    if isinstance(value, DataView):
        value = value.placeholder
    return tf.convert_to_tensor(value)


def _source_function(ctx: EmitContext, layout: Data, replace: Optional[Sequence[Any]]) -> Callable[..., Any]:
    nodes: list[Any] = ctx.node.sources

    def source(i: int, auto_convert: bool = True, enforce_batch_major: bool = False, as_data: bool = False) -> Any:
        """Return the i-th source.

        It is broadcast to the common layout, unchanged without ``auto_convert``, or a view with its lengths with
        ``as_data``.
        """
        if not 0 <= i < len(nodes):
            raise ValueError("source(%d): the layer has only %d sources" % (i, len(nodes)))
        node = nodes[i]
        view = DataView(ctx, node.output, ctx.value(node) if replace is None else replace[i])
        if enforce_batch_major:
            view = view.copy_as_batch_major()
        if as_data:
            return view
        if not auto_convert or enforce_batch_major or replace is not None:
            return view.placeholder
        return to_layout(view.placeholder, node.output, layout)

    return source
