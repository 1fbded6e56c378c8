"""Which layers of a training step skip padding: chains that work frame by frame, if nothing sees the padding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import loss_deps
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossNode
from returnn_tf.native.fused.pack import pack_ops
from returnn_tf.tensor import Data

#: Multiply-adds per frame for each number of a frame that is copied at the begin or end of a chain, below which packing
#: does not pay: a number is copied twice forward and backward, in the time of about 50 multiply-adds.
_WORK_PER_NUMBER = 512


def packed_layers(
    needed: Iterable[Node],
    owners: Mapping[LossNode, Node],
    differentiated: Collection[Node],
    *,
    always: bool = False,
) -> tuple[frozenset[Node], Any]:
    """Return the layers of a training step that are computed for packed frames, and the ops for that.

    :param needed: all layers of the graph
    :param owners: layer by loss
    :param differentiated: the layers by whose values other layers may take derivatives
    :param always: whether to pack where it does not pay, too
    """
    nodes = [node for node in needed if node.planned]
    if any(node.layer.has_meta_loss for node in nodes):
        return frozenset(), None
    readers: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node in nodes:
        for dep in {*node.deps, *node.param_deps}:
            readers.setdefault(dep, []).append(node)
    exposed = _exposed(readers, owners)
    packed = {node for node in nodes if node not in exposed and node not in differentiated and _fits(node)}
    kept = [chain for chain in _chains(packed) if always or _pays(chain, readers, owners)]
    ops = pack_ops() if kept else None
    return (frozenset() if ops is None else frozenset(node for chain in kept for node in chain)), ops


def _exposed(readers: Mapping[Node, Sequence[Node]], owners: Mapping[LossNode, Node]) -> set[Node]:
    """Return the layers the padding of whose values may matter."""
    found: set[Node] = set()
    for loss, owner in owners.items():
        found |= set() if loss.loss.ignores_padding else {owner, *loss_deps(loss)}
    found.update(node for node, others in readers.items() if any(not _ignores_padding(other) for other in others))
    found.update(node for node in readers if not _ignores_own_padding(node))
    todo = list(found)
    while todo:
        node = todo.pop()
        for dep in (*node.deps, *node.param_deps):
            if dep not in found:
                found.add(dep)
                todo.append(dep)
    return found


def _ignores_padding(node: Node) -> bool:
    """Return whether a layer, with the code of the config that looks at it, ignores the padding of what it reads."""
    code = callable(node.layer.control_dependencies_on_output)
    return bool(node.layer.ignores_padding() and _ignores_own_padding(node) and not code)


def _ignores_own_padding(node: Node) -> bool:
    """Return whether no statistics of a batch contain the padding of a layer's value."""
    layer = node.layer
    return not layer.batch_norm or layer.normalizes_batch or node.batch_norm is None or node.batch_norm.masked_time


def _fits(node: Node) -> bool:
    """Return whether a layer works frame by frame on frames of the same sequences."""
    layer, data = node.layer, node.output
    if layer.alters_output() or layer.copy_output_loss_from_source_idx is not None or not layer.works_by_frame():
        return False
    return _is_ragged(data) and all(_is_ragged(source.output, data) for source in node.sources)


def _is_ragged(data: Data, like: Optional[Data] = None) -> bool:
    """Return whether the axes are batch, time and features, the first two as in another template."""
    if data.rank != 3 or data.dtype != "float32" or data.sparse or data.beam is not None or data.feature_axis != 2:
        return False
    batch, time, feature = data.dims
    same = like is None or (like.dims[0] is batch and like.dims[1] is time)
    return same and batch.is_batch and time.is_dynamic() and not time.is_batch and feature.size is not None


def _chains(packed: set[Node]) -> list[set[Node]]:
    """Return the connected parts of the layers."""
    near: dict[Node, list[Node]] = {node: [] for node in packed}
    for node in packed:
        for source in node.sources:
            if source in packed:
                near[node].append(source)
                near[source].append(node)
    chains, left = [], set(packed)
    while left:
        todo, chain = [left.pop()], set()
        while todo:
            node = todo.pop()
            chain.add(node)
            more = [other for other in near[node] if other in left]
            left.difference_update(more)
            todo += more
        chains.append(chain)
    return chains


def _pays(chain: set[Node], readers: Mapping[Node, Sequence[Node]], owners: Mapping[LossNode, Node]) -> bool:
    """Return whether the products of a chain outweigh the copies at its ends."""
    into = {source for node in chain for source in node.sources if source not in chain}
    with_loss = set(owners.values())
    out = {node for node in chain if node in with_loss or any(reader not in chain for reader in readers.get(node, ()))}
    # A loss of many labels is computed from the source of its layer.
    numbers = sum(_width(node) for node in into)
    numbers += sum(
        min(_width(node), *(_width(s) for s in node.sources)) if node in with_loss else _width(node) for node in out
    )
    return sum(node.layer.work_per_frame() for node in chain) >= _WORK_PER_NUMBER * numbers


def _width(node: Node) -> int:
    return node.output.dim or 0
