"""What of a network tells when the labels of a hypothesis were said, and the frames of labels from its values.

* The path: the search chose a label, or none, for each frame, as a transducer does.
* CTC: an output with a CTC loss on the same labels, of which the best path for the hypothesis is taken.
* Attention: the weights of the decoder. A frame belongs to the label with the most weight there, in the order of the
  labels, or to none where each has less than a frame would get by chance.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import SearchError, did_you_mean
from returnn_tf.engine.search.end_labels import loop_of_search
from returnn_tf.engine.transcripts.best_path import Frames, best_paths, ctc_frames
from returnn_tf.graph.layer import Node
from returnn_tf.layers.losses.ctc import CtcLoss
from returnn_tf.layers.search.ctc_greedy import CtcGreedyLayer
from returnn_tf.layers.sequence.align import ForcedAlignLayer
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.tensor import Data, Dim


class Times(enum.Enum):
    """Where times come from, in the order of preference."""

    PATH = "the label of each frame that the search chose, or an alignment has"
    CTC = "the best CTC path of the hypothesis"
    ATTENTION = "attention weights"


@dataclass(frozen=True)
class TimesLayer:
    """A layer that tells times.

    :param path: of the layer
    :param blank: of CTC: class of the blank, negative from the end
    :param is_log: of CTC: whether the loss says that the values are logs
    """

    kind: Times
    path: str
    blank: int = -1
    is_log: bool = False


def times_layer(plan: Plan, node: Node, name: Optional[str]) -> Optional[TimesLayer]:
    """Return the layer that tells the times of the labels of another one, None if there is none.

    :param plan: planned for search
    :param node: the layer with the hypotheses, or with an alignment
    :param name: of the layer, as the setting ``search_times`` has it; None: the best that there is
    :raises ConfigError: that layer is not there, or tells no times
    """
    loop = loop_of_search(plan, node)
    if isinstance(node.layer, ForcedAlignLayer):
        return TimesLayer(Times.PATH, node.path)
    if name is not None:
        return _named(plan, name, loop)
    if isinstance(node.layer, CtcGreedyLayer):
        return TimesLayer(Times.CTC, node.layer.source.path, node.layer.plan.blank, node.layer.input_type == "log_prob")
    if loop is not None and loop.ending.end is None and _is_path(plan.layers.get(loop.path)):
        return TimesLayer(Times.PATH, loop.path)
    for loss in plan.losses:
        if isinstance(loss.loss, CtcLoss) and loss.target is not None and _same(node.output, loss.target.output):
            return _of_ctc(loss.owner.path, loss.loss)
    weights = [] if loop is None else _cross_attention(plan, loop)
    return TimesLayer(Times.ATTENTION, weights[-1]) if weights else None


def _cross_attention(plan: Plan, loop: LoopPlan) -> list[str]:
    """Return the layers of a loop with attention weights over frames outside of it, not over its own steps."""
    within = loop.path + "/"
    outside = {dim for node in plan.nodes if not node.path.startswith(within) for dim in node.output.dims}
    return [
        path
        for path, node in plan.layers.items()
        if path.startswith(within) and node.layer.gives_attention_weights and node.output.dims[-1] in outside
    ]


def _named(plan: Plan, name: str, loop: Optional[LoopPlan]) -> TimesLayer:
    layers = plan.layers
    if name not in layers:
        raise SearchError("search_times: there is no layer %r. %s" % (name, did_you_mean(name, layers)))
    layer = layers[name]
    if loop is not None and name == loop.path and loop.ending.end is None and _is_path(layer):
        return TimesLayer(Times.PATH, name)
    if loop is not None and name.startswith(loop.path + "/"):
        return TimesLayer(Times.ATTENTION, name)
    losses = [loss.loss for loss in plan.losses if loss.owner is layer]
    if layer.output.feature_dim is not None and layer.output.time_axis is not None and layer.output.rank == 3:
        return _of_ctc(name, next((loss for loss in losses if isinstance(loss, CtcLoss)), None))
    raise SearchError(
        "search_times: layer %r %s tells no times. Name an output of CTC [batch, time, labels], attention weights "
        "inside of the loop of the search, or a loop that chooses a label for each frame." % (name, layer.output)
    )


def _of_ctc(path: str, loss: Optional[CtcLoss]) -> TimesLayer:
    if loss is None:
        return TimesLayer(Times.CTC, path)
    return TimesLayer(Times.CTC, path, loss.blank, loss.output_in_log_space)


def _is_path(layer: Optional[Node]) -> bool:
    return layer is not None and layer.output.sparse and layer.output.rank == 2


def _same(found: Data, target: Data) -> bool:
    """Return whether labels are those of a target, or these and more at the end."""
    dims: list[Optional[Dim]] = [found.sparse_dim]
    while dims[-1] is not None and dims[-1].labels_of not in (None, *dims):
        dims.append(dims[-1].labels_of)
    return target.sparse_dim in dims


def frames_of_ctc(log_probs: NDArray[Any], sequences: Sequence[Sequence[int]], blank: int) -> list[Optional[Frames]]:
    """Return the frames of labels on their best CTC paths.

    :param log_probs: [frames, classes]
    :param sequences: labels of the hypotheses, which are numbered as the classes, as in the loss ``ctc``
    :param blank: class, negative from the end
    :return: None for a hypothesis with another label, or with more than there are frames for
    """
    classes = log_probs.shape[1]
    blank %= classes
    known = [all(label < classes and label != blank for label in labels) for labels in sequences]
    found = iter(ctc_frames(log_probs, [labels for labels, is_known in zip(sequences, known) if is_known], blank))
    return [next(found) if is_known else None for is_known in known]


def frames_of_attention(weights: NDArray[Any]) -> Optional[Frames]:
    """Return the frames of labels by their attention weights.

    :param weights: [labels, frames]
    """
    labels, frames = weights.shape
    scores = np.log(np.maximum(weights.T * frames, 1e-9))  # above 0: more than by chance
    (found,) = best_paths([scores], np.zeros(frames), [[False] * max(labels - 1, 0)])
    return found


@dataclass(frozen=True)
class InputFrames:
    """The frames of the input that the frames of a layer are made of.

    :param key: data key
    :param axis: index of their axis, without the batch axis
    """

    key: str
    axis: int

    @property
    def feed_key(self) -> str:
        """Return the key of their lengths in a feed."""
        return "%s/size%d" % (self.key, self.axis)


def frames_of_input(plan: Plan, node: Node, axis: int) -> Optional[InputFrames]:
    """Return from which data the frames of a layer come: their dim is computed from that of the data.

    If no expression tells, as of frames that a mask picks, it is the only data that is no labels and that the layer
    depends on.

    :param axis: of the layer
    :return: None if there are several, or none
    """
    given = [each for each in plan.all_nodes() if each.extern_key is not None]
    given.sort(key=lambda each: not each.output.sparse)  # labels of frames have the dim of these, which replace them
    by_dim = {dim: found for each in given for dim, found in _frames_of(each)}
    candidates = {by_dim[dim] for dim in _operands(node.output.dims[axis]) if dim in by_dim}
    if not candidates:
        needed = _needed_by(node)
        dense = [each for each in given if each in needed and not each.output.sparse]
        candidates = {found for each in dense for _, found in _frames_of(each)}
    return candidates.pop() if len(candidates) == 1 else None


def _frames_of(node: Node) -> Iterator[tuple[Dim, InputFrames]]:
    """Yield the axes with lengths of given data."""
    order = batch_major_order(node.output)
    axes = [axis for axis in order if axis != node.output.batch_axis]
    for axis in node.output.dynamic_axes:
        assert node.extern_key is not None
        yield node.output.dims[axis], InputFrames(node.extern_key, axes.index(axis))


def _operands(dim: Dim) -> set[Dim]:
    """Return the dims without an expression that a dim is computed from, or itself."""
    if dim.without_priority is not None:
        return _operands(dim.without_priority)
    return {dim} if dim.expr is None else {found for each in dim.expr.args for found in _operands(each)}


def _needed_by(node: Node) -> set[Node]:
    todo, found = [node], {node}
    while todo:
        fresh = [each for each in todo.pop().deps if each not in found]
        todo += fresh
        found.update(fresh)
    return found


def input_frames(given: int, found: int) -> float:
    """Return how many frames of the input are one frame of a layer.

    Layers skip frames at the edges, so the ratio of the lengths is only near a whole number.

    :param given: frames of the input
    :param found: frames of the layer
    """
    ratio = given / max(found, 1)
    whole = round(ratio)
    return float(whole) if whole >= 1 and abs(given - whole * found) <= 2 * whole else ratio
