"""The steps of a transducer as sherpa-onnx has them: encoder, predictor given the last labels, and joiner of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import ExportError
from returnn_tf.export.onnx.stateful.emission import StepFunctions
from returnn_tf.graph.layer import Node
from returnn_tf.util.lazy_tf import tf

#: The largest number of labels that a predictor may depend on.
MOST_CONTEXT = 8
#: Histories that are compared to find what a predictor depends on.
_HISTORIES = 6


class TransducerSteps(StepFunctions):
    """The steps of a loop that takes a frame, and gives a label or a blank, per step.

    The joiner are the layers between a frame, with what depends on labels alone, and the scores.

    :param plan: made by `plan_for_steps`
    :param params: parameter name -> variable
    :param layer: path of the loop
    :param where: how errors begin
    :param blank: its index
    :raises ConfigError: the loop is no such transducer; names the layer that does not fit
    """

    def __init__(
        self, plan: Plan, config: Config, params: dict[str, Any], layer: str, *, where: str, blank: int
    ) -> None:
        super().__init__(plan, config, params, layer, where=where)
        self.blank = blank
        self._check_frames()
        self._slices = {node: outer for outer, node in self.parts.slices}
        predicted = [node for node in self._hidden if node not in self._slices]
        frames = self._of_frames()
        for node in predicted:
            if node in frames:
                raise self._unfit(node, "depends on a frame, but also gives a state or has an axis of unknown size")
        if not predicted or len(predicted) == len(self._hidden):
            what = "labels before" if not predicted else "a frame"
            raise ExportError("%s: the scores do not depend on %s." % (self._where, what))
        #: What the joiner reads of the predictor.
        self.predicted = predicted
        #: The number of labels on which these depend.
        self.context = self._find_context()

    def _unfit(self, node: Node, text: str) -> ExportError:
        return ExportError(
            "%s: layer %r (class %r) %s. sherpa-onnx has an encoder, a predictor that is given the last labels without "
            "blanks, and a joiner of a frame of the one and a vector of the other."
            % (self._where, node.path, node.layer.class_name, text)
        )

    def _only_for_scores(self) -> list[Node]:
        """Return the layers of the joiner: those that depend on a frame, and that only the scores need."""
        frames = self._of_frames()
        return [node for node in super()._only_for_scores() if node in frames]

    def _of_frames(self) -> set[Node]:
        """Return the layers of a step that depend on its frame."""
        found = {node for _, node in self.parts.slices}
        for node in self.parts.nodes:  # in the order of their computation
            if node not in self.parts.step.choices and any(dep in found for dep in node.deps):
                found.add(node)
        return found

    def _check_frames(self) -> None:
        """Check what a step reads, and what its states depend on."""
        parts, frames = self.parts, self._of_frames()
        if not parts.slices:
            raise ExportError(
                "%s: the steps take no frames. Give the loop the encoder by 'from', and read 'data:source'."
                % self._where
            )
        if parts.ending.end is not None:
            raise self._unfit(parts.ending.end, "ends the loop before the last frame")
        for node in self.packing.nodes:
            if all(node is not outer for outer, _ in parts.slices):
                raise self._unfit(node, "is read as a whole in each step")
        for state in parts.states:
            node = state.key[0] if state.of is None else state.of
            if node in frames:
                raise self._unfit(node, "has a state that depends on frames")
        if parts.reads_index:
            raise ExportError("%s: a layer reads ':i', the index of the frame, which no part is given." % self._where)

    # --- what depends on which labels ---

    def _find_context(self) -> int:
        """Return on how many labels the predictor depends, found by what different histories give.

        :raises ConfigError: on more than `MOST_CONTEXT`, or on blanks
        """
        rng = np.random.RandomState(1)
        labels = [label for label in range(self.labels) if label != self.blank]
        go_on = self._compiled()
        recent = rng.choice(labels, [MOST_CONTEXT, _HISTORIES]).astype("int32")
        ends: list[list[Mapping[str, Any]]] = []
        # the same last labels after others
        for history in range(2):
            older = np.random.RandomState(history).choice(labels, [MOST_CONTEXT, _HISTORIES]).astype("int32")
            states, values = go_on(older[0], None), []
            for row in older[1:]:
                states = go_on(row, states)
            for row in recent:
                states = go_on(row, states)
                values.append(states)
            ends.append(values)
        context = next((k for k, pair in enumerate(zip(*ends), 1) if not self._differing(*pair)), None)
        if context is None:
            raise self._unfit(
                self._differing(ends[0][-1], ends[1][-1])[0],
                "depends on more than the last %d labels, which is the most; e.g. as it is recurrent" % MOST_CONTEXT,
            )
        after = go_on(np.full([_HISTORIES], self.blank, "int32"), ends[0][-1])
        changed = self._differing(ends[0][-1], after)
        if changed:
            raise self._unfit(changed[0], "changes after a blank. Compute it by 'masked_computation' where labels are")
        return context

    def _compiled(self) -> Any:
        """Return a function of labels and states (None: the first ones) that returns the states after the labels."""
        first = tf.function(lambda count: self.initial(*self._no_frames(count)), autograph=False)
        rest = tf.function(
            lambda label, states: self.after(label, states, *self._no_frames(tf.shape(label)[0])),
            input_signature=[tf.TensorSpec([None], tf.int32), self.specs], autograph=False,
        )  # fmt: skip

        def go_on(label: NDArray[Any], states: Any) -> Any:
            return rest(tf.constant(label), first(tf.constant(len(label))) if states is None else states)

        return go_on

    def _no_frames(self, count: Any) -> tuple[Any, Any]:
        """Return a frame of zeros for each sequence, for what does not depend on it."""
        return tf.zeros(tf.stack([count, 1, self.packing.width])), tf.ones([count], tf.int32)

    def _differing(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Node]:
        """Return what the joiner reads of the predictor that differs."""
        names = {node: self._hidden_name(node) for node in self.predicted}
        return [node for node, name in names.items() if not np.array_equal(one[name], other[name])]

    # --- the parts ---

    def predict(self, labels: Any) -> Any:
        """Emit what the joiner gets of the predictor, [batch, size], given the last labels; blanks are none.

        :param labels: int32 [batch, context]
        """
        frames = self._no_frames(tf.shape(labels)[0])
        states = self.initial(*frames)
        for place in range(self.context):
            states = self.after(labels[:, place], states, *frames)
        return _side_by_side(states[self._hidden_name(node)] for node in self.predicted)

    def join(self, frame: Any, predicted: Any) -> Any:
        """Emit the log probabilities of all labels, [batch, labels].

        :param frame: [batch, size], of `packing`
        :param predicted: [batch, size], of `predict`
        """
        inner = {outer: node for node, outer in self._slices.items()}
        states: dict[str, Any] = {}
        for value, nodes in ((frame, [inner[outer] for outer in self.packing.nodes]), (predicted, self.predicted)):
            start = 0
            for node in nodes:
                states[self._hidden_name(node)] = _cut(value, start, node)
                start += _size(node)
        return self.scores(states)

    @property
    def predicted_size(self) -> int:
        """Return the size of what `predict` gives."""
        return sum(map(_size, self.predicted))


def _size(node: Node) -> int:
    """Return the number of values of a layer for a label or a frame."""
    sizes = [dim.size or 0 for dim in node.output.dims if not dim.is_batch and not dim.is_dynamic()]
    return int(np.prod(sizes, dtype="int64"))


def _cut(value: Any, start: int, node: Node) -> Any:
    """Return the values of a layer of a step, [batch, ...], of those side by side."""
    size = _size(node)
    shape: Sequence[int] = [dim.size or 0 for dim in node.output.dims[1:]]
    return tf.reshape(value[:, start : start + size], [-1, *shape])


def _side_by_side(values: Iterable[Any]) -> Any:
    """Return values [batch, ...] as one, [batch, size]."""
    parts = [tf.reshape(x, [tf.shape(x)[0], int(np.prod(x.shape[1:], dtype="int64"))]) for x in values]
    return tf.concat(parts, axis=1) if len(parts) > 1 else parts[0]
