"""A searching decoder whose cell starts from the last state of a recurrent encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config


def decoded(initial_state: Any) -> Any:
    """Return the labels and scores of all hypotheses."""
    unit: dict[str, Any] = {
        "output": {"class": "choice", "target": "classes", "beam_size": 3, "initial_output": 0, "from": "p"},
        "embed": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 3, "from": "embed", "initial_state": initial_state},
        "end": {"class": "compare", "from": "output", "value": 0},
        "p": {"class": "softmax", "n_out": 5, "from": "s"},
    }
    network = {
        "enc": {"class": "rec", "unit": "nativelstm2", "n_out": 3, "from": "data"},
        "h": {"class": "get_last_hidden_state", "from": "enc", "n_out": 3, "key": "h"},
        "c": {"class": "get_last_hidden_state", "from": "enc", "n_out": 3, "key": "c"},
        "loop": {"class": "rec", "from": [], "max_seq_len": 4, "unit": unit},
        "output": {"class": "copy", "from": "loop"},
    }
    extern_data = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}
    config = Config({"behavior_version": 21, "extern_data": extern_data, "network": network})
    data = np.random.default_rng(1).normal(size=(2, 3, 4)).astype("float32") * 5
    net = Network.from_config(config, search=True)
    return net.run({"data": data, "data/size0": np.array([3, 2], "int32")}).layers["output"]


@pytest.mark.slow
def test_the_state_is_repeated_for_each_hypothesis() -> None:
    """As the layers with its tensors are: along the batch axis of the state, which is another one in the output."""
    got, expected = decoded("base:enc"), decoded({"h": "base:h", "c": "base:c"})
    np.testing.assert_array_equal(got.value, expected.value)
    np.testing.assert_allclose(got.beam_scores, expected.beam_scores, rtol=1e-5)
