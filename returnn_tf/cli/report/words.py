"""The words of single sequences on their spectrograms: what a search finds, with times and confidence."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.report.drawings import WordRow, draw_words
from returnn_tf.cli.report.losses import blank_of, ctc_losses, probs_of, reference_of, target_labels
from returnn_tf.cli.report.model import Model, SeqReport
from returnn_tf.cli.report.page import figure
from returnn_tf.cli.shared.network_changes import change_networks
from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError, DataError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.audio.frame_seconds import frame_seconds
from returnn_tf.engine.search.errors import decided_layers
from returnn_tf.engine.search.labels import labels_of
from returnn_tf.engine.search.searcher import Searcher
from returnn_tf.engine.search.times import frames_of_ctc, input_frames
from returnn_tf.engine.search.transcriber import Transcriber
from returnn_tf.engine.search.transcript_graph import TranscriptGraph, TranscriptOptions, wanted_layers
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.engine.transcripts.timed import timed_labels
from returnn_tf.engine.transcripts.transcript import Piece
from returnn_tf.engine.transcripts.words import words_of
from returnn_tf.graph.loss import LossNode
from returnn_tf.layers.losses.ctc import CtcLoss
from returnn_tf.tasks.search import output_layers, search_plan
from returnn_tf.util.html import Html, paragraph

_ADDED = "best path of CTC"  # a layer, for a network with CTC and without search


class WordFigures:
    """Draws the words that a search finds in a sequence.

    :param config: of the network; changed if it has to be to search
    :param model: the same network, planned for evaluation
    :raises ConfigError: it can't search, or nothing tells times
    """

    def __init__(self, config: Config, model: Model) -> None:
        self._model = model
        path = _layer(config, model)
        settings = TaskSettings(config)
        options = TranscriptOptions.of(settings)
        wanted = wanted_layers(search_plan(config), path, options)
        self._net, _ = load_network(config, search=True, losses=False, outputs=[path, *wanted])
        graph = TranscriptGraph(self._net.plan, path, options)
        if graph.times is None:
            raise ConfigError("neither CTC nor attention weights tell when they were said", topic="search")
        if graph.input is None or graph.input.key != "data":
            raise ConfigError("their times are not those of frames of 'data', which are drawn", topic="search")
        self._searcher = Searcher(self._net, [path], with_losses=False, needed=graph.needed, further=graph.emit)
        known = settings.search_frame_seconds or frame_seconds(model.dataset)
        self._seconds = known or 1.0
        self._unit = "s" if known else "frame"
        self._title = "search for %s; times from %s" % (path, graph.times.path)
        target = next(iter(graph.node.layer.target_names or ()), NetworkSettings(config).target)
        labels = labels_of(graph.node.output, model.dataset, self._net.extern_data, target)
        self._transcriber = Transcriber(graph, labels, self._seconds)

    def figure(self, each: SeqReport) -> Html:
        """Return the drawing of a sequence; "" if its data can't be drawn."""
        features = drawable(each.feed.get("data"), self._model.dataset)
        missing = [key for key in self._searcher.used_data_keys if key not in each.batch]
        if features is None or missing:
            return Html("")
        self._net.begin_pass()
        result = self._searcher.run(self._searcher.tensors(each.batch))
        frames = self._transcriber.frames_of_batch(each.batch)
        (transcript,) = self._transcriber.transcripts([each.tag], result.further, frames)
        rows = [WordRow("words", transcript.best.words), WordRow("labels", transcript.best.labels)]
        rows += [WordRow("reference", pieces) for pieces in self._reference(each)]
        duration = each.feed["data"].shape[0] * self._seconds
        return figure(draw_words(features, rows, duration, self._unit, self._title))

    def _reference(self, each: SeqReport) -> Iterator[Sequence[Piece]]:
        """Yield the words of the reference by the first output of CTC."""
        for loss in ctc_losses(self._model)[:1]:
            found = _aligned(loss, each)
            if found is None:
                return
            reference, frames, size = found
            labels = target_labels(self._model, loss)
            given = each.feed["data"].shape[0]
            step = self._seconds * input_frames(given, size)
            pieces = timed_labels(labels.each(reference), frames, step, given * self._seconds)
            yield words_of(labels.spans(reference), pieces)


def _aligned(loss: LossNode, each: SeqReport) -> Optional[tuple[list[int], Any, int]]:
    """Return labels of the reference, their frames, and the number of frames; None if it does not fit."""
    probs, reference = probs_of(loss, each), reference_of(loss, each)
    if probs is None or reference is None or not probs.size:
        return None
    labels = [int(label) for label in reference]
    (frames,) = frames_of_ctc(np.log(np.maximum(probs, 1e-20)), [labels], blank_of(loss, probs))
    return None if frames is None else (labels, frames, len(probs))


def _layer(config: Config, model: Model) -> str:
    """Return the layer with the hypotheses; one is added to a network that has CTC and does not search."""
    if TaskSettings(config).search_output_layer:
        return output_layers(config)[0]
    decided = decided_layers(search_plan(config))
    if decided:
        return decided[0].layer
    for loss in ctc_losses(model):
        path, target = loss.owner.path, loss.owner.layer.target_names
        if "/" not in path and target:
            added: dict[str, Any] = {"class": "ctc_greedy", "from": path, "target": target[0], "is_output_layer": True}
            assert isinstance(loss.loss, CtcLoss)
            added["blank_index"] = loss.loss.blank
            added["input_type"] = "log_prob" if loss.loss.output_in_log_space else "prob"
            change_networks(config, functools.partial(_with_layer, added))
            return _ADDED
    raise ConfigError("the network does not search: it has neither a decision nor CTC", topic="search")


def _with_layer(added: Mapping[str, Any], network: dict[str, Any]) -> dict[str, Any]:
    return {**network, _ADDED: dict(added)}


def words_or_reason(config: Config, model: Model) -> tuple[Optional[WordFigures], Html]:
    """Return what draws words, and a note if nothing does."""
    try:
        return WordFigures(config, model), Html("")
    except (ConfigError, DataError) as exc:
        return None, paragraph("Words are not drawn: %s" % exc)


def drawable(data: Optional[NDArray[Any]], dataset: Any) -> Optional[NDArray[Any]]:
    """Return features to draw [frames, features], neighbours that were joined one after the other."""
    if data is None or data.ndim != 2 or data.dtype.kind != "f" or data.shape[1] < 2 or not len(data):
        return None
    audio: Any = getattr(dataset.opts, "audio", None)
    joined = int((audio or {}).get("join_frames") or 1)
    return data.reshape(len(data) * joined, -1) if data.shape[1] % joined == 0 else data
