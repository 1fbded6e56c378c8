"""Attention written as several layers, product, softmax, dropout and product, computed by one native op.

This holds in training, and in the steps of a search, where the keys and the values exist once per sequence.

Each of these layers emits its ops as usual, and stores from what its value was computed. The last one takes the native
op where nothing else reads the values between, whose ops then never run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.loops.aux_values import PerSequence
from returnn_tf.ops.dense.in_beam import attention_in_beam
from returnn_tf.ops.dense.labelled_attention import Factor, Label, Labels, Weights, labelled_attention
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class Energies:
    """The product of two factors, summed over one axis.

    :param value: the product as a tensor
    :param labels: of its axes
    """

    value: Any
    labels: Labels
    factors: tuple[Factor, Factor]


ENERGIES: Aux[Energies] = Aux("energies", enters_search=False)
WEIGHTS: Aux[Weights] = Aux("attention weights", enters_search=False)


def note_product(ctx: EmitContext, value: Any, a: Factor, b: Factor, labels: Sequence[Label]) -> None:
    """Store that a layer's value is a product, if it may be one of queries and keys.

    In a search, one of them has an entry per sequence, the other one per hypothesis.

    :param labels: of the value; labels of none of the factors are axes of size 1
    """
    if not _is_fused(ctx) or any(factor.tensor.dtype != tf.float32 for factor in (a, b)):
        return
    summed = [label for label in a.labels if label in b.labels and label not in labels]
    if len(summed) == 1 and all(_summed_size(factor, summed[0]) for factor in (a, b)):
        ctx.set_aux(ctx.node, ENERGIES, Energies(value, tuple(labels), (a, b)))


def note_weights(ctx: EmitContext, value: Any, x: Any, data: Data, perm: Sequence[int], scale: float) -> None:
    """Store that a layer's value is the softmax over its last axis of scaled energies, if its source has them.

    Frames of this axis after the end of a sequence have no weight, all others have one.

    :param x: the input of the layer
    :param data: template of the value
    :param perm: axis of the value -> axis of the input
    """
    found = _scaled_energies(ctx, ctx.node.sources[0], x) if _is_fused(ctx) else None
    if found is None:
        return
    energies, factor = found
    labels = tuple(energies.labels[axis] for axis in perm)
    dim, lengths, causal = data.dims[-1], None, False
    if ctx.differs_by_frame(dim):
        over = ctx.lowering.dims.running.get(dim)
        causal = over in data.dims and _is_of_queries(energies, labels[-1], labels[data.dims.index(over)])
        if not causal or not ctx.train:
            return
    elif dim.is_dynamic():
        lengths = ctx.lens(dim)
    ctx.set_aux(ctx.node, WEIGHTS, Weights(value, labels, energies.factors, scale * factor, lengths, causal))


def note_copy(ctx: EmitContext, value: Any, dropout: float, seed: Callable[[], Any]) -> None:
    """Store that a layer's value is that of its source, if that has weights.

    :param dropout: rate of the entries that became 0, each drawn independently
    :param seed: emits the seed by which they were drawn
    """
    source = ctx.node.sources[0]
    weights = ctx.aux(source, WEIGHTS)
    if weights is None or not _only_reader(ctx, source) or (dropout and weights.dropout):
        return
    if weights.value is not ctx.value(source):  # the source changed its gradient
        return
    if dropout:
        weights = dataclasses.replace(weights, dropout=dropout, seed=seed())
    ctx.set_aux(ctx.node, WEIGHTS, dataclasses.replace(weights, value=value))


def attended(
    ctx: EmitContext, node: Node, labels: Sequence[Label], base_labels: Sequence[Label], out: Sequence[Label], base: Any
) -> Optional[Any]:
    """Emit the product of attention weights and a base by the native op.

    :param node: the weights
    :param labels: of their axes; those which neither the base nor the result has are of size 1
    :param base_labels: of the axes of the base
    :param out: of the axes of the result
    :param base: tensor; in the step of a search `PerSequence`
    :return: None if the node has no attention weights, or the op does not compute this
    """
    weights = ctx.aux(node, WEIGHTS)
    once = base if isinstance(base, PerSequence) else None
    base = base if once is None else once.values
    if weights is None or base.dtype != tf.float32 or not _only_reader(ctx, node) or not _is_fused(ctx):
        return None
    if weights.value is not ctx.value(node) or base is weights.value or ctx.train != (once is None):
        return None
    # The labels of the last product, in terms of those of the first one.
    names: dict[Label, Label] = dict(zip(labels, weights.labels))

    def named(given: Sequence[Label]) -> Labels:
        return tuple(names.get(label, ("base", label)) for label in given)

    batch = ctx.node.output.batch_axis
    if batch is None:
        return None
    factor, low = Factor(base, named(base_labels)), ctx.product_dtype
    if once is None:
        return labelled_attention(weights, factor, named(out), named([out[batch]])[0], product_dtype=low)
    return None if low else attention_in_beam(weights, factor, named(out), named([out[batch]])[0])


def _is_fused(ctx: EmitContext) -> bool:
    """Return whether nothing looks at values between, in a training step outside of loops and beams, or in a search."""
    lowering = ctx.lowering
    if lowering.options.looks_at_outputs:
        return False
    return ctx.beam == 1 and not lowering.is_child if ctx.train else lowering.search.in_place


def _only_reader(ctx: EmitContext, node: Node) -> bool:
    """Return whether nothing but this layer reads a value."""
    lowering, layer = ctx.lowering, node.layer
    return lowering.options.readers.get(node) == 1 and layer.loss is None and not layer.alters_output()


def _summed_size(factor: Factor, label: Label) -> Optional[int]:
    size: Optional[int] = factor.tensor.shape[factor.labels.index(label)]
    return size


def _is_of_queries(energies: Energies, key: Label, frames: Label) -> bool:
    """Return whether keys and queries are the same frames: each on one side, of the same sequences."""
    sides = [[label in factor.labels for factor in energies.factors] for label in (key, frames)]
    return sides in ([[True, False], [False, True]], [[False, True], [True, False]])


def _scaled_energies(ctx: EmitContext, node: Node, x: Any) -> Optional[tuple[Energies, float]]:
    """Return the energies that a layer has, and by what they were multiplied; None if they are something else.

    :param x: the value of the layer
    """
    scale: float = 1.0
    while _only_reader(ctx, node):
        energies = ctx.aux(node, ENERGIES)
        value = ctx.lowering.values.outputs[node] if energies is None else energies.value
        if energies is None and len(node.sources) != 1:
            return None
        target = value if energies is not None else ctx.lowering.values.outputs[node.sources[0]]
        factor = _factor_between(target, x)
        if factor is None:
            return None
        scale *= factor
        if energies is not None:
            return energies, scale
        node, x = node.sources[0], target
    return None


def _factor_between(x: Any, y: Any) -> Optional[float]:
    """Return the number by which ops multiplied x, so that it became y; None if they did something else."""
    factor = 1.0
    while y is not x:
        op = y.op
        if op.type == "Identity":
            y = op.inputs[0]
            continue
        if op.type not in ("Mul", "RealDiv", "Div"):
            return None
        numbers = [tf.get_static_value(given) for given in op.inputs]
        index = 0 if numbers[0] is None else 1
        number = numbers[1 - index]
        if number is None or number.size != 1 or (index == 1 and op.type != "Mul"):
            return None
        y, number = op.inputs[index], float(number)
        if y.shape.rank != op.outputs[0].shape.rank:
            return None
        factor = factor * number if op.type == "Mul" else factor / number
    return factor
