"""The simulated corpus of bench/scale.py: what is asked of ten millions holds for some thousands."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.datasets import Dataset

_BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The scripts import each other as neighbours."""
    monkeypatch.setattr(sys, "path", [str(_BENCH), *sys.path])
    monkeypatch.setenv("RETURNN_TF_INDEX_CACHE", str(tmp_path / "indexes"))


def test_frames_are_a_hole_in_the_file(tmp_path: Path) -> None:
    """They are read as zeros, of the lengths that the index has."""
    import scale

    path = tmp_path / "corpus.hdf"
    scale.make_corpus(path, 3000)
    lengths = scale.lengths_of(3000)
    assert path.stat().st_size > lengths.sum() > 3_000_000 > 512 * path.stat().st_blocks
    dataset = Dataset.from_config(scale.options(path, "sorted"))
    first = next(iter(dataset.sequences(1)))
    assert first.tag == "corpus/recording-%07d/s%05d" % divmod(int(lengths.argmin()), 37)
    assert first.lengths == {"data": lengths.min(), "classes": scale.LABELS} and not first.data["data"].any()


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("order", ["random", "laplace:.1000", "sorted"])
def test_ranks_share_the_work(order: str, parts: int) -> None:
    """Each sequence is read once in a pass; the busiest of 64 ranks has little more to do than the others."""
    import scale

    exact, excess = scale.shares_of_ranks(scale.lengths_of(200_000), order, 64, parts)
    assert exact and excess < 0.04


def test_resumption_reads_what_follows() -> None:
    """Only a function of all sequences replays."""
    import scale

    rows = scale.measure_resumption(300)
    assert len(rows) == 8 and all(int(row[2]) > 240 for row in rows)
    assert [row[0] for row in rows if int(row[4]) > 120] == ["PostprocessingDataset, map_seq_stream"]


def test_budget_is_in_proportion() -> None:
    """Numbers of a corpus follow from the costs of a sequence and of an hour."""
    import scale

    costs = {"index": 100.0, "indexing": 1e-5, "ordering": 1e-7, "reading": 3.6}
    rows = scale.budget(costs, speed=500)
    assert [row[0] for row in rows] == list(scale.CORPORA) and {len(row) for row in rows} == {len(scale.BUDGET)}
    row = rows[-1]
    assert row[1:] == ("2.93e+08", "28800 GB", "29.27 GB", "2927 s", "29.3 s", "3.51 GB", "1000 h", "0.5", "2000 h")
    assert np.isclose(scale.CORPORA["LibriSpeech"][1] * 3600 / scale.CORPORA["LibriSpeech"][0], 12.3, rtol=0.01)
