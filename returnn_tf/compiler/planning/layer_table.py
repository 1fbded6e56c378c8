"""The layers of a planned network as a table: of `returnn-tf check`, and for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.rounded_variable import RoundedSpec
from returnn_tf.logging.text import counted
from returnn_tf.tensor import Data
from returnn_tf.util.html import Html, paragraph, table

HEADER = ("layer", "class", "output", "dtype", "parameters", "time")


def layers_html(
    nodes: Sequence[Node],
    losses: Sequence[LossNode],
    params: Mapping[str, ParamSpec],
    rounded: Mapping[str, RoundedSpec],
) -> Html:
    """Return the table of the layers, then losses and totals, as HTML."""
    lines = [*loss_lines(losses), totals(nodes, params, rounded)]
    return Html(
        table(HEADER, [layer_row(node, rounded) for node in nodes], numbers=[4]) + "".join(map(paragraph, lines))
    )


def layer_row(node: Node, rounded: Mapping[str, RoundedSpec]) -> Sequence[str]:
    """Return the cells of a layer.

    :param rounded: the parameters that are stored as smaller numbers, by name
    """
    data = node.output
    count = sum(spec.size for spec in node.owned)
    return (
        node.path,
        "data" if node.extern_key is not None else node.layer.class_name,
        show_axes(data),
        data.dtype + (" of %s" % (data.sparse_dim.size or "?") if data.sparse_dim is not None else ""),
        (f"{count:,}" if count else "") + "".join(" (%s)" % kind for kind in _kinds(node, rounded)),
        _time_change(node),
    )


def _kinds(node: Node, rounded: Mapping[str, RoundedSpec]) -> list[str]:
    """Return what is special about the parameters of a layer: how they are stored, whether they are trained."""
    stored = sorted({rounded[spec.name].kind.dtype for spec in node.owned if spec.name in rounded})
    if any(spec.adapter is not None for spec in node.owned):
        return [*stored, "adapter"]
    floats = [spec for spec in node.owned if spec.dtype.startswith("float")]
    return [*stored, "frozen"] if floats and not any(spec.trainable for spec in floats) else stored


def show_axes(data: Data) -> str:
    """Return the axes in the form ``[B, T|time, F|40]``."""
    parts = []
    for kind, dim in zip(data.axis_kinds, data.dims):
        if kind == "B":
            parts.append("B" if dim.expr is None and dim.description == "batch" else "B|%s" % dim)
        else:
            parts.append("%s|%s" % (kind, dim.size if dim.size is not None else dim))
    return "[%s]" % ", ".join(parts)


def _time_change(node: Node) -> str:
    """Return ``old -> new`` if the output has dynamic dims that no source has."""
    before = [d for s in node.sources for d in s.output.dims if d.is_dynamic()]
    after = [d for d in node.output.dims if d.is_dynamic()]
    new = [d for d in after if d not in before]
    if node.extern_key is not None or not node.sources or not (new or (before and not after)):
        return ""
    gone = list(dict.fromkeys(d for d in before if d not in after))
    return "%s -> %s" % (", ".join(map(str, gone)) or "-", ", ".join(map(str, new)) or "none")


def loss_lines(losses: Sequence[LossNode]) -> list[str]:
    """Return one line for each loss."""
    lines = []
    for loss in losses:
        target = "" if loss.target is None else ", target %s" % loss.target.path
        scale = "" if loss.scale == 1.0 else ", scale %g" % loss.scale
        lines.append("loss %s on %s%s%s" % (loss.loss.class_name, loss.name, target, scale))
    return lines


def totals(nodes: Sequence[Node], params: Mapping[str, ParamSpec], rounded: Mapping[str, RoundedSpec]) -> str:
    """Return the numbers of layers and parameters, and the memory of these.

    :param rounded: the parameters that are stored as smaller numbers, by name
    """
    count = sum(p.size for p in params.values())
    layers = sum(node.extern_key is None for node in nodes)
    trainable = sum(p.size for p in params.values() if p.trainable)
    text = "%s, %s in %s" % (counted(layers, "layer"), counted(count, "parameter"), counted(len(params), "array"))
    if trainable != count:
        adapters = sum(p.adapter.size for p in params.values() if p.adapter is not None)
        text += " (%s trainable%s)" % (f"{trainable:,}", f", {adapters:,} of adapters" if adapters else "")
    text += ", %s as float32" % _memory(4 * count)
    if rounded:
        stored = 4 * count + sum(spec.size - 4 * spec.param.size for spec in rounded.values())
        kind = next(iter(rounded.values())).kind.dtype
        text += "; %s with %s of %s" % (_memory(stored), counted(len(rounded), "array"), kind)
    return text


def _memory(size: int) -> str:
    return "%.1f KiB" % (size / 2**10) if size < 2**20 else "%.1f MiB" % (size / 2**20)
