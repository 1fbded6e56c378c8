"""The comparison of language models in the text demo, and all of it on a few lines."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError
from returnn_tf.export.streaming import StreamingModel
from returnn_tf.export.streaming_exporter import check_stream
from tests.demos.demo_modules import DEMOS, demo_modules

COMPARE, CONTEXT = demo_modules("text", "compare", "context")


def network(model: str) -> Any:
    return returnn_tf.Network.from_config(returnn_tf.Config.from_file(COMPARE.CONFIG))


def test_sizes_are_equal():
    sizes = {model: COMPARE.parameters(model) for model in COMPARE.NAMES}
    assert max(sizes.values()) < 1.05 * min(sizes.values()), sizes
    assert "LM" not in os.environ


def test_unknown_model(monkeypatch):
    monkeypatch.setenv("LM", "lsmt")
    with pytest.raises(ConfigError, match="There is no model LM=lsmt"):
        network("lsmt")


@pytest.mark.slow
def test_attention_goes_on_from_label_to_label(monkeypatch):
    """With its positions and the frames before. The states of units are tested with them."""
    monkeypatch.setenv("LM", "transformer")
    monkeypatch.setenv("STREAM", "1")
    model = StreamingModel(network("transformer"))
    check_stream(model, 1)
    assert sum("number" in name for name in model.states) == 1 and len(model.states) > 4


class CountingDecoder:
    """Counts what it is fed; its memory grows with it."""

    fed = 0

    def feed(self, block: list[int]) -> np.ndarray:
        self.fed += len(block)
        return np.full([82], 1 / 82)

    @property
    def state_bytes(self) -> int:
        return 10 * self.fed


def test_contexts():
    entries = CONTEXT.measure(CountingDecoder(), itertools.cycle([1, 2]), [3, 700, 702], 4)
    assert [entry["context"] for entry in entries] == [3, 700, 702]
    assert [entry["state"] for entry in entries] == [70, 7040, 7080]  # where the last one began there were 704 already


def test_figures(tmp_path):
    contexts = [{"context": n, "ms": 1.0, "state": 8e6 * n} for n in (1, 2)]
    epochs = [{"seconds": 30.0, "dev": 9.0, "eval": 8.0}, {"seconds": 10.0, "dev": 4.0, "eval": 3.5}]
    result = {"parameters": 400, "cpu": 20.0, "epochs": epochs, "contexts": contexts}
    assert COMPARE.cpu_by_epoch(result) == [15.0, 20.0]
    COMPARE.draw({"lstm": result, "rwkv": result}, str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").stat().st_size > 10000
    assert "| RWKV-7 | 400 | 20 | 4.00 | 3.50 | 1, 2 | 1.0, 1.0 | 8.000, 16.000 |" in COMPARE.table({"rwkv": result})


def test_no_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["compare.py", "--work", str(tmp_path)])
    assert COMPARE.main() == 1
    assert "There are no lines in" in capsys.readouterr().err


@pytest.mark.long
def test_whole_comparison_on_few_lines(run_demo, tmp_path):
    output = run_demo(str(DEMOS / "text" / "run.py"), "--compare", "--quick", "--work", str(tmp_path))
    with open(tmp_path / "out" / "compare.json", encoding="utf8") as file:
        results = json.load(file)
    assert list(results) == list(COMPARE.NAMES) and (tmp_path / "out" / "compare.png").exists()
    for model, result in results.items():
        assert 1 < result["epochs"][-1]["dev"] < 200
        first, last = (entry["state"] for entry in result["contexts"])
        assert (first < last) if model == "transformer" else (first == last)
    assert "| Transformer |" in output
