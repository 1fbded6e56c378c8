"""Alignment of references and hypotheses."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from returnn_tf.engine.search.errors import Decided, ErrorReport
from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.searcher import SearchedLabels
from returnn_tf.engine.transcripts import edit_distance
from returnn_tf.engine.transcripts.edit_distance import Errors, align, table


@pytest.mark.parametrize(
    "reference, hypothesis, counts",
    [
        ("", "", (0, 0, 0)),
        ("ab", "", (0, 2, 0)),
        ("", "ab", (0, 0, 2)),
        ("abc", "axc", (1, 0, 0)),
        ("abcd", "bcde", (0, 1, 1)),
    ],
)
def test_kinds_of_errors(reference: str, hypothesis: str, counts: object) -> None:
    errors = Errors()
    errors.add(align(reference, hypothesis))
    assert (errors.substitutions, errors.deletions, errors.insertions) == counts
    assert errors.reference == len(reference)


@functools.cache
def fewest_errors(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    skipped = 1 + min(fewest_errors(a[1:], b), fewest_errors(a, b[1:]))
    return min(skipped, (a[0] != b[0]) + fewest_errors(a[1:], b[1:]))


@pytest.mark.parametrize("width", [1, 16])
def test_an_alignment_is_whole_and_has_the_fewest_errors(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_distance, "_LEAST_WIDTH", width)
    rng = np.random.default_rng(1)
    for _ in range(200):
        ref, hyp = ("".join(rng.choice(list("abc"), rng.integers(0, 9))) for _ in range(2))
        pairs = align(ref, hyp)
        assert "".join(a for a, _ in pairs if a is not None) == ref
        assert "".join(b for _, b in pairs if b is not None) == hyp
        errors = Errors()
        errors.add(pairs)
        assert errors.total == fewest_errors(ref, hyp)


def test_sequences_that_are_long_and_similar() -> None:
    """Memory follows their length and the errors: a whole table of these would have 400 MB."""
    rng = np.random.default_rng(2)
    ref = rng.choice(list("abcdefgh"), 10_000).tolist()
    hyp = [*ref[:7], "x", *ref[7:4_000], *ref[4_020:8_000], "y", *ref[8_001:]]
    errors = Errors()
    errors.add(align(ref, hyp))
    assert (errors.insertions, errors.deletions, errors.substitutions) == (1, 20, 1)


def test_table() -> None:
    text = table("seq-1", align(["one", "two"], ["one", "three", "two"]))
    assert text.splitlines() == ["seq-1", "  ref: one *     two", "  hyp: one three two", "           ^"]


def test_the_reports_of_several_processes_are_added() -> None:
    """With the references whose end label is left out."""
    decided = Decided("decision", "decision", None, {}, frozenset([0]))  # type: ignore[arg-type]
    labels = Labels(["end", "a", "b"], " ")
    reports = [ErrorReport(decided, labels) for _ in range(3)]
    for index, (report, reference) in enumerate(zip(reports, ([1, 2, 0], [2, 0], [1, 1]))):
        batch = SimpleNamespace(seq_indices=[index], seq_tags=["seq-%d" % index])
        report.add(batch, [[SearchedLabels(np.array([1, 2]))]], [np.array(reference)])
    total = ErrorReport(decided, labels)
    total.merge([report.state() for report in reports])
    assert total.lines() == ["decision: label errors 40.00% (2 of 5: 1 substitutions, 0 deletions, 1 insertions)"]
    assert total.remark() == "decision: the end label 0 (end) of 2 references does not count"
    assert [text.splitlines()[0] for text in total.tables()] == ["seq-1", "seq-2"]
    assert reports[2].remark() == ""
