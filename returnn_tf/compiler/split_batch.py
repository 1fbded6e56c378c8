"""Batches in two halves: whether these give the losses and gradients of the whole batch, and the halves of a feed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.graph.constraints import constrains_output
from returnn_tf.tensor import Data


def obstacle(plan: Plan, *, search: bool = False) -> str:
    """Return why two halves of a batch do not give the results and sums that the batch gives; "": they do.

    Code of the config, as of `eval`, is taken to compute each sequence by itself.

    :param search: whether this is a search, whose hypotheses may depend on the sequences that are searched together
    """
    for node in plan.all_nodes():
        layer, of_layer = node.layer, "layer %r (class %r) " % (node.path, node.layer.class_name)
        if node.batch_norm is not None:
            return of_layer + "normalises over the batch"
        if node.kept:
            return of_layer + "keeps its state from batch to batch"
        if layer.changes_variables:
            return of_layer + "changes a variable in each step"
        if layer.has_sink:
            return of_layer + "passes its values on once per step"
        if layer.has_meta_loss:
            return of_layer + "has a loss on gradients"
        if constrains_output(node):
            return of_layer + "has darc1 or spatial_smoothing, which constrain the sum over the batch"
        if layer.mixes_sequences() and not (search and layer.chooses_labels):
            return of_layer + "computes over the sequences of the batch"
    for loss in plan.losses:
        if loss.loss.mixes_sequences:
            return "the loss %r compares the sequences of the batch" % loss.name
        if loss.owner.output.batch_axis is None:
            return "the loss %r is on a layer without a batch axis, so it would count twice" % loss.name
    return ""


def num_sequences(extern_data: Mapping[str, Data], feed: Mapping[str, Any]) -> int:
    """Return the number of sequences in a feed; 0 if nothing in it has a batch axis."""
    return next((int(value.shape[0]) for name, value in feed.items() if _is_batched(extern_data, name)), 0)


def part_of_feed(extern_data: Mapping[str, Data], feed: Mapping[str, Any], begin: Any, end: Any) -> dict[str, Any]:
    """Return the feed of some sequences of a batch, with the padding that they have there.

    :param begin: the first sequence, int or scalar tensor
    :param end: that after the last one, likewise
    """
    return {name: value[begin:end] if _is_batched(extern_data, name) else value for name, value in feed.items()}


def _is_batched(extern_data: Mapping[str, Data], name: str) -> bool:
    return extern_data[name.split("/size")[0]].batch_axis is not None
