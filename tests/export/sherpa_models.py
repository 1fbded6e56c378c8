"""What the models for sherpa-onnx in tests have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.logging.log import log

AUDIO: dict[str, Any] = {
    "features": "kaldi_fbank", "num_feature_filters": 20, "sample_rate": 8000, "peak_normalization": False,
}  # fmt: skip
LABELS = ["\u2581a", "b", "\u2581c", "d"]
LSTM = {"class": "rec", "unit": "nativelstm2", "n_out": 9, "from": "data"}


def dataset(labels: int) -> dict[str, Any]:
    """Return a dataset of random features and labels, for which an export finds what its network does."""
    rng = np.random.RandomState(5)
    data = [
        {
            "data": rng.normal(-1, 3, [length, 20]).astype("float32"),
            "classes": rng.randint(0, labels, 9).astype("int32"),
        }
        for length in (40, 23, 31)
    ]
    return {"class": "StaticDataset", "data": data}


def error_rates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the lines of the log with error rates."""
    found: list[str] = []
    monkeypatch.setattr(log, "write", lambda _level, text: found.append(text) if " errors in " in text else None)
    return found
