"""Checks of ``eval`` strings while the network is planned: unknown names, and sources that are unknown or unused."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config import nearest_name
from returnn_tf.graph.layer import Node
from returnn_tf.graph.plan_context import PlanContext


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
            raise ctx.error(
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
            raise ctx.error("the eval code has source(%r), but there %s." % (index, there))
    if len(used) != sum(_is_source(node) for node in ast.walk(tree)):
        return  # sources may be found otherwise
    unused = [i for i in range(len(sources)) if i not in used]
    if unused:
        raise ctx.error(
            "the eval code does not use %s. Remove what it does not need from 'from'."
            % ", ".join("source(%d), i.e. %r" % (i, sources[i].path) for i in unused)
        )


def _index(call: ast.Call) -> Any:
    """Return the number of the source as it is written; None if it is computed."""
    node = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "i"), None)
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _is_source(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "source"
