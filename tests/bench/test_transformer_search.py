"""The network of bench/transformer_search.py, tiny: native ops find the same hypotheses as plain TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.layers.attention import self_attention
from returnn_tf.loops import packed
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.sequence import best_labels

LABELS, DIM, STEPS = 300, 16, 19  # more steps than the first allocation of keys has room for


@pytest.fixture(name="config")
def _config(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "bench"), *sys.path])
    import transformer_search

    network = transformer_search.network(beam=3, labels=LABELS, steps=STEPS, layers=2, dim=DIM)
    extern = {"data": {"dim": DIM}, "classes": {"dim": LABELS, "sparse": True}}
    return returnn_tf.Config({"extern_data": extern, "network": network, "behavior_version": 21})


@pytest.fixture(name="called")
def _called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the native ops that graphs were built with."""
    names: list[str] = []

    def counted(op: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            names.append(op.__name__)
            return op(*args, **options)

        return run

    monkeypatch.setattr(packed, "_LEAST_SIZE", 0)
    native = ((self_attention, "native_beam_attention"), (best_labels, "native_best_labels"), (packed, "pack"))
    for module, name in native:
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return names


@pytest.mark.slow
def test_same_hypotheses(config: Any, called: list[str]) -> None:
    net = returnn_tf.Network.from_config(config, search=True)
    rng = np.random.default_rng(1)
    net.set_param_values({key: rng.normal(size=p.shape).astype("float32") / 2 for key, p in net.params.items()})
    feed = {"data": rng.normal(size=(3, 5, DIM)).astype("float32"), "data/size0": [5, 2, 4]}
    native = net.run(feed).layers["output"]
    # For each layer QKV and five products, and that of the labels.
    assert sorted(called) == ["native_beam_attention"] * 2 + ["native_best_labels"] + ["pack"] * (2 * 6 + 1)
    with portable_ops():
        other = returnn_tf.Network.from_config(config, search=True)
        other.set_param_values(net.get_param_values())
        plain = other.run(feed).layers["output"]
    assert len(called) == 16
    lens = native.sizes[1]
    np.testing.assert_array_equal(lens, plain.sizes[1])
    assert lens.max() > 16
    for entry, n in enumerate(lens):
        np.testing.assert_array_equal(native.value[entry, :n], plain.value[entry, :n])
    np.testing.assert_allclose(native.beam_scores, plain.beam_scores, rtol=1e-5)
