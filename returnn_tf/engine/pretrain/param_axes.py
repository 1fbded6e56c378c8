"""Parts of the axes of a parameter: the gates of a cell, the sources which are concatenated in an input.

A growing parameter grows in each of its parts.
"""

from __future__ import annotations

from typing import Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.graph.node import Node, ParamSpec
from returnn_tf.tensor.parts import Part, Parts, total_size

_MAX_DEPTH = 50


def axes_of_params(plan: Plan) -> dict[str, list[Parts]]:
    """Return the parts of each axis, in order, for each parameter by name."""
    return {spec.name: _axes(node, spec) for node in plan.all_nodes() for spec in node.owned}


def _axes(node: Node, spec: ParamSpec) -> list[Parts]:
    inputs = [part for source in node.sources for part in _features(source)]
    name = spec.name[len(node.scope) :].lstrip("/")
    axes = []
    for axis, size in enumerate(spec.shape):
        parts = node.layer.param_parts(name, spec.shape, axis, inputs)
        axes.append(parts if parts and total_size(parts) == size else [Part("", size)])
    return axes


def _features(node: Node, depth: int = 0) -> Parts:
    """Return the parts of the feature axis of a layer's output, or of the labels of a sparse one."""
    dim = node.output.dim or 0
    if depth < _MAX_DEPTH:
        if node.layer.is_connector:
            of = node.layer.of
            inner = of if isinstance(of, Node) else node.sources[0] if node.sources else None
            if inner is not None and (inner.output.dim or 0) == dim:
                return _features(inner, depth + 1)
        elif node.layer.joins_features:
            parts = [part for source in node.sources for part in _features(source, depth + 1)]
            if total_size(parts) == dim:
                return parts
    parts = node.layer.feature_parts()
    if len(parts) > 1 and total_size(parts) == dim:
        return [Part("%s %s" % (node.path, part.label), part.size) for part in parts]
    return [Part(node.path, dim)]


Block = tuple[slice, slice]


def common_blocks(old: Parts, new: Parts) -> list[Block]:
    """Return (old range, new range) of an axis for each part that both have.

    Parts are matched by label; those without a counterpart of the same label, by order.
    """
    old_at, new_at = _starts(old), _starts(new)
    pairs: list[tuple[int, int]] = []
    rest = list(range(len(old)))
    unmatched: list[int] = []
    for j, part in enumerate(new):
        i: Optional[int] = next((i for i in rest if old[i].label == part.label), None)
        if i is None:
            unmatched.append(j)
        else:
            rest.remove(i)
            pairs.append((i, j))
    pairs += zip(rest, unmatched)
    blocks = []
    for i, j in pairs:
        size = min(old[i].size, new[j].size)
        blocks.append((slice(old_at[i], old_at[i] + size), slice(new_at[j], new_at[j] + size)))
    return blocks


def _starts(parts: Parts) -> list[int]:
    starts, at = [], 0
    for part in parts:
        starts.append(at)
        at += part.size
    return starts
