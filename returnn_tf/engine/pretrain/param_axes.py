"""Of which parts the axes of a parameter consist: the gates of a cell, the sources which are concatenated in an input.

A parameter that grows does so in each of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

from returnn_tf.graph.node import Node, ParamSpec
from returnn_tf.network.planning.plan import Plan


@dataclass(frozen=True)
class Part:
    """A range of an axis. Parts of two networks with the same label belong together."""

    label: str
    size: int


Axis = List[Part]

# layers whose output has the features of their sources side by side, if there are as many
_PASSES_FEATURES = (
    "activation",
    "batch_norm",
    "concat",
    "copy",
    "dropout",
    "layer_norm",
    "norm",
    "pad",
    "pool",
    "reinterpret_data",
    "slice",
    "window",
)
_MAX_DEPTH = 50


def axes_of_params(plan: Plan) -> Dict[str, List[Axis]]:
    """For each parameter by name the parts of each of its axes, in order."""
    return {spec.name: _axes(node, spec) for node in plan.all_nodes() for spec in node.owned}


def _axes(node: Node, spec: ParamSpec) -> List[Axis]:
    inputs = [part for source in node.sources for part in _features(source)]
    rule = _RULES.get(node.layer.class_name, _of_any_layer)
    axes = []
    for axis, size in enumerate(spec.shape):
        parts = rule(node, spec, axis, inputs)
        axes.append(parts if parts and sum(part.size for part in parts) == size else [Part("", size)])
    return axes


def _features(node: Node, depth: int = 0) -> Axis:
    """The parts of the feature axis of a layer's output, or of the labels of a sparse one."""
    dim = _size(node)
    if depth < _MAX_DEPTH:
        if node.layer.is_connector:
            of = getattr(node.layer, "of", None)
            inner = of if isinstance(of, Node) else node.sources[0] if node.sources else None
            if inner is not None and _size(inner) == dim:
                return _features(inner, depth + 1)
        elif node.layer.class_name in _PASSES_FEATURES:
            parts = [part for source in node.sources for part in _features(source, depth + 1)]
            if sum(part.size for part in parts) == dim:
                return parts
    return [Part(node.path, dim)]


def _size(node: Node) -> int:
    data = node.output
    dim = data.sparse_dim if data.sparse_dim is not None else data.feature_dim
    return (dim.size if dim is not None else None) or 0


def _total(parts: Axis) -> int:
    return sum(part.size for part in parts)


def _equal_parts(size: int, part: int, label: str) -> Axis:
    return [Part("%s %d" % (label, i), part) for i in range(size // part)] if part and size % part == 0 else []


def _of_any_layer(node: Node, spec: ParamSpec, axis: int, inputs: Axis) -> Axis:
    """The axis which is as large as the input is it; the last one of a matrix is the output."""
    is_output = len(spec.shape) > 1 and axis == len(spec.shape) - 1
    return inputs if not is_output and spec.shape[axis] == _total(inputs) else []


def _of_linear(node: Node, spec: ParamSpec, axis: int, inputs: Axis) -> Axis:
    in_axis = 1 if getattr(node.layer, "use_transposed_weights", False) else 0
    return inputs if len(spec.shape) == 2 and axis == in_axis else []


def _of_cell(node: Node, spec: ParamSpec, axis: int, inputs: Axis) -> Axis:
    """Recurrent cells: rows are inputs, then the state; columns and biases are gates."""
    n, size = _size(node), spec.shape[axis]
    recurrent = spec.name.rpartition("/")[2] == "W_re"
    if len(spec.shape) == 2 and axis == 0 and not recurrent:
        if size == _total(inputs):
            return inputs
        if size == _total(inputs) + n:
            return inputs + [Part("state", n)]
    return _equal_parts(size, n, "gate")


def _of_self_attention(node: Node, spec: ParamSpec, axis: int, inputs: Axis) -> Axis:
    """Rows are inputs; columns are query, key and value for each head."""
    if axis == 0:
        return inputs
    heads, keys = node.layer.num_heads, node.layer.total_key_dim  # type: ignore[attr-defined]
    sizes = (("query", keys // heads), ("key", keys // heads), ("value", _size(node) // heads))
    return [Part("%s %d" % (name, head), size) for head in range(heads) for name, size in sizes]


_RULES: Dict[str, Callable[[Node, ParamSpec, int, Axis], Axis]] = {
    "linear": _of_linear,
    "softmax": _of_linear,
    "rec": _of_cell,
    "rnn_cell": _of_cell,
    "self_attention": _of_self_attention,
}

Block = Tuple[slice, slice]


def common_blocks(old: Axis, new: Axis) -> List[Block]:
    """Which ranges of an axis go where: (range in the old one, range in the new one) for each part that both have.

    Parts with the same label belong together; those whose label is unknown to the other side in the order in which they
    stand there.
    """
    old_at, new_at = _starts(old), _starts(new)
    pairs: List[Tuple[int, int]] = []
    rest = list(range(len(old)))
    unmatched: List[int] = []
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


def _starts(parts: Axis) -> List[int]:
    starts, at = [], 0
    for part in parts:
        starts.append(at)
        at += part.size
    return starts
