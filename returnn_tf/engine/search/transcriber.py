"""Transcripts of a search: the hypotheses of a beam with times, confidence, and the parts of their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.audio.frame_seconds import frame_seconds
from returnn_tf.engine.search.end_labels import without_end
from returnn_tf.engine.search.labels import Labels, labels_of
from returnn_tf.engine.search.lexicon_words import with_words_of_search
from returnn_tf.engine.search.times import Times, frames_of_attention, frames_of_ctc, input_frames
from returnn_tf.engine.search.transcript_graph import TranscriptGraph
from returnn_tf.engine.transcripts.best_path import Frames, frames_of_path
from returnn_tf.engine.transcripts.confidence import entropy_confidence
from returnn_tf.engine.transcripts.timed import timed_labels
from returnn_tf.engine.transcripts.transcript import Hypothesis, Transcript
from returnn_tf.engine.transcripts.words import words_of


class _Sequence(NamedTuple):
    """What the graph gives for one sequence, its hypotheses best first, without those that have a score of -inf.

    :param labels: of each hypothesis, the label that ends the search included; of the first one in any case
    :param scores: of all in the beam, best first; None without a search
    :param times: value of the layer that tells times, without padding: of each hypothesis, or one for all
    :param sure: confidence of each step of the loop, or of each frame of the path, of each hypothesis
    :param parts: log scores of the labels by step, of each hypothesis
    """

    labels: list[list[int]]
    scores: Optional[NDArray[Any]]
    times: list[NDArray[Any]]
    sure: list[NDArray[Any]]
    parts: dict[str, list[NDArray[Any]]]


class Transcriber:
    """Makes the transcripts of one layer of a network.

    :param graph: whose function ``emit`` the searcher has
    :param labels: of the layer
    :param frame_seconds: seconds between the frames of the input; None: unknown
    """

    def __init__(self, graph: TranscriptGraph, labels: Labels, frame_seconds: Optional[float]) -> None:
        #: The labels, and how they make up words.
        self.labels = with_words_of_search(labels, graph.plan, graph.node)
        #: Seconds between the frames of the input; None: unknown.
        self.frame_seconds = frame_seconds
        self._options = graph.options
        self._ends = graph.ends
        self._times = graph.times
        self._input = graph.input
        #: Sequences whose best hypothesis fits into no alignment: its labels are spread evenly over the audio.
        self.spread: list[str] = []

    @classmethod
    def of(cls, graph: TranscriptGraph, net: Network, dataset: Dataset, target: Optional[str]) -> Transcriber:
        """Return the transcriber for a dataset, by its names of labels and its seconds between frames.

        :param target: data key with names for labels without their own, see `labels_of`
        """
        key = graph.input.key if graph.input is not None else "data"
        seconds = TaskSettings(net.config).search_frame_seconds or frame_seconds(dataset, key)
        output = graph.node.output
        return cls(graph, labels_of(output, dataset, net.extern_data, graph.node.extern_key or target), seconds)

    def transcripts(
        self, tags: Sequence[str], found: Mapping[str, NDArray[Any]], frames: Optional[Sequence[int]]
    ) -> list[Transcript]:
        """Return the transcript of each sequence of a batch.

        :param found: values of what `emit` returned
        :param frames: of the input of each sequence, see `frames_of_batch`; None: there are no times
        """
        result = []
        for row, tag in enumerate(tags):
            own = None if frames is None else int(frames[row])
            result.append(self._transcript(tag, self._of_row(found, row, len(tags)), own))
        return result

    def frames_of_batch(self, feed: Mapping[str, Any]) -> Optional[Sequence[int]]:
        """Return the frames of the input of each sequence of a batch; None if it is not known which data has them."""
        return None if self._input is None else feed.get(self._input.feed_key)

    def _of_row(self, found: Mapping[str, NDArray[Any]], row: int, count: int) -> _Sequence:
        beam = len(found["labels"]) // count
        scores = found["scores"][row] if "scores" in found else None
        order = np.zeros(1, int) if scores is None else np.argsort(-scores, kind="stable")
        possible = 1 if scores is None else max(1, int(np.isfinite(scores).sum()))
        rows = [row * beam + int(entry) for entry in order[:possible]]
        lens = found["lens"]
        times: list[NDArray[Any]] = []
        if "times" in found:
            own = rows if len(found["times"]) == len(found["labels"]) else [row] * len(rows)
            for mine, labels_row in zip(own, rows):
                size, value = int(found["frames"][mine]), found["times"][mine]
                if self._times is not None and self._times.kind is Times.ATTENTION:
                    times.append(value[: lens[labels_row], :size])
                else:
                    times.append(value[:size])
        parts = {name: found["part " + name] for name in self._options.parts}
        return _Sequence(
            [[int(label) for label in found["labels"][each][: lens[each]]] for each in rows],
            None if scores is None else scores[order],
            times,
            [found["sure"][each] for each in rows] if "sure" in found else [],
            {name: [values[each][: found["steps"][each]] for each in rows] for name, values in parts.items()},
        )

    def _transcript(self, tag: str, sequence: _Sequence, input_len: Optional[int]) -> Transcript:
        labels = [list(without_end(each, self._ends)) for each in sequence.labels]
        frames = self._frames(sequence, labels)
        seconds = self._seconds(sequence, input_len)
        step = self.frame_seconds
        duration = None if step is None or input_len is None else input_len * step
        confidence = self._label_confidence(sequence, labels, frames)
        if seconds is not None and frames[0] is None:
            self.spread.append(tag)
        pieces = [
            timed_labels(self.labels.each(own), of_own, seconds, duration, sure)
            for own, of_own, sure in zip(labels, frames, confidence)
        ]
        spans = [self.labels.spans(own) for own in labels]
        words = [words_of(of_own, own) for of_own, own in zip(spans, pieces)]
        if sequence.scores is not None and len(sequence.scores) > 1 and not self._options.confidence.by_entropy:
            scores = [float(score) for score in sequence.scores[: len(labels)]]
            pieces[0] = self._options.confidence.in_beam(pieces, scores)
            words[0] = self._options.confidence.in_beam(words, scores)
        hypotheses = []
        for place, (own, of_words) in enumerate(zip(pieces, words)):
            score = None if sequence.scores is None else float(sequence.scores[place])
            parts = {name: float(values[place].sum()) for name, values in sequence.parts.items()}
            by_label = {
                name: [float(value) for value in values[place]]
                for name, values in sequence.parts.items()
                if len(values[place]) == len(sequence.labels[place])  # else steps without label have scores, too
            }
            of_labels = [(first, past) for _, first, past in spans[place]]
            hypotheses.append(Hypothesis(own, of_words, score, parts, by_label, of_labels))
        return Transcript(tag, tuple(hypotheses), duration)

    def _frames(self, sequence: _Sequence, labels: list[list[int]]) -> list[Optional[Frames]]:
        """Return the frames of the labels of each hypothesis."""
        if self._times is None:
            return [None] * len(labels)
        if self._times.kind is Times.CTC:
            return frames_of_ctc(sequence.times[0], labels, self._times.blank)
        if self._times.kind is Times.ATTENTION:
            return [frames_of_attention(value[: len(own)]) for value, own in zip(sequence.times, labels)]
        return [frames_of_path([int(x) for x in path], own) for path, own in zip(sequence.times, labels)]

    def _seconds(self, sequence: _Sequence, input_len: Optional[int]) -> Optional[float]:
        """Return the seconds of a frame in which times are counted."""
        step = self.frame_seconds
        if self._times is None or step is None or input_len is None:
            return None
        axis = 1 if self._times.kind is Times.ATTENTION else 0
        return step * input_frames(input_len, sequence.times[0].shape[axis])

    def _label_confidence(
        self, sequence: _Sequence, labels: list[list[int]], frames: list[Optional[Frames]]
    ) -> list[Optional[list[float]]]:
        """Return the confidence of the labels of each hypothesis, but for that by the beam."""
        none: list[Optional[list[float]]] = [None] * len(labels)
        is_path = self._times is not None and self._times.kind is Times.PATH
        if sequence.sure:
            found = none
            for place, (values, own, of_own) in enumerate(zip(sequence.sure, labels, frames)):
                if not is_path:
                    found[place] = [float(value) for value in values[: len(own)]]
                elif of_own is not None:
                    lowest = self._options.confidence.by_entropy
                    of_frames = [values[first:past] for first, past in of_own]
                    found[place] = [float(each.min() if lowest else each.max()) for each in of_frames]
            return found
        if self._times is None or self._times.kind is not Times.CTC or len(labels) > 1:
            return none
        (own,), (of_own,) = labels, frames
        if of_own is None:
            return none
        log_probs = sequence.times[0]
        if self._options.confidence.by_entropy:
            by_frame = entropy_confidence(log_probs)
            return [[float(by_frame[first:past].min()) for first, past in of_own]]
        return [[float(np.exp(log_probs[first:past, label].max())) for label, (first, past) in zip(own, of_own)]]
