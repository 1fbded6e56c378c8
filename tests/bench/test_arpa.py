"""The n-gram models that benchmarks make are distributions, and their files can be read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.ops.sequence.ngram_file import read_ngram


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_sum_up_to_1(order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after words that were never seen, and with words that were not."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "bench"), *sys.path])
    import arpa

    texts = ["a b a", "a b c", "b", "c c a b"]
    path = tmp_path / "x.arpa"
    path.write_text("\n".join(arpa.arpa_lines(map(str.split, texts), order, ["d"])), "utf8")
    model = read_ngram(str(path))
    assert model.order == order
    words = ["a", "b", "c", "d", "</s>", "<unk>"]
    for history in ([], ["a"], ["a", "b"], ["d", "b"], ["a", "<unk>"], ["c", "c", "a"]):
        probs = [np.exp(model.scores([*history, word])[-1]) for word in words]
        assert sum(probs) == pytest.approx(1.0, abs=1e-4) and min(probs) > 0
    assert model.scores(["a", "b"])[1] > model.scores(["a", "d"])[1] or order == 1
