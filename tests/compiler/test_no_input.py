"""Networks whose layers have a batch axis though no input is used: the first input tells the batch size."""

import numpy as np

import returnn_tf

STEP = {
    "p": {"class": "softmax", "n_out": 4, "from": "prev:emb"},
    "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "output", "initial_output": 0},
    "output": {"class": "choice", "target": "classes", "beam_size": 3, "from": "p", "initial_output": 0},
    "end": {"class": "compare", "from": "output", "value": 0},
}


def test_search_without_any_input():
    config = returnn_tf.Config(
        {
            "extern_data": {"data": {"dim": 3}, "classes": {"dim": 4, "sparse": True}},
            "network": {"output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 5, "unit": STEP}},
        }
    )
    net = returnn_tf.Network.from_config(config, search=True)
    rng = np.random.RandomState(3)
    net.set_param_values({name: rng.normal(0, 1, param.shape) for name, param in sorted(net.params.items())})
    out = net.run({"data": np.zeros((2, 4, 3), "float32"), "data/size0": np.array([4, 2], "int32")})
    scores = out.layers["output"].beam_scores
    assert scores.shape == (2, 3)
    np.testing.assert_array_equal(scores[0], scores[1])


def test_search_with_the_length_of_the_reference() -> None:
    """The loop reads nothing but the lengths of its target, so that the target is asked for."""
    unit = {
        "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
        "prob": {"class": "softmax", "target": "classes", "from": "emb"},
        "output": {"class": "choice", "target": "classes", "beam_size": 2, "initial_output": 0, "from": "prob"},
    }
    config = returnn_tf.Config(
        {
            "behavior_version": 21,
            "extern_data": {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}},
            "network": {"output": {"class": "rec", "from": [], "target": "classes", "unit": unit}},
        }
    )
    net = returnn_tf.Network.from_config(config, search=True)
    assert net.used_data_keys == ["classes"]
    out = net.run({"classes": np.zeros((2, 4), "int32"), "classes/size0": np.array([4, 2], "int32")})
    assert out.layers["output"].value.shape == (2 * 2, 4)


def test_loop_whose_end_is_a_scalar() -> None:
    """Nothing has a batch axis, so that no input tells the batch size."""
    unit = {
        "output": {"class": "eval", "from": "prev:output", "eval": "source(0) + 1", "initial_output": 0,
                   "out_type": {"batch_dim_axis": None, "shape": (), "dtype": "int32"}},
        "end": {"class": "compare", "kind": "equal", "from": "output", "value": 3},
    }  # fmt: skip
    config = returnn_tf.Config(
        {
            "behavior_version": 21,
            "extern_data": {"data": {"dim": 4}},
            "network": {"output": {"class": "rec", "from": [], "max_seq_len": 5, "include_eos": True, "unit": unit}},
        }
    )
    out = returnn_tf.Network.from_config(config).run({}).layers["output"]
    np.testing.assert_array_equal(out.value, [1, 2, 3])
