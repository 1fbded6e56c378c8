"""The section of a report about single sequences: alignments and attention."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.report.drawings import Map, draw_attention, draw_ctc, draw_maps, scale_of
from returnn_tf.cli.report.losses import (
    blank_of,
    ctc_losses,
    frame_losses,
    probs_of,
    reference_of,
    target_labels,
    with_blank,
)
from returnn_tf.cli.report.model import Model, SeqReport
from returnn_tf.cli.report.page import Section, figure, heading, tiles
from returnn_tf.cli.report.weights import MOST_HEAD_PIXELS, MOST_PIXELS, SeqWeights, WeightsFunction, WeightsLayer
from returnn_tf.cli.report.words import words_or_reason
from returnn_tf.config import Config
from returnn_tf.engine.search.labels import labels_of
from returnn_tf.graph.loss import LossNode
from returnn_tf.ops.sequence.alignments import best_alignment
from returnn_tf.ops.sequence.fast_bw import ctc_topology
from returnn_tf.tensor import Dim
from returnn_tf.util.html import Html, folded, paragraph, shortened
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.png import grey_png

_MOST_LAYERS = 12  # of each kind
_MOST_HEADS = 16  # of a layer
_WITH_HEADS = 3  # sequences whose heads are drawn
_LARGE = 2  # maximum number of layers that are drawn separately
_SHADES = 32

_HOW_TO_READ = (
    "A row is a query, a column a key: the darker, the more weight. In drawings of several layers and of single heads, "
    "black is the median of the highest weights of the rows, or more. The number of keys of a head is how many "
    "it attends to on average over the queries: the exponential of the entropy of its weights. It is 1 if each query "
    "puts all its weight on one key."
)


def examples(model: Model, found: Sequence[SeqReport], count: int, config: Config) -> Optional[Section]:
    """Return words, alignments and attention of the worst, a typical and the best sequence, and more in between.

    :param config: of the model, to search with it
    """
    ranked = sorted(found, key=lambda one: -one.badness)
    places = np.unique(np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int))
    drawn = {kind: _spread([x for x in model.attention if x.of_itself == kind]) for kind in (False, True)}
    weights = WeightsFunction(model.net, [*drawn[False], *drawn[True]]) if model.attention else None
    words, note = words_or_reason(config, model)
    body = ""
    for number, place in enumerate(places):
        each = ranked[place]
        parts = [] if words is None else [each_figure for each_figure in [words.figure(each)] if each_figure]
        parts += [figure(svg) for svg in (_ctc(model, loss, each) for loss in ctc_losses(model)) if svg]
        if weights is not None:
            model.net.begin_pass()
            parts += _attention(model, each, weights.run(each.batch), with_heads=number < _WITH_HEADS)
        if parts:
            rank = "rank %d of %d" % (place + 1, len(ranked))
            rank = "worst" if place == 0 else "best" if place == len(ranked) - 1 else rank
            title = "%s (%s, loss %.4g, %d frames)" % (each.tag, rank, each.badness, each.frames)
            body += heading(title) + "".join(parts)
    if body and model.attention:
        body = paragraph(_HOW_TO_READ) + _limits(model, drawn, len(places)) + body
    body += note if body else ""
    for reason in dict.fromkeys(model.hidden.values()):
        paths = ", ".join(path for path, why in model.hidden.items() if why == reason)
        body += paragraph("Weights of %s are not drawn: %s." % (shortened(paths, 400), reason))
    title = "Words, alignments and attention" if model.attention or model.hidden else "Words and alignments"
    return Section(title, body) if body else None


def _spread(layers: Sequence[WeightsLayer]) -> list[WeightsLayer]:
    """Return the layers that are drawn, with the first and the last."""
    chosen = np.linspace(0, len(layers) - 1, min(len(layers), _MOST_LAYERS)).round().astype(int)
    return [layers[place] for place in np.unique(chosen)]


def _limits(model: Model, drawn: dict[bool, list[WeightsLayer]], sequences: int) -> str:
    """Return a note on the layers, heads and states that are left out."""
    left_out = len(model.attention) - sum(map(len, drawn.values()))
    texts = []
    if left_out:
        texts.append(
            "%d of %d layers are drawn, evenly spread." % (len(model.attention) - left_out, len(model.attention))
        )
    if any(_heads(layer) > _MOST_HEADS for layer in model.attention):
        texts.append("The first %d heads of a layer are drawn." % _MOST_HEADS)
    if sequences > _WITH_HEADS and any(_heads(layer) > 1 for layer in model.attention):
        texts.append("Single heads are drawn for the first %d sequences." % _WITH_HEADS)
    if any(node.kept for node in model.net.plan.all_nodes()):
        texts.append("What layers keep from sequence to sequence is empty here.")
    return paragraph(" ".join(texts)) if texts else ""


def _heads(layer: WeightsLayer) -> int:
    return math.prod(layer.template.dims[axis].size or 1 for axis in layer.head_axes)


def _attention(model: Model, each: SeqReport, found: Sequence[SeqWeights], *, with_heads: bool) -> Iterator[Html]:
    """Yield drawings of the mean of the heads, and folded ones of the heads."""
    large = [weights for weights in found if not weights.mean.size]
    for size in dict.fromkeys(weights.size for weights in large):
        paths = ", ".join(weights.layer.path for weights in large if weights.size == size)
        yield paragraph("Too many weights to draw, %d queries and %d keys: %s" % (*size, shortened(paths, 400)))
    for of_itself in (False, True):
        group = [weights for weights in found if weights.layer.of_itself == of_itself and weights.mean.size]
        maps = [Map(_title(weights), weights.mean, weights.size, *_names(model, each, weights)) for weights in group]
        if not of_itself and len(group) <= _LARGE:
            yield from (figure(draw_attention(each_map), _note(weights)) for each_map, weights in zip(maps, group))
        elif group:
            yield figure(draw_maps(maps), _note(*group))
        several = [weights for weights in group if len(weights.heads) > 1]
        if with_heads and several:
            names = shortened(", ".join(weights.layer.path for weights in several), 160)
            yield folded("heads of %s" % names, "".join(_tiles(weights) for weights in several))


def _title(weights: SeqWeights) -> str:
    count = len(weights.heads)
    return weights.layer.path if count == 1 else "%s, mean of %d heads" % (weights.layer.path, count)


def _note(*found: SeqWeights) -> str:
    """Return the caption of drawings in which pixels are means."""
    largest = max(max(weights.size) for weights in found)
    return "Means of %d neighbours on an axis." % -(-largest // MOST_PIXELS) if largest > MOST_PIXELS else ""


def _tiles(weights: SeqWeights) -> Html:
    """Return small pictures of the heads."""
    queries, keys = weights.size
    title = "%s: %d queries, %d keys" % (weights.layer.path, queries, keys)
    if max(queries, keys) > MOST_HEAD_PIXELS:
        title += ", means of up to %d neighbours on an axis" % -(-max(queries, keys) // MOST_HEAD_PIXELS)
    pictures = [
        (_data_url(head), "head %d: %.3g keys" % (number + 1, weights.keys[number]))
        for number, head in enumerate(weights.heads[:_MOST_HEADS])
    ]
    return Html(paragraph(title) + tiles(pictures, min(max(queries / keys, 0.3), 1.0)))


def _data_url(weights: NDArray[Any]) -> str:
    """Return a picture: white is 0."""
    shades = np.clip(weights / scale_of(weights), 0, 1) * (_SHADES - 1)
    pixels = 255 - np.round(shades) * (255 / (_SHADES - 1))
    return "data:image/png;base64," + base64.b64encode(grey_png(pixels.round().astype(np.uint8))).decode("ascii")


def _names(
    model: Model, each: SeqReport, weights: SeqWeights
) -> tuple[Optional[Sequence[str]], Optional[Sequence[str]]]:
    """Return the names of queries and keys; None where they have none."""
    layer = weights.layer
    queries = None if layer.queries is None else _labels_along(model, each, layer.template.dims[layer.queries])
    if queries is None and not layer.of_itself:
        queries = _labels_of_steps(model, each, weights.size[0])
    return queries, _labels_along(model, each, layer.template.dims[-1])


def _labels_along(model: Model, each: SeqReport, dim: Dim) -> Optional[list[str]]:
    """Return the labels of the data whose frames a dim counts."""
    for key, data in model.net.extern_data.items():
        if data.sparse and data.rank == 2 and dim in data.dims and key in each.feed:
            labels = labels_of(data, model.dataset, model.net.extern_data, key)
            return [labels.text([label]) for label in each.feed[key]]
    return None


def _labels_of_steps(model: Model, each: SeqReport, steps: int) -> Optional[list[str]]:
    """Return the labels of the first reference that has a label per step of a loop, or None."""
    for loss in frame_losses(model):
        reference = reference_of(loss, each)
        if reference is not None and len(reference) == steps:
            labels = target_labels(model, loss)
            return [labels.text([label]) for label in reference]
    return None


def _ctc(model: Model, loss: LossNode, each: SeqReport) -> str:
    probs = probs_of(loss, each)
    reference = reference_of(loss, each)
    if probs is None or reference is None or not probs.size:
        return ""
    blank = blank_of(loss, probs)
    shifted = with_blank(reference, blank)
    lens = tf.constant([len(reference)], tf.int32)
    topology = ctc_topology(tf.constant(shifted[None], tf.int32), lens, blank)
    scores = tf.math.log(tf.constant(probs[:, None, :], tf.float32) + 1e-30)
    aligned, score = best_alignment(scores, tf.constant([len(probs)], tf.int32), topology)
    path = np.asarray(aligned)[:, 0] if np.isfinite(float(np.asarray(score)[0])) else np.zeros(0, int)
    labels = target_labels(model, loss)
    names = ["(blank)" if c == blank else labels.text([c - (c > blank)]) for c in range(probs.shape[1])]
    return draw_ctc(probs, path, names, blank, loss.name)
