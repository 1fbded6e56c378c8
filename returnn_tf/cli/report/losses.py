"""Losses of a network, and their outputs and references for a sequence."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.report.model import Model, SeqReport
from returnn_tf.engine.search.labels import Labels, labels_of
from returnn_tf.graph.loss import LossNode
from returnn_tf.layers.losses.ctc import CtcLoss

_FRAMES = ("T", "F")  # axes of an output that has a distribution for each frame or label


def ctc_losses(model: Model) -> list[LossNode]:
    """Return the losses whose outputs have an alignment."""
    return [loss for loss in model.net.plan.losses if isinstance(loss.loss, CtcLoss)]


def frame_losses(model: Model) -> list[LossNode]:
    """Return the losses with a distribution over classes for each frame of a target with labels."""
    inner = model.net.plan.layers  # a loss of a layer in a loop is on the output of the loop
    return [
        loss
        for loss in model.net.plan.losses
        if not loss.loss.has_blank and loss.target is not None and loss.target.output.sparse
        if inner.get(loss.owner.path, loss.owner).layer.normalizes_features
    ]


def target_labels(model: Model, loss: LossNode) -> Labels:
    """Return the names of the labels of a target: its own, else those of the data that it is made of.

    Layers may have added labels, e.g. of the end, which have no name then.
    """
    node = loss.target
    assert node is not None
    dataset, extern_data = model.dataset, model.net.extern_data
    labels = labels_of(node.output, dataset, extern_data, node.extern_key, replaced=False)
    while labels.names is None and node.sources:
        node = node.sources[0]
        if node.layer.computes_entries:
            break
        if node.output.sparse:
            labels = labels_of(node.output, dataset, extern_data, node.extern_key, replaced=False)
    return labels


def probs_of(loss: LossNode, each: SeqReport) -> Optional[NDArray[Any]]:
    """Return the output [frames, classes]; None if it has other axes."""
    value, axes = each.values.get(loss.owner.path, (None, ()))
    return value if value is not None and axes == _FRAMES else None


def reference_of(loss: LossNode, each: SeqReport) -> Optional[NDArray[Any]]:
    """Return the labels of the target; None if it is no sequence of them."""
    assert loss.target is not None
    key = loss.target.extern_key
    value = each.feed.get(key) if key is not None else each.values.get(loss.target.path, (None, ()))[0]
    return value if value is not None and value.ndim == 1 else None


def blank_of(loss: LossNode, probs: NDArray[Any]) -> int:
    """Return the class of the blank in an output [frames, classes]."""
    options = getattr(loss.loss, "ctc_opts", None) or {}
    return int(options.get("blank_index", -1)) % probs.shape[1]


def with_blank(labels: NDArray[Any], blank: int) -> NDArray[Any]:
    """Return labels as classes of an output in which the blank takes a place among them."""
    return labels + (labels >= blank)


def sees_reference(model: Model, loss: LossNode) -> bool:
    """Return whether it is of a decoder: a step of its loop depends on the labels of the reference before."""
    plan = model.net.plan
    loops = [node.path + "/" for node in plan.visible_nodes() if node.layer.iterates_unit]
    around = [loop for loop in loops if loss.owner.path.startswith(loop)]
    return any(node.layer.beam_size_option and node.path.startswith(tuple(around)) for node in plan.visible_nodes())


def best_of(loss: LossNode, each: SeqReport) -> Optional[NDArray[Any]]:
    """Return the best class of each frame or step; None if the output has other axes."""
    probs = probs_of(loss, each)
    return None if probs is None else probs.argmax(axis=1)


def decoded_of(loss: LossNode, each: SeqReport) -> Optional[NDArray[Any]]:
    """Return the labels of the best class of each frame, without repetitions and blanks."""
    probs = probs_of(loss, each)
    if probs is None:
        return None
    blank, best = blank_of(loss, probs), probs.argmax(axis=1)
    kept = best[np.concatenate([[True], best[1:] != best[:-1]])] if len(best) else best
    kept = kept[kept != blank]
    labels: NDArray[Any] = kept - (kept > blank)
    return labels
