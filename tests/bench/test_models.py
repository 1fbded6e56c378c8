"""The benchmark of whole models: the same networks in each framework, in small."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Optional

import pytest

import returnn_tf
from returnn_tf.util.lazy_tf import tf

_BENCH = Path(__file__).parents[2] / "bench"
_KINDS = ["transformer", "conformer", "attention", "feed-forward", "blstm-ctc", "lstm-lm"]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts import each other as neighbours."""
    monkeypatch.setattr(sys, "path", [str(_BENCH), str(_BENCH / "models_workers"), *sys.path])


@pytest.mark.parametrize("row", _KINDS)
def test_plans(row: str) -> None:
    """Every network has a plan, with as many parameters as the same network in plain TensorFlow."""
    import ours
    import plain_tf
    from model_rows import ROWS, small

    m = small(ROWS[row])
    net = returnn_tf.Network.from_config(ours.config(m), train=True)
    data = {key: tf.constant(value) for key, value in m.data().items()}
    network = plain_tf.Network(m)
    logits = network(data)
    assert logits.shape[-1] == m.labels + (m.kind == "ctc")
    sizes = [
        sum(int(tf.size(value)) for value in values) for values in (network.variables, net.trainable_params.values())
    ]
    assert sizes[0] == sizes[1]
    assert m.gflop() > 0


@pytest.mark.parametrize("row", ["transformer", "conformer"])
def test_plans_of_blocks(row: str) -> None:
    import ours
    from model_rows import ROWS, small

    m = small(ROWS[row])
    net = returnn_tf.Network.from_config(ours.config(m, of_blocks=True), train=True)
    assert any(name.startswith("norm_%d_" % m.layers) for name in net.params)


@pytest.mark.slow
def test_transformer_trains() -> None:
    """Both begin with the loss of about equal probabilities, with and without the update."""
    import ours
    import plain_tf
    from model_rows import ROWS, small

    m = small(ROWS["transformer"])
    for side in (ours, plain_tf):
        steps = side.make_steps(m)
        frames = m.data()["labels"].size if side is ours else 1  # the one gives the sum over frames, the other the mean
        for name in ("step", "forward"):
            assert steps[name]() / frames == pytest.approx(math.log(m.labels), rel=0.5)
        assert math.isfinite(steps["gradients"]())


@pytest.mark.parametrize("low", [None, "bfloat16"])
def test_attention_forms(low: Optional[str]) -> None:
    """They agree, else the benchmark raises; a line of its table."""
    import attention

    line = attention.compare((2, 5, 2, 4), 0.1, low, 1)
    assert line[0] == "2 x 5 frames, 2 heads of 4, dropout 0.1, %s" % (low or "float32")
    assert all(float(number) >= 0 for number in line[1:])
