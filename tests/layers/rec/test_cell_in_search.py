"""A cell in a searching loop, whose input is partly known before the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from tests.tiers import usual


def _search(beams: Any, known: bool) -> Any:
    source = "data:source" if known else "x"
    unit = {
        "x": {"class": "copy", "from": "data:source"},
        "first": {"class": "choice", "target": "classes", "beam_size": beams[0], "from": "p", "initial_output": 0},
        "p": {"class": "softmax", "n_out": 5, "from": ["prev:cell", "data:source"]},
        "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "first"},
        "cell": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 4, "from": [source, "emb"]},
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
