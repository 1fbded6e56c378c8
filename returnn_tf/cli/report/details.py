"""Sections of a report about what the network does: the worst sequences, confusions, its layers."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.cli.report.drawings import draw_confusion
from returnn_tf.cli.report.losses import (
    best_of,
    ctc_losses,
    decoded_of,
    frame_losses,
    probs_of,
    reference_of,
    sees_reference,
    target_labels,
)
from returnn_tf.cli.report.model import Model, SeqReport
from returnn_tf.cli.report.page import Section, figure, heading, wide
from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.transcripts.edit_distance import Errors, align
from returnn_tf.graph.loss import LossNode
from returnn_tf.util.html import folded, paragraph, shortened, table

_MOST_CLASSES = 40  # of a matrix; with more, the most frequent confusions are listed
_LISTED = 20
_WORST = 15
_WITHOUT_ERRORS = 3  # sequences that are listed if none has errors


def worst(model: Model, found: Sequence[SeqReport]) -> Section:
    """Return the sequences with the highest losses: those with errors, if there are any."""
    names = list(dict.fromkeys(name for each in found for name in each.losses))
    errors = list(dict.fromkeys(name for each in found for name in each.errors))
    texts = _texts(model)
    rows = []
    ranked = sorted(found, key=lambda one: -one.badness)
    wrong = [each for each in ranked if any(each.errors.values())]
    if errors:
        ranked = wrong or ranked[:_WITHOUT_ERRORS]
    for each in ranked[:_WORST]:
        numbers = ["%.4g" % each.losses[name] if name in each.losses else "" for name in names]
        numbers += ["%.4g" % each.errors[name] if name in each.errors else "" for name in errors]
        rows.append([each.tag, each.frames, *numbers, *(shortened(text_of(each), 120) for _, text_of in texts)])
    header = ["sequence", "frames", *("loss %s" % name for name in names), *("error %s" % name for name in errors)]
    header += [title for title, _ in texts]
    numbers_at = range(1, 2 + len(names) + len(errors))
    note = "Of %d sequences of %r, evaluated one by one without dropout; losses and errors as in the scores."
    note += " %d have errors." % len(wrong) if errors else ""
    body = wide(table(header, rows, numbers=numbers_at), texts=True)
    return Section("Worst sequences", paragraph(note % (len(found), model.data)) + body)


def _texts(model: Model) -> list[tuple[str, Callable[[SeqReport], str]]]:
    """Return columns with texts, (title, sequence -> text): each reference once, and the best labels of each loss."""
    losses = [(loss, "best labels of %s", decoded_of) for loss in ctc_losses(model)]
    for loss in frame_losses(model):
        if sees_reference(model, loss):
            losses.append((loss, "best labels of %s after the reference", best_of))
        elif target_labels(model, loss).names is not None:
            losses.append((loss, "best labels of %s", best_of))
    several = len({loss.target for loss, _, _ in losses}) > 1
    columns: dict[Any, tuple[str, Callable[[SeqReport], str]]] = {}
    for loss, title, labels_of_seq in losses:
        text = functools.partial(_text, target_labels(model, loss))
        assert loss.target is not None
        reference = "reference %s" % (loss.target.extern_key or loss.target.path) if several else "reference"
        columns.setdefault(loss.target, (reference, functools.partial(text, functools.partial(reference_of, loss))))
        columns[loss] = title % loss.name, functools.partial(text, functools.partial(labels_of_seq, loss))
    return list(columns.values())


def _text(names: Labels, labels_of_seq: Callable[[SeqReport], Any], each: SeqReport) -> str:
    labels = labels_of_seq(each)
    return "" if labels is None else names.text(labels)


def confusion(model: Model, found: Sequence[SeqReport]) -> Optional[Section]:
    """Return the confusions of classes of frames or labels, and the edits of decoded sequences."""
    body = ""
    for loss in frame_losses(model):
        body += _confused_classes(model, loss, found)
    for loss in ctc_losses(model):
        body += _edits(model, loss, found)
    return Section("Confusion", body) if body else None


def _confused_classes(model: Model, loss: LossNode, found: Sequence[SeqReport]) -> str:
    counts: Counter[tuple[int, int]] = Counter()
    for each in found:
        probs, reference = probs_of(loss, each), reference_of(loss, each)
        if probs is not None and reference is not None and len(probs) == len(reference):
            counts.update(zip(map(int, reference), map(int, probs.argmax(axis=1))))
    if not counts:
        return ""
    total, wrong = sum(counts.values()), sum(n for (a, b), n in counts.items() if a != b)
    history = "; each step sees the reference as its history" if sees_reference(model, loss) else ""
    note = "%d of %d wrong (%.2f %%)%s" % (wrong, total, 100.0 * wrong / total, history)
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
        decoded, reference = decoded_of(loss, each), reference_of(loss, each)
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
