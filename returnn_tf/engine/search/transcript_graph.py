"""What the graph of a search gives for transcripts: hypotheses, and the values of layers that tell times and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, cast

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.requested import AddedLayer, Output
from returnn_tf.config.errors import SearchError, did_you_mean
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.search.end_labels import end_labels, loop_of_search
from returnn_tf.engine.search.searcher import hypotheses_of, searched_node
from returnn_tf.engine.search.times import InputFrames, Times, TimesLayer, frames_of_input, times_layer
from returnn_tf.engine.transcripts.confidence import POOLED, Confidence
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.choice import ChoiceLayer
from returnn_tf.layers.sequence.align import ForcedAlignLayer
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.ops.activations import safe_log
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

#: What is added to the path of a choice, for the layer with the scores of its hypotheses in each step.
_SCORES = " (scores)"


@dataclass(frozen=True)
class TranscriptOptions:
    """What transcripts hold.

    :param times: layer that tells the times of labels; None: the best that there is
    :param confidence: how it is computed
    :param parts: name -> (layer of the loop with log scores or probabilities of the labels, weight)
    """

    times: Optional[str] = None
    confidence: Confidence = field(default_factory=Confidence)
    parts: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: TaskSettings) -> TranscriptOptions:
        """Return what the settings ``search_...`` say."""
        given = settings.search_score_layers or {}
        parts = {name: (x, 1.0) if isinstance(x, str) else (x[0], float(x[1])) for name, x in given.items()}
        confidence = Confidence(settings.search_confidence, settings.search_confidence_scale)
        return cls(settings.search_times, confidence, parts)


class TranscriptGraph:
    """Emits what the transcripts of one layer are made of.

    :param plan: planned for search, with the outputs `wanted_layers`
    :param layer: path of the layer with the hypotheses, with the best one, or with an alignment of a target
    """

    def __init__(self, plan: Plan, layer: str, options: TranscriptOptions) -> None:
        self.options, self.plan = options, plan
        searched = searched_node(plan, layer)
        #: The layer with all hypotheses; of an alignment, the one with the labels.
        self.node = beam_of(searched)
        self._aligned_by: Optional[Node] = None
        if isinstance(searched.layer, ForcedAlignLayer):
            self._aligned_by = searched.sources[0] if len(searched.sources) == 1 else None
        self._are_probs = isinstance(searched.layer, ForcedAlignLayer) and searched.layer.input_type == "prob"
        #: The labels that end the search.
        self.ends = end_labels(plan, self.node, self.node.output)
        #: What tells the times; None if nothing does.
        self.times = times_layer(plan, searched if self._aligned_by else self.node, options.times)
        self._loop = loop_of_search(plan, self.node)
        there = plan.by_path()
        self._times_node = None if self.times is None else _there(there, self.times.path, "search_times")
        #: The data whose frames are counted; None if it is not known which they are.
        self.input: Optional[InputFrames] = None
        self._parts = {
            name: _there(there, path, "search_score_layers[%r]" % name) for name, (path, _) in options.parts.items()
        }
        self._layers = plan.layers  # the layers as such; by_path has their values outside of loops
        self._chosen: Optional[Node] = None
        self._chosen_from: Optional[Node] = None
        self._step_scores: Optional[Node] = None
        if options.parts and self._loop is not None and self._loop.search is not None:
            path = self._loop.search.choices[0].path
            self._chosen = there.get(path) or _there(there, self._loop.path, "search_score_layers")
        if self.times is not None and self.times.kind is Times.ATTENTION:
            _check_weights(self._times_node)
        if self.times is not None and self._times_node is not None:
            data = self._times_node.output
            axis = data.rank - 1 if self.times.kind is Times.ATTENTION else data.time_axis
            assert axis is not None
            self.input = frames_of_input(plan, self._times_node, axis)
        scored = _choice_of_distribution(plan, self._loop) if options.confidence.kind == POOLED else None
        if scored is not None:
            self._step_scores = _there(there, scored.path + _SCORES, "search_confidence")
        if options.confidence.by_entropy and self._loop is not None and self._loop.search is not None:
            choice = self._loop.search.choices[0]
            self._chosen_from = _there(there, choice.sources[0].path, "search_confidence")
            self._are_probs = cast(ChoiceLayer, choice.layer).input_type == "prob"

    @property
    def needed(self) -> list[Node]:
        """Return the layers whose values `emit` takes."""
        of_labels = [self._chosen, self._chosen_from, self._step_scores, self._aligned_by, *self._parts.values()]
        nodes = [self.node, self._times_node, *of_labels]
        return list(dict.fromkeys(node for node in nodes if node is not None))

    def emit(self, graph: Lowered) -> dict[str, Any]:
        """Emit what transcripts are made of; all [rows, ...], a row for each hypothesis or for each sequence."""
        labels, lens, scores = hypotheses_of(graph, self.node)
        found = {"labels": labels, "lens": lens}
        if scores is not None:
            found["scores"] = scores
        if self.times is not None and self._times_node is not None:
            found.update(self._emit_times(graph, self.times, self._times_node))
        if self._chosen_from is not None:
            found["sure"] = _by_entropy(self._log_probs(graph, self._chosen_from))
        if self._step_scores is not None:
            assert self._loop is not None
            found["sure"] = _by_scores(graph, self._step_scores, self._loop)
        if self._aligned_by is not None:
            log_probs, path = self._log_probs(graph, self._aligned_by), tf.cast(found["times"], tf.int32)
            by_entropy = self.options.confidence.by_entropy
            found["sure"] = _by_entropy(log_probs) if by_entropy else tf.exp(tf.gather(log_probs, path, batch_dims=2))
        for name, node in self._parts.items():
            assert self._chosen is not None
            values = _by_step(graph, node)
            chosen, found["steps"], _ = hypotheses_of(graph, self._chosen)
            values = tf.gather(values, chosen, batch_dims=2)
            log_scores = safe_log(values) if self._gives_probs(node) else values
            found["part " + name] = self.options.parts[name][1] * log_scores
        return found

    def _emit_times(self, graph: Lowered, times: TimesLayer, node: Node) -> dict[str, Any]:
        data, lens = node.output, graph.lens_by_axis(node.output)
        value = graph.lowering.values.outputs[node]
        assert data.batch_axis is not None
        if times.kind is Times.ATTENTION:
            keys = data.rank - 1
            steps = next(axis for axis in data.dynamic_axes if axis != keys)
            rest = [axis for axis in range(data.rank) if axis not in (data.batch_axis, steps, keys)]
            value = transpose(value, [data.batch_axis, steps, keys, *rest])
            value = tf.exp(value) if self._layers[node.path].layer.in_log_space else value
            value = tf.reduce_mean(value, axis=list(range(3, data.rank)))  # of the heads
            frames = keys
        else:
            assert data.time_axis is not None
            frames = data.time_axis
            last = [] if data.feature_axis is None else [data.feature_axis]
            value = transpose(value, [data.batch_axis, frames, *last])
            if times.kind is Times.CTC:
                value = tf.nn.log_softmax(safe_log(value) if self._gives_probs(node) and not times.is_log else value)
        size = tf.shape(value)[2 if times.kind is Times.ATTENTION else 1]
        return {"times": value, "frames": tf.broadcast_to(lens.get(frames, size), tf.shape(value)[:1])}

    def _log_probs(self, graph: Lowered, node: Node) -> Any:
        """Return the log probabilities of what is chosen or aligned, [rows, steps, labels].

        Where nothing may be chosen, as where a sequence would end within a word, all labels are equally likely.
        """
        values = _by_step(graph, node)
        values = safe_log(values) if self._are_probs else values
        none = tf.equal(tf.reduce_max(values, axis=-1, keepdims=True), -math.inf)
        return tf.nn.log_softmax(tf.where(none, tf.zeros_like(values), values))

    def _gives_probs(self, node: Node) -> bool:
        """Return whether the values are probabilities, rather than their logs."""
        layer = self._layers[node.path].layer
        return layer.activation == "softmax" or (layer.normalizes_features and layer.activation != "log_softmax")


def wanted_layers(plan: Plan, layer: str, options: TranscriptOptions) -> list[Output]:
    """Return the layers in loops whose values are needed for all steps: outputs of the plan to search with.

    :param plan: planned for search
    :raises ConfigError: the options name a layer that is not there or does not fit
    """
    searched = searched_node(plan, layer)
    node = beam_of(searched)
    if not node.output.sparse:
        raise SearchError(
            "search_output_layer: layer %r has no labels, so there is no transcript. Choose the format 'txt' or 'py'."
            % layer
        )
    is_alignment = isinstance(searched.layer, ForcedAlignLayer)
    found = times_layer(plan, searched if is_alignment else node, options.times)
    paths = [] if found is None else [found.path]
    loop = loop_of_search(plan, node)
    for name, (path, _) in options.parts.items():
        if path not in plan.layers:
            raise SearchError(
                "search_score_layers[%r]: there is no layer %r. %s" % (name, path, did_you_mean(path, plan.layers))
            )
        if loop is None or not path.startswith(loop.path + "/"):
            raise SearchError(
                "search_score_layers[%r]: layer %r is not inside of the loop that searches for %r, where the scores of "
                "its labels are." % (name, path, layer)
            )
        paths.append(path)
    if options.confidence.by_entropy and loop is not None and loop.search is not None:
        sources = loop.search.choices[0].sources
        if len(sources) != 1:
            raise SearchError(
                "search_confidence = 'entropy' needs a choice from one source, but %r has %d. Use 'posterior'."
                % (loop.search.choices[0].path, len(sources))
            )
        paths.append(sources[0].path)
    in_loops: list[Output] = [path for path in dict.fromkeys(paths) if "/" in path]
    choice = _choice_of_distribution(plan, loop) if options.confidence.kind == POOLED else None
    if choice is not None:
        source = choice.path.rpartition("/")[2]
        in_loops.append(AddedLayer(choice.path + _SCORES, {"class": "choice_get_beam_scores", "from": source}))
    return in_loops


def _choice_of_distribution(plan: Plan, loop: Optional[LoopPlan]) -> Optional[Node]:
    """Return the choice of a loop if each label adds its log probability to the score; None otherwise.

    So not with scores of a language model besides.
    """
    if loop is None or loop.search is None or len(loop.search.choices) != 1:
        return None
    (choice,) = loop.search.choices
    layer = cast(ChoiceLayer, choice.layer)
    if not layer.sums_log_probs:
        return None
    if layer.input_type == "logits":
        return choice
    (source,) = choice.sources
    while source.path not in plan.layers and len(source.sources) == 1:  # a value that enters the loop
        (source,) = source.sources
    inner = plan.layers.get(source.path, source).layer
    return choice if inner.normalizes_features or inner.activation in ("softmax", "log_softmax") else None


def beam_of(node: Node) -> Node:
    """Return the layer with all hypotheses behind a decision, or the labels of an alignment; else the layer itself."""
    if isinstance(node.layer, ForcedAlignLayer):
        return cast(Node, node.layer.align_target)
    todo, seen = [node], {node}
    while todo:
        current = todo.pop(0)
        if current.output.beam is not None:
            return current if _are_labels(current.output) else node
        if not current.layer.decides:
            continue
        fresh = [source for source in current.sources if source not in seen]
        todo += fresh
        seen.update(fresh)
    return node


def _are_labels(data: Data) -> bool:
    return data.sparse and data.rank <= 2


def _there(layers: Mapping[str, Node], path: str, setting: str) -> Node:
    if path not in layers:
        raise SearchError("%s: the values of layer %r are not known outside of its loop." % (setting, path))
    return layers[path]


def _check_weights(node: Optional[Node]) -> None:
    """Check that a layer has weights for each step and frame.

    :raises ConfigError: it has other axes
    """
    assert node is not None
    if node.output.batch_axis is None or len(node.output.dynamic_axes) != 2:
        raise SearchError(
            "search_times: layer %r %s has no attention weights for each label and frame." % (node.path, node.output)
        )


def _by_entropy(log_probs: Any) -> Any:
    """Return the confidence of distributions, see `returnn_tf.engine.transcripts.confidence`, without their axis."""
    entropy = -tf.reduce_sum(tf.math.multiply_no_nan(log_probs, tf.exp(log_probs)), axis=-1)
    return 1.0 - entropy / tf.math.log(tf.cast(tf.shape(log_probs)[-1], entropy.dtype))


def _by_scores(graph: Lowered, node: Node, loop: LoopPlan) -> Any:
    """Return the probability of the label that each step adds, from the scores of the hypotheses, [rows, steps]."""
    batch, steps = node.output.batch_axis, node.output.time_axis
    assert batch is not None and steps is not None
    scores = transpose(graph.lowering.values.outputs[node], [batch, steps])
    before = graph.lowering.search.scores_before.get(loop.path)
    first = tf.zeros([tf.shape(scores)[0], 1], scores.dtype) if before is None else tf.reshape(before, [-1, 1])
    added = scores - tf.concat([first, scores[:, :-1]], axis=1)
    return tf.exp(tf.where(tf.math.is_finite(added), tf.minimum(added, 0.0), added.dtype.min))


def _by_step(graph: Lowered, node: Node) -> Any:
    """Return the scores of labels in each step, [rows, steps, labels]."""
    data = node.output
    axes = [axis for axis in data.dynamic_axes if axis != data.feature_axis]
    if data.batch_axis is None or data.feature_axis is None or len(axes) != 1 or data.rank != 3:
        raise SearchError("Layer %r %s does not have scores of labels for each step." % (node.path, data))
    return transpose(graph.lowering.values.outputs[node], [data.batch_axis, axes[0], data.feature_axis])
