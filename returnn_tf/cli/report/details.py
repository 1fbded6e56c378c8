"""Sections of a report about what the network does: the worst sequences, alignments, confusions, its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.report.drawings import draw_attention, draw_confusion, draw_ctc
from returnn_tf.cli.report.model import Model, SeqReport
from returnn_tf.cli.report.page import Section, figure, heading, wide
from returnn_tf.engine.search.labels import Labels, labels_of
from returnn_tf.engine.search.report import Errors, align
from returnn_tf.graph.loss import LossNode
from returnn_tf.layers.losses.ctc import CtcLoss
from returnn_tf.layers.math.spatial_softmax import SoftmaxOverSpatialLayer
from returnn_tf.layers.sequence.alignments import best_alignment
from returnn_tf.ops.sequence.fast_bw import ctc_topology
from returnn_tf.util.html import folded, paragraph, shortened, table
from returnn_tf.util.lazy_tf import tf

_MOST_CLASSES = 40  # of a matrix; with more, the most frequent confusions are listed
_LISTED = 20
_WORST = 15
_FRAMES = ("T", "F")  # axes of an output that has a distribution for each frame or label


def ctc_losses(model: Model) -> list[LossNode]:
    """Return the losses whose outputs have an alignment."""
    return [loss for loss in model.net.plan.losses if isinstance(loss.loss, CtcLoss)]


def frame_losses(model: Model) -> list[LossNode]:
    """Return the losses with a distribution over classes for each frame of a target with labels."""
    inner = model.net.plan.layers  # a loss of a layer in a loop is on what the loop hands out
    return [
        loss
        for loss in model.net.plan.losses
        if not loss.loss.has_blank and loss.target is not None and loss.target.output.sparse
        if inner.get(loss.owner.path, loss.owner).layer.normalizes_features
    ]


def worst(model: Model, found: Sequence[SeqReport]) -> Section:
    """Return the sequences with the highest losses."""
    names = list(dict.fromkeys(name for each in found for name in each.losses))
    errors = list(dict.fromkeys(name for each in found for name in each.errors))
    rows = []
    for each in sorted(found, key=lambda one: -one.badness)[:_WORST]:
        numbers = ["%.4g" % each.losses[name] if name in each.losses else "" for name in names]
        numbers += ["%.4g" % each.errors[name] if name in each.errors else "" for name in errors]
        texts = [shortened(text, 120) for text in _texts(model, each)]
        rows.append([each.tag, each.frames, *numbers, *texts])
    header = ["sequence", "frames", *("loss %s" % name for name in names), *("error %s" % name for name in errors)]
    header += [part for loss in ctc_losses(model) for part in ("reference", "best labels of %s" % loss.name)]
    numbers_at = range(1, 2 + len(names) + len(errors))
    note = "Of %d sequences of %r, evaluated one by one without dropout; losses and errors as in the scores."
    return Section(
        "Worst sequences", paragraph(note % (len(found), model.data)) + wide(table(header, rows, numbers=numbers_at))
    )


def _texts(model: Model, each: SeqReport) -> list[str]:
    parts: list[str] = []
    for loss in ctc_losses(model):
        decoded = _decoded(model, loss, each)
        names = target_labels(model, loss)
        reference = _reference(loss, each)
        parts += ["" if reference is None else names.text(reference), "" if decoded is None else names.text(decoded)]
    return parts


def examples(model: Model, found: Sequence[SeqReport], count: int) -> Optional[Section]:
    """Return alignments and attention weights of the worst, a typical and the best sequence, and more in between."""
    ranked = sorted(found, key=lambda one: -one.badness)
    places = np.unique(np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int))
    body = ""
    for place in places:
        each = ranked[place]
        pictures = [_draw_ctc(model, loss, each) for loss in ctc_losses(model)]
        pictures += [_draw_attention(model, path, each) for path in model.attention]
        rank = (
            "worst"
            if place == 0
            else "best"
            if place == len(ranked) - 1
            else "rank %d of %d" % (place + 1, len(ranked))
        )
        drawn = "".join(figure(svg) for svg in pictures if svg)
        if drawn:
            title = "%s (%s, loss %.4g, %d frames)" % (each.tag, rank, each.badness, each.frames)
            body += heading(title) + drawn
    inner = [node for node in model.net.plan.visible_nodes() if node.layer.has_inner_weights]
    if inner:
        classes = ", ".join(sorted({node.layer.class_name for node in inner}))
        paths = shortened(", ".join(node.path for node in inner), 400)
        text = "Weights that are not drawn, because layers of class %s compute them inside and give out the result: %s"
        body += paragraph(text % (classes, paths))
    return Section("Alignments and attention" if model.attention or inner else "Alignments", body) if body else None


def _draw_attention(model: Model, path: str, each: SeqReport) -> str:
    if path not in each.values:
        return ""
    value, axes = each.values[path]
    dynamic = [axis for axis, kind in enumerate(axes) if kind == "T"]
    if len(dynamic) != 2 or not value.size:
        return ""
    others = tuple(axis for axis in range(value.ndim) if axis not in dynamic)
    weights = value.mean(axis=others) if others else value
    layer = model.net.plan.by_path()[path].layer
    if isinstance(layer, SoftmaxOverSpatialLayer) and layer.log_space:
        weights = np.exp(weights)
    heads = int(np.prod([value.shape[axis] for axis in others])) if others else 1
    title = path if heads == 1 else "%s, mean of %d heads" % (path, heads)
    return draw_attention(weights, _labels_of_steps(model, each, len(weights)), title)


def _labels_of_steps(model: Model, each: SeqReport, steps: int) -> Optional[list[str]]:
    """Return the labels of a reference with as many labels as a loop has steps; None if there is none."""
    for loss in frame_losses(model):
        reference = _reference(loss, each)
        if reference is not None and len(reference) == steps:
            labels = target_labels(model, loss)
            return [labels.text([label]) for label in reference]
    return None


def _draw_ctc(model: Model, loss: LossNode, each: SeqReport) -> str:
    probs = _probs(loss, each)
    reference = _reference(loss, each)
    if probs is None or reference is None or not probs.size:
        return ""
    blank = _blank(loss, probs)
    shifted = _with_blank(reference, blank)
    lens = tf.constant([len(reference)], tf.int32)
    topology = ctc_topology(tf.constant(shifted[None], tf.int32), lens, blank)
    scores = tf.math.log(tf.constant(probs[:, None, :], tf.float32) + 1e-30)
    aligned, score = best_alignment(scores, tf.constant([len(probs)], tf.int32), topology)
    path = np.asarray(aligned)[:, 0] if np.isfinite(float(np.asarray(score)[0])) else np.zeros(0, int)
    labels = target_labels(model, loss)
    names = ["(blank)" if c == blank else labels.text([c - (c > blank)]) for c in range(probs.shape[1])]
    return draw_ctc(probs, path, names, blank, loss.name)


def confusion(model: Model, found: Sequence[SeqReport]) -> Optional[Section]:
    """Return what was taken for what: classes of frames or labels, and edits of decoded sequences."""
    body = ""
    for loss in frame_losses(model):
        body += _confused_classes(model, loss, found)
    for loss in ctc_losses(model):
        body += _edits(model, loss, found)
    return Section("Confusion", body) if body else None


def _confused_classes(model: Model, loss: LossNode, found: Sequence[SeqReport]) -> str:
    counts: Counter[tuple[int, int]] = Counter()
    for each in found:
        probs, reference = _probs(loss, each), _reference(loss, each)
        if probs is not None and reference is not None and len(probs) == len(reference):
            counts.update(zip(map(int, reference), map(int, probs.argmax(axis=1))))
    if not counts:
        return ""
    total, wrong = sum(counts.values()), sum(n for (a, b), n in counts.items() if a != b)
    in_loop = "/" in loss.owner.path
    note = "%d of %d wrong (%.2f %%)%s" % (
        wrong, total, 100.0 * wrong / total, "; each step sees the reference as its history" if in_loop else ""
    )  # fmt: skip
    labels = target_labels(model, loss)
    used = sorted({label for pair in counts for label in pair})
    body = heading("Classes of %s" % loss.name) + paragraph(note)
    if len(used) <= _MOST_CLASSES:
        matrix = np.array([[counts[a, b] for b in used] for a in used])
        body += figure(draw_confusion(matrix, [labels.text([label]) for label in used]))
    rows = [(labels.text([a]), labels.text([b]), n) for (a, b), n in counts.most_common() if a != b][:_LISTED]
    listed = wide(table(("reference", "output", "count"), rows, numbers=[2]))
    return body + (folded("the most frequent ones", listed) if len(used) <= _MOST_CLASSES else listed)


def _edits(model: Model, loss: LossNode, found: Sequence[SeqReport]) -> str:
    errors = Errors()
    counts: Counter[tuple[Optional[str], Optional[str]]] = Counter()
    labels = target_labels(model, loss)
    for each in found:
        decoded, reference = _decoded(model, loss, each), _reference(loss, each)
        if decoded is not None and reference is not None:
            pairs = align([labels.text([c]) for c in reference], [labels.text([c]) for c in decoded])
            errors.add(pairs)
            counts.update(pair for pair in pairs if pair[0] != pair[1])
    if not errors.reference:
        return ""
    rows = [
        ("insertion" if a is None else "deletion" if b is None else "substitution", a or "", b or "", n)
        for (a, b), n in counts.most_common(_LISTED)
    ]
    text = "Best class of each frame, without repetitions and blanks: label errors %s" % errors.text()
    found_table = wide(table(("edit", "reference", "output", "count"), rows, numbers=[3])) if rows else ""
    return heading("Edits of %s" % loss.name) + paragraph(text) + found_table


def network(model: Model) -> Section:
    """Return the table of layers, and the drawing."""
    plan = model.net.plan
    drawing = figure(plan.svg(), "Blue: inputs; green: layers with a loss; dashed: loops and subnetworks.")
    return Section("Network", wide(plan.table_html()) + folded("drawing", wide(drawing), opened=True))


def target_labels(model: Model, loss: LossNode) -> Labels:
    """Return the names of the labels of a target."""
    assert loss.target is not None
    return labels_of(loss.target.output, model.dataset, model.net.extern_data, loss.target.extern_key)


def _probs(loss: LossNode, each: SeqReport) -> Optional[NDArray[Any]]:
    """Return the output [frames, classes]; None if it has other axes."""
    value, axes = each.values.get(loss.owner.path, (None, ()))
    return value if value is not None and axes == _FRAMES else None


def _reference(loss: LossNode, each: SeqReport) -> Optional[NDArray[Any]]:
    """Return the labels of the target; None if it is no sequence of them."""
    assert loss.target is not None
    key = loss.target.extern_key
    value = each.feed.get(key) if key is not None else each.values.get(loss.target.path, (None, ()))[0]
    return value if value is not None and value.ndim == 1 else None


def _blank(loss: LossNode, probs: NDArray[Any]) -> int:
    options = getattr(loss.loss, "ctc_opts", None) or {}
    return int(options.get("blank_index", -1)) % probs.shape[1]


def _with_blank(labels: NDArray[Any], blank: int) -> NDArray[Any]:
    """Return labels as classes of an output in which the blank takes a place among them."""
    return labels + (labels >= blank)


def _decoded(model: Model, loss: LossNode, each: SeqReport) -> Optional[NDArray[Any]]:
    """Return the labels of the best class of each frame."""
    probs = _probs(loss, each)
    if probs is None:
        return None
    blank, best = _blank(loss, probs), probs.argmax(axis=1)
    kept = best[np.concatenate([[True], best[1:] != best[:-1]])] if len(best) else best
    kept = kept[kept != blank]
    labels: NDArray[Any] = kept - (kept > blank)
    return labels
