"""A cell in a searching loop: its input is partly known before the loop, its matrices are packed there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.layers.rec import rec_run
from returnn_tf.loops.packed import packed_for_search
from returnn_tf.native.decoding.search import PackedMatrix
from returnn_tf.native.portable import portable_ops
from tests.tiers import usual


def _search(beams: Any, known: bool, units: int = 4, **options: Any) -> Any:
    """Return the result of a search with two choices in each step.

    :param units: of the cell
    :param options: of the cell
    """
    source = "data:source" if known else "x"
    unit = {
        "x": {"class": "copy", "from": "data:source"},
        "first": {"class": "choice", "target": "classes", "beam_size": beams[0], "from": "p", "initial_output": 0},
        "p": {"class": "softmax", "n_out": 5, "from": ["prev:cell", "data:source"]},
        "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "first"},
        "cell": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": units, "from": [source, "emb"], **options},
        "q": {"class": "softmax", "n_out": 5, "from": ["cell", "prev:output_emb"]},
        "output_emb": {"class": "linear", "activation": None, "n_out": 3, "from": "output", "initial_output": 0},
        "output": {"class": "choice", "target": "classes", "beam_size": beams[1], "from": "q", "initial_output": 0},
    }  # fmt: skip
    network = {
        "output": {
            "class": "rec", "from": "data", "target": "classes", "unit": unit, "optimize_move_layers_out": False,
        },
    }  # fmt: skip
    config = Config({
        "extern_data": {"data": {"dim": 2}, "classes": {"dim": 5, "sparse": True}},
        "network": network, "behavior_version": 21,
    })  # fmt: skip
    net = Network.from_config(config, search=True)
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(size=p.shape).astype("float32") for name, p in sorted(net.params.items())})
    feed = {
        "data": rng.normal(size=(3, 4, 2)).astype("float32"), "data/size0": np.array([4, 2, 3], "int32"),
        "classes": np.zeros([3, 4], "int32"), "classes/size0": np.array([4, 2, 3], "int32"),
    }  # fmt: skip
    return net.run(feed).layers["output"]


@pytest.mark.slow
@pytest.mark.parametrize("beams", usual([(3, 3), (2, 3), (4, 3)], [(2, 3), (4, 3)]))
def test_input_projected_before_the_loop(beams: Any) -> None:
    """The same hypotheses as where the input is copied in each step, also if the beam changes within a step."""
    known, copied = _search(beams, True), _search(beams, False)
    np.testing.assert_allclose(known.beam_scores, copied.beam_scores, rtol=1e-5)
    np.testing.assert_array_equal(known.value, copied.value)


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("LSTMBlock", {"use_peepholes": True}),
        ("LSTMBlock", {"forget_bias": 0.5}),
        ("lstm", {}),
        ("gru", {}),
        ("basicrnn", {}),
    ],
)
def test_packed_matrices(unit: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The native op of a product with few rows gives the scores of TensorFlow's."""
    packed = []
    monkeypatch.setattr(
        rec_run, "packed_for_search", lambda ctx, w: packed.append(packed_for_search(ctx, w)) or packed[-1]
    )
    size = {"units": 128, "unit": unit, "unit_opts": options}
    found = _search((3, 3), True, **size)
    assert any(isinstance(matrix, PackedMatrix) for matrix in packed)
    with portable_ops():
        expected = _search((3, 3), True, **size)
    np.testing.assert_allclose(found.beam_scores, expected.beam_scores, rtol=1e-4)
    np.testing.assert_array_equal(found.value, expected.value)
